// Rows of the registry of alternatives find other ways to do the work of some calls of a recording.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/alternatives.h"
#include "runtime/rewrite/codec/codec_use.h"
#include "runtime/rewrite/words.h"
#include "runtime/step/buckets.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::rewrite {

class Sharers;  // rewrite/rows/sharers.h

// A VariantName is how a variant of an op is called, with the alternative that it comes from. The
// text is unique in its op: "in-place/grad_output". Programs look at the alternative.
struct VariantName {
  // A text alone names a variant that no alternative added.
  VariantName(const char* name = "default") : text(name) {}  // NOLINT
  VariantName(std::string rule, const std::string& operand)
      : text(rule + "/" + operand), alternative(std::move(rule)) {}

  std::string text;
  std::string alternative;  // empty for the way in which the op runs without this alternative
};

// A CallVariant is one call that runs in another way: a variant of its op.
struct CallVariant {
  int32_t call = -1;
  int32_t work = -1;
  VariantName name = {};
  Exactness exactness = Exactness::kBitwise;
  int32_t memory = 0;  // where it runs: the position of its device in RewrittenStep::devices
};

// Several calls done by other ops. They become a realization of a choice.
struct CallRealization {
  struct Piece {
    std::string name = {};                // added to the name of a call: "weights"
    int32_t after = -1;                   // the call that the piece follows
    std::vector<int32_t> works = {};      // one for each variant, the first without conditions
    std::vector<VariantName> names = {};  // the names of the variants
    bool as_it_is = false;                // the call `after` in all its variants, and no works
    int32_t of = -1;                      // the call that names the piece; -1: the first
  };

  std::string name = {};            // of the row: "two-call-convolution"
  std::vector<int32_t> calls = {};  // the calls that it replaces
  // The calls whose work is done in another way. The other calls run as they are. An empty list
  // stands for all calls.
  std::vector<int32_t> changed = {};
  std::vector<Piece> pieces = {};
  Exactness exactness = Exactness::kBitwise;
};

struct Alternatives {
  std::vector<CallVariant> variants = {};
  std::vector<CallRealization> realizations = {};  // of disjoint or equal lists of calls
};

// A RewrittenStep is a recorded step with everything that may run in its replay. It is what is
// measured, lowered and replayed. Its parts refer to each other by position only, so that the whole
// may be moved.
struct RewrittenStep {
  step::Recording recording;  // with the values that only alternatives make, behind the others
  step::Works works;          // with the works of the alternatives, behind the others
  step::Updates updates;
  Alternatives alternatives;
  step::Buckets buckets = {};  // their works and values are behind all others
  std::vector<std::shared_ptr<CodecUse>> codecs = {};  // of values that wait in few bits
  std::vector<std::string> refusals = {};  // what a row found and does not offer, and why
  // The devices that operations may run on, the recording's first; empty if it is the only one.
  std::vector<c10::Device> devices = {};
};

// A row of the registry reads the recording through a Rewriter and adds the alternatives that it
// finds. The rewriter holds the step until take() returns it.
class Rewriter {
 public:
  // `buckets` need not have works yet. What is less exact than `allow` is not added.
  // `ranks` are those that share out the work of the step; null if none do.
  Rewriter(step::Recording recording, step::Works works, step::Updates updates,
           const step::Buckets& buckets, Exactness allow, std::shared_ptr<const Sharers> ranks);
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  const step::Recording& recording() const { return recording_; }
  const std::shared_ptr<const Sharers>& ranks() const { return ranks_; }
  // Returns the calls that read the memory of a value, in order.
  const std::vector<int32_t>& readers(int32_t value) const { return readers_[value]; }
  // Returns whether the value is a gradient or an output of the step.
  bool is_result(int32_t value) const { return is_result_[value]; }
  // Returns whether an update or a bucket may take this gradient as soon as it is complete, and whether an
  // update changes this external.
  bool is_used_up(int32_t value) const { return is_used_up_[value]; }
  bool is_updated(int32_t external) const { return is_updated_[external]; }
  // Returns whether the work reads memory from before the step that some call writes. Such a work
  // has to stay in its place.
  bool reads_written(const step::Work& work) const;
  // Returns the last call before c that uses the value: its last reader before c, or else its
  // maker. Returns -1 if that call is not in the forward pass, or if c is not the last reader of
  // the value.
  int32_t last_forward_use(int32_t value, int32_t c) const;
  // Returns the bytes of the largest value of the step.
  int64_t largest() const { return largest_; }
  // Returns whether a saving of so many bytes is worth the planner's time.
  bool is_worthwhile(int64_t bytes) const { return bytes * kWorthwhile > largest_; }

