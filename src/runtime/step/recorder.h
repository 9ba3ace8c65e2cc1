// Makes a recording from leaf operations that are shown to it one after the other.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/state/random_state.h"
#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/places.h"
#include "runtime/step/problems.h"
#include "runtime/step/recording.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::step {

// A Watched is the memory of one operand, which is watched over one call.
struct Watched {
  c10::Storage storage;
  size_t argument;
  Extent extent;     // the part of the memory that the operand covers
  HostBytes before;  // all bytes before the call; only externals have them
};

// A LeafContext is a leaf operation that has begun.
struct LeafContext final : at::ObserverContext {
  explicit LeafContext(const c10::OperatorHandle& op) : call(op) {}
  Call call;
  bool within_leaf = false;
  bool apart = false;  // the program makes the call by itself (draws_apart())
  std::vector<std::pair<c10::Storage, size_t>> written;  // storage and argument
  std::vector<Watched> watched;
  std::set<const void*> operands;  // the tensors that it was given
  std::vector<c10::Storage> lent = {};  // what Surroundings::lend() has returned
  // The random state at the begin, if the host has set it since the last call that drew.
  std::optional<state::RandomState> random;
};

class Recorder {
 public:
  // The arguments are those of record().
  Recorder(c10::Device device, const Tensors& inputs, BeforeImages& images, Scrutiny scrutiny,
           Audit& audit, const Audit* known, Surroundings* surroundings);

  // Goes on behind the calls of this recording, before the first call.
  void go_on_behind(Recording begun);
  // Says where a storage of these calls lies.
  void note_place(const c10::Storage& storage, const TensorRef& place) {
    places_.note(storage, place);
  }

  std::unique_ptr<LeafContext> begin(const c10::OperatorHandle& op,
                                     const at::RecordFunction& event);
  void end(LeafContext& context, const at::RecordFunction& event);
  void fail(const std::string& problem) { problems_.fail(problem); }
  // Ends the recording of a step that has returned these. Throws InputError with the first problem
  // that was met.
  Recording finish(Tensors outputs);

  c10::Device device() const { return recording_.device; }
  Surroundings* surroundings() const { return surroundings_; }

 private:
  void read_argument(LeafContext& context, size_t a, const c10::IValue& value);
  bool writes(const Call& call, size_t a) const;
  void note_written(LeafContext& context, size_t a, const c10::IValue& value);
  void note_leaf(const at::Tensor& tensor);
  void note_made(const LeafContext& context, const at::Tensor& tensor);
  void look_at_generators(LeafContext& context, c10::ArrayRef<c10::IValue> arguments);
  bool draws(const LeafContext& context);
  void drop_reruns();
  bool write_values(LeafContext& context);
  void leave_out(Call call, bool failed);
  void expect_number(const Call& call, const c10::IValue& result);
  void expect_counts(const Call& call, c10::ArrayRef<c10::IValue> arguments);
  void require_gradients(const Tensors& outputs);

  void watch(LeafContext& context, size_t a, const at::Tensor& tensor, const TensorRef& ref);
  void keep_if_changed(const Watched& watched);
  void learn_writes(LeafContext& context);
  bool watches(const c10::Storage& storage) const {
    return scrutiny_ != Scrutiny::kSmall || storage.nbytes() <= kLargestLiteral;
  }

  BeforeImages& images_;
  const Scrutiny scrutiny_;
  Audit& audit_;
  const Audit* known_;
  Surroundings* surroundings_;
  Problems problems_;
  Recording recording_;
  Places places_;
  size_t reads_ = 0;  // number of guards so far that expect a number
  size_t gifts_ = 0;  // number of guards so far that give one
  std::set<const void*> leaves_;
  std::set<const void*> made_;  // tensors that operations of the step returned
  state::RandomState random_;   // the state after the last call that drew and went on with it
  // The state that each call of a followed step has found that drew, by call.
  std::map<size_t, state::RandomState> found_;
  std::set<size_t> set_before_;  // the calls before which the host had set the state
};

}  // namespace reprise::runtime::internal::step
