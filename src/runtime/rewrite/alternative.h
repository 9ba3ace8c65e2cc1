// Other ways to do the work of some calls of a recording.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/recording.h"
#include "runtime/step/updates.h"
#include "runtime/step/work.h"
#include "reprise/runtime/alternatives.h"

namespace reprise::runtime::internal::rewrite {

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
};

// Several calls done by other operations: a realization of a choice.
struct CallRealization {
  struct Piece {
    std::string name = {};                // behind the name of a call: "weights"
    int32_t after = -1;                   // the call that it stands behind
    std::vector<int32_t> works = {};      // its variants, the first without conditions
    std::vector<VariantName> names = {};  // by work: how the variant is called
    bool as_it_is = false;                // that call in all its ways, and no works of its own
    int32_t of = -1;                      // the call that it is named after; -1: the first
  };

  std::string name = {};            // of the row: "two-call-convolution"
  std::vector<int32_t> calls = {};  // that it stands for
  // Those of them whose work its pieces do in another way, where the others run as they are; empty: all.
  std::vector<int32_t> changed = {};
  std::vector<Piece> pieces = {};
  Exactness exactness = Exactness::kBitwise;
};

struct Alternatives {
  std::vector<CallVariant> variants = {};
  std::vector<CallRealization> realizations = {};  // of disjoint or equal lists of calls
};

// What a row of the registry looks at and adds to.
class Rewriter {
 public:
  Rewriter(step::Recording& recording, step::Works& works, const step::Updates& updates);

  const step::Recording& recording() const { return recording_; }
  // Calls that read the memory of a value, in order.
  const std::vector<int32_t>& readers(int32_t value) const {
    return readers_[static_cast<size_t>(value)];
  }
  // A gradient or an output of the step.
  bool is_result(int32_t value) const { return is_result_[static_cast<size_t>(value)]; }
  // A gradient that may be used up as soon as it is complete, and a parameter that it updates.
  bool is_used_up(int32_t value) const { return is_used_up_[static_cast<size_t>(value)]; }
  bool is_updated(int32_t external) const { return is_updated_[static_cast<size_t>(external)]; }
  // Whether the work reads memory from before the step that some call writes: it has to stay in its place.
  bool reads_written(const step::Work& work) const;
  // The last call before c, a backward call, that reads the value, or the one that makes it; -1: that is a backward
  // call, too, or c is not the last reader.
  int32_t last_forward_use(int32_t value, int32_t c) const;
  // Bytes of a value of the step.
  int64_t largest() const { return largest_; }
  // Whether so many bytes less are worth the planner's time.
  bool is_worthwhile(int64_t bytes) const { return bytes * kWorthwhile > largest_; }

  int32_t add_value(int64_t bytes);
  int32_t add_work(step::Work work);
  const step::Work& work(int32_t index) const { return works_.all[static_cast<size_t>(index)]; }
  void add(CallVariant variant) { found_.variants.push_back(std::move(variant)); }
  // If one stands for more calls already, this one does the others as they are, and there is one more for each that
  // changes other calls: both together. Nothing happens if one stands for some of its calls only.
  void add(CallRealization realization);
  // One more variant of a piece of a realization that was found.
  void add_variant(size_t realization, size_t piece, int32_t work, VariantName name);
  // Of this row and those before it.
  const Alternatives& found() const { return found_; }
  Alternatives take() { return std::move(found_); }

 private:
  // Makes it stand for all these calls; false if they are not more.
  bool widen(CallRealization& realization, const std::vector<int32_t>& calls) const;
  // What two of the same calls change, in one; none if they change the same call.
  std::optional<CallRealization> both(const CallRealization& a, const CallRealization& b) const;

  static constexpr int64_t kWorthwhile = 64;  // that part of the largest value

  step::Recording& recording_;
  step::Works& works_;
  int64_t largest_ = 0;
  std::vector<std::vector<int32_t>> readers_;  // by value
  std::vector<bool> is_result_, is_used_up_;   // by value
  std::vector<bool> is_updated_, is_written_;  // by external
  std::vector<int32_t> stands_for_;            // by call: the first realization; -1: none
  Alternatives found_;
};

// Adds values and works of all alternatives that are wanted, row by row.
Alternatives find_alternatives(step::Recording& recording, step::Works& works, const step::Updates& updates,
                               const AlternativeOptions& options);

// Whether elements lie row after row, without gaps.
bool is_in_rows(const step::Geometry& geometry);
// Whether the tensor is all of its storage, row after row.
bool fills_storage(const step::TensorRef& ref, const step::Recording& recording);
// Whether it is all of its storage, each element once, in whatever order.
bool covers_storage(const step::TensorRef& ref, const step::Recording& recording);
// The argument of this name; null if there is none.
const step::Argument* argument_of(const step::Call& call, const char* name);
// The smallest type for positions in the last dimensions of a tensor.
at::ScalarType type_of_positions(const step::Geometry& input, size_t dimensions);
// An operator with all its arguments from the stack.
step::Kernel kernel_of(const c10::OperatorHandle& op);

// The rows.
void in_place(Rewriter& rewriter);
void two_call_convolution(Rewriter& rewriter);
void convolution_by_samples(Rewriter& rewriter);
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
