// A run of a step whose function runs, too, and is followed (CaptureOptions::follow).
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

#include "runtime/device/limit_scope.h"
#include "runtime/graph/gradients.h"
#include "runtime/graph/outcome.h"
#include "runtime/graph/plan_run.h"
#include "runtime/lockstep/beside.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/online/within.h"
#include "runtime/state/random_state.h"
#include "runtime/step/first_calls.h"
#include "runtime/step/host_reads.h"

namespace reprise::runtime::internal::graph {

struct StepState;

// CallsOfPlan says what a plan does with the calls of its recording.
struct CallsOfPlan {
  std::vector<size_t> entries;  // the entry of the first run; no entry: SIZE_MAX
  std::vector<bool> as_it_is;   // The plan runs the call as it was recorded, and only so.
};
CallsOfPlan calls_of(const Outcome& outcome);

// The function runs first, and its operators compute nothing. Where it reads a number, the plan
// advances until the number is there. Behind the function the plan advances to its end, and the
// tensors that the program holds get their bytes.
//
// Where the function does something else than all recordings, the replay is taken back. The calls
// so far run once more, in their order, and the function goes on by itself: it has left.
class FollowedRun final : public lockstep::ReplayBeside {
 public:
  // `random` is the state from before the run. All arguments outlive the run. The CPU allocator has
  // this limit for what runs without a plan.
  FollowedRun(StepState& state, PlanRun& run, const Tensors& inputs,
              const state::RandomState& random, std::optional<int64_t> limit);

  // Runs the function. What it throws passes through.
  void call();
  // Says whether the function has left all recordings. All that it does is done then.
  bool has_left() const { return !difference_.empty(); }
  const std::string& difference() const { return difference_; }
  // Returns what the function has returned.
  Tensors returned() { return std::move(returned_); }
  // Does the work of the plan as plain training does it, in place of a replay that did not fit.
  Tensors finish_plainly();
  // Gives the program the gradients that it has kept besides those in .grad, which are one memory.
  void give_gradients(std::vector<Delivery>& gradients);
  // Gives the program what else the plan has computed. Returns what the function has returned.
  Tensors give(const Tensors& outputs);

  c10::IValue number(size_t guard) override;
  void expect(size_t guard) override;
  c10::Storage copied(size_t call, int32_t value) override;
  bool use(size_t call, size_t argument, const c10::IValue& number) override;
  bool use(size_t external, const at::Tensor& tensor, int64_t later) override;
  const step::Recording* other(size_t calls, size_t left_out) override;
  void leave(const lockstep::Leaving& leaving) override;
  void set_random_state(size_t call) override { random_states_.at(call).restore(); }
  // Returns the recording of a step that has left, if it can be replayed.
  std::optional<step::Recording> take_learned() { return std::move(learned_); }

 private:
  void advance_through(size_t call);
  std::optional<c10::IValue> number_of_state(const step::Call& guard);
  void take_back();
  void learn(const lockstep::Followed& followed);
  void go_on_within_budget();
  void record_rest(const lockstep::Leaving& leaving);
  void walk(const lockstep::Leaving& leaving);
  void give_homes(const step::Work& work, const std::map<int32_t, c10::Storage>& shells);
  void give_copy(int32_t value, const c10::Storage& shell);
  void give(const c10::Storage& bytes, const c10::Storage& shell);

  StepState& state_;
  PlanRun& run_;
  const Tensors& inputs_;
  const state::RandomState& random_;
  const std::optional<int64_t> limit_;
  const Bytes level_;  // of the bytes beside the step, as it began
  // It is taken as the step begins: later the function may be inside of autocast.
  const step::Circumstances here_;
  // These are in force while the function goes on by itself.
  std::optional<device::LimitScope> limit_behind_;
  std::optional<online::Within> within_;
  std::optional<step::RestOfStep> rest_;
  step::GivenNumbers given_;
  CallsOfPlan calls_;
  std::set<int64_t> tried_;  // outcomes, by number
  Tensors returned_;
  std::optional<step::Recording> learned_;
  std::vector<lockstep::HeldShell> held_;
  std::map<size_t, state::RandomState> random_states_;  // by call: the state before it
  std::string difference_;
};

// Notes that the step drops the gradients that these leaves have before it, and does not keep.
void note_dropped(step::Recording& recording, const std::vector<at::Tensor>& leaves);

// Does what the optimizer, which may be null, does behind a step that ran without a plan.
void update_all(ParameterOptimizer* optimizer);

// Says whether two recordings have the same first calls, and so many of those that are left out.
// `is_same` compares externals.
bool begin_alike(const step::Recording& a, const step::Recording& b, size_t calls, size_t left_out,
                 const std::function<bool(size_t external)>& is_same);

}  // namespace reprise::runtime::internal::graph