  int32_t add_value(int64_t bytes);
  int32_t add_work(step::Work work);
  const step::Work& work(int32_t index) const { return works_.all[index]; }
  void add(CallVariant variant) { found_.variants.push_back(std::move(variant)); }
  void add(std::shared_ptr<CodecUse> use) { codecs_.push_back(std::move(use)); }
  // Notes what a row found and does not offer, and why. People read it.
  void refuse(std::string what) { refusals_.push_back(std::move(what)); }
  // Adds a realization R. If an earlier realization stands for the calls of R and for more, R is
  // widened: it then stands for the others, too, and runs them as they are. Each earlier
  // realization of the same calls that changes other calls is combined with R, and the combination
  // is added, too. Nothing is added if R is less exact than what is allowed, if only some of R's
  // calls belong to an earlier realization, or if a call that R would run as it is draws random
  // numbers.
  void add(CallRealization realization);
  // Adds one more variant to a piece of a realization that was found.
  void add_variant(size_t realization, size_t piece, int32_t work, VariantName name);
  // Returns the alternatives that this row and the rows before it found.
  const Alternatives& found() const { return found_; }
  // Returns the step with all that was added. The rewriter is empty then.
  RewrittenStep take();

 private:
  // Makes the realization stand for all of `calls`. Returns false if that is not possible.
  bool widen(CallRealization& realization, const std::vector<int32_t>& calls) const;
  // Combines two realizations of the same calls that change different calls. Returns nothing if
  // they cannot be combined.
  std::optional<CallRealization> both(const CallRealization& a, const CallRealization& b) const;

  static constexpr int64_t kWorthwhile = 64;  // a worthwhile saving exceeds largest_ / 64

  step::Recording recording_;
  step::Works works_;
  step::Updates updates_;
  const Exactness allow_;
  const std::shared_ptr<const Sharers> ranks_;
  int64_t largest_ = 0;
  std::vector<std::vector<int32_t>> readers_;  // by value
  std::vector<bool> is_result_, is_used_up_;   // by value
  std::vector<bool> is_updated_, is_written_;  // by external
  std::vector<int32_t> stands_for_;            // by call: the first realization; -1: none
  Alternatives found_;
  std::vector<std::shared_ptr<CodecUse>> codecs_;
  std::vector<std::string> refusals_;
};

// Finds all alternatives that the options ask for, row by row. Returns the step with them, and with
// their values and works.
RewrittenStep find_alternatives(step::Recording recording, step::Works works, step::Updates updates,
                                const step::Buckets& buckets, const AlternativeOptions& options,
                                std::shared_ptr<const Sharers> ranks = nullptr);

// Returns whether the elements lie row after row, without gaps.
bool is_in_rows(const step::Geometry& geometry);
// Returns whether the tensor is all of its storage, row after row.
bool fills_storage(const step::TensorRef& ref, const step::Recording& recording);
// Returns whether the tensor is all of its storage, each element once, in any order.
bool covers_storage(const step::TensorRef& ref, const step::Recording& recording);
// Returns the argument of this name; null if there is none.
const step::Argument* argument_of(const step::Call& call, const char* name);
// Returns the smallest type that holds positions in the last `dimensions` dimensions of a tensor.
at::ScalarType type_of_positions(const step::Geometry& input, size_t dimensions);
// Returns a kernel that calls an operator with all its arguments from the stack.
step::Kernel kernel_of(const c10::OperatorHandle& op);

// These functions are the rows of the registry.
void in_place(Rewriter& rewriter);
void perceptron_by_rows(Rewriter& rewriter);
void shared_rows(Rewriter& rewriter);
void fused_regions(Rewriter& rewriter);
void tiles(Rewriter& rewriter);
void forward_ad(Rewriter& rewriter);
void compressed_8(Rewriter& rewriter);
void compressed_4(Rewriter& rewriter);
void olive_8(Rewriter& rewriter);
void olive_4(Rewriter& rewriter);
void two_call_convolution(Rewriter& rewriter);
void convolution_by_samples(Rewriter& rewriter);
void cross_entropy_from_logits(Rewriter& rewriter);
void cross_entropy_by_rows(Rewriter& rewriter);
void two_step_batch_norm(Rewriter& rewriter);
void batch_norm_by_channels(Rewriter& rewriter);
void group_norm_by_groups(Rewriter& rewriter);
void linear_cross_entropy(Rewriter& rewriter);
void batch_norm_by_samples(Rewriter& rewriter);
void backward_by_result(Rewriter& rewriter);
void one_bit_mask(Rewriter& rewriter);
void small_indices(Rewriter& rewriter);
void late_gradient(Rewriter& rewriter);
void copied_part(Rewriter& rewriter);

}  // namespace reprise::runtime::internal::rewrite
