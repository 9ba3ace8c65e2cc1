// Follows a function call by call, beside a recording of it, and finds the first difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/lockstep/beside.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/lockstep/shells.h"
#include "runtime/step/gradients_aside.h"
#include "runtime/step/recording.h"
#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::lockstep {

// A FunctionFollower answers each call of the function with tensors that look as in the recording. It
// compares operators, tensors (their shapes, types and memory), numbers, and the literals that the
// program writes. A host read gets the number of the recording. The function's call that differs
// throws InputError, and so do all calls behind it, in case the function catches that.
//
// If a replay is beside it, the function is followed: it gets the numbers of this run, the replay
// uses the numbers and host data that are others than at capture, and a call that differs is made.
class FunctionFollower final : public Taker {
 public:
  // `recording`, `inputs` and what is `beside` outlive the follower.
  FunctionFollower(const step::Recording& recording, const Tensors& inputs,
                   ReplayBeside* beside = nullptr, std::function<void()> on_leaving = {});

  c10::Device device() const override { return recording_->device; }
  void take(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  // Compares the end of the function, with what it returned and with the gradients of leaf tensors.
  void finish(const Tensors& outputs);

  // Says in words what the function does and what the recording has, with the places in the
  // program. The text is empty as long as nothing differs.
  const std::string& difference() const { return difference_; }

  // Ends a function that was followed and has returned these.
  void end(const Tensors& outputs);
  // Says whether the function went on by itself, because it did something else than all recordings.
  bool has_left() const { return left_; }
  // Lets the function go on by itself from here.
  void leave(const std::string& difference) override;
  void touch_gradient(const at::Tensor& leaf) override;
  int64_t mark_random_state() override;
  void return_to_random_state(int64_t mark) override;
  // Lets the function find the gradients that were put aside, as in plain training.
  void show_gradients_of(step::GradientsAside& aside) { gradients_aside_ = &aside; }
  // Returns the shells of values that are held.
  std::vector<HeldShell> held() const;
  // Returns the recording that was followed last.
  const step::Recording& recording() const { return *recording_; }

 private:
  struct Next {
    const step::Call* call = nullptr;  // null behind the last one
    int32_t position = -1;             // in Recording::calls; -1 for a call that is left out
    bool failed = false;
    int32_t same_as = -1;  // the call whose values it makes again
  };

  void begin(const step::Recording& recording);
  bool begin_other();
  void look_at_held();
  void follow(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void replay_reads(const Next& next, std::vector<c10::IValue>& results);
  void replay_counts(const Next& next);
  void follow_draw(const Next& next);
  bool is_same_random_state(size_t a, size_t b) const;

  Next peek() const;
  size_t calls_done() const;
  void advance(const Next& next);
  static bool may_be_hidden(const Next& next);
  Next next_call(const c10::OperatorHandle& op);
  [[noreturn]] void differ(const std::string& now, const std::string& recorded,
                           const step::Call* at);
  void note(const std::string& now, const std::string& recorded, const step::Call* at);

  void compare(const Next& next, size_t argument, const c10::IValue& value);
  // Returns two texts: what the function has, and what the recording has. Both texts are empty if
  // nothing differs.
  std::pair<std::string, std::string> difference_of(const step::TensorRef& recorded,
                                                    const at::Tensor& now);
  bool is_at_home(const step::TensorRef& recorded, const at::Tensor& now);
  bool looks_at_real_memory(const std::vector<c10::IValue>& arguments) const;
  bool takes_the_place(const step::TensorRef& recorded, const at::Tensor& now);
  bool is_same_literal(const step::External& literal, const at::Tensor& now) const;
  c10::Storage storage_of(const step::External& external) const;
  step::Geometry geometry_in(const step::TensorRef& recorded) const;
  std::string text_of(const step::TensorRef& recorded) const;
  std::string text_of(const at::Tensor& now) const;
  std::string maker_of(Home home) const;

  at::Tensor tensor_for(const step::TensorRef& ref, const step::Call& call);
  void hold_if_needed(int32_t value);
  c10::Storage storage_for(const step::TensorRef& ref, const step::Call& call);
  c10::Storage new_storage(int32_t value, const step::Call& call);
  void note_writes(const Next& next, const std::vector<c10::IValue>& arguments);
  std::vector<c10::IValue> results_of(const Next& next, const std::vector<c10::IValue>& arguments);

  const step::Recording* recording_;
  const Tensors& inputs_;
  ReplayBeside* const beside_;
  const std::function<void()> on_leaving_;
  bool left_ = false;
  // Lets the replay advance for the function. It has room for what the function has dropped.
  ReplayBeside& beside() const;

  step::GradientsAside* gradients_aside_ = nullptr;
  std::set<int32_t> seen_;            // externals that were compared
  std::set<int32_t> given_;           // values whose bytes the host has
  std::map<int32_t, int64_t> later_;  // by external that is another tensor: bytes it begins later
  // Numbers, by call and argument, and small host data that differ from the recording.
  std::map<std::pair<size_t, size_t>, c10::IValue> numbers_;
  std::map<int32_t, step::HostBytes> host_data_;
  std::vector<std::vector<int32_t>> written_;  // by call: values that it writes over others
  Homes homes_;
  // If others held memory while the step was recorded: the values that autograd did not add to in
  // place for that reason, and their storages, which are held here for the same reason.
  std::set<int32_t> added_by_others_;
  std::vector<c10::Storage> added_to_;
  size_t call_ = 0, left_out_ = 0;  // the next ones
  size_t number_ = 0;               // of the call at hand, those that are left out included
  // The function has set the random state to that before this call, as a checkpoint does.
  std::optional<size_t> random_at_;
  std::set<size_t> random_marks_;  // the calls before which it has looked at the random state
  std::string difference_;
};

}  // namespace reprise::runtime::internal::lockstep
