// Trains any step inside a byte budget without recording it first: whatever the step does, values
// are evicted when memory runs short, and made again before an operation reads them.
//
//   reprise::runtime::Online online({.budget = "700 MiB"});
//   at::Tensor loss = online.run([&] {
//     auto loss = tree_lstm->forward(tree);   // may branch, and depend on data
//     loss.backward();
//     return loss;
//   });
//
// After M. Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, arXiv 2006.09616. It needs
// LibTorch 2.13 or newer. On a device other than the CPU the runtime has to stand before the
// device's allocator, as it does in a build for CUDA.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::runtime {

struct OnlineOptions {
  // The limit on all bytes of tensors on the device during a step: parameters, gradients, optimizer
  // state, the batch, and whatever else is live. It is a number of bytes. A share of plain training's
  // peak is an InputError, because that peak is not known here. The default is no limit.
  Budget budget = {};
  std::string heuristic = "dtr";  // a name of online_heuristics()
  Bytes smallest{512};            // Smaller tensors are not evicted.
  // The device whose bytes the budget counts. Tensors elsewhere are never evicted.
  c10::Device device{c10::kCPU};

  // A step whose operations were seen so many times is planned when it ends, and the steps that repeat
  // them follow the plan. 0: no step is planned, and neither is one without a budget. A number of 2
  // plans nothing that never comes again.
  int plan_after = 2;
  int plans = 8;                    // plans that are kept; the one that was followed last stays
  Nanos time_limit{1'000'000'000};  // of one search for a plan
  // Behind the first search, another one begins only if searches have taken no more than this part of
  // the time of all steps. A search in the background counts when it is over, with its time on the
  // clock.
  double planning_share = 0.25;
  // A search runs on a thread of its own, one at a time, and the steps go on meanwhile without its
  // plan. The first step that begins when the search is over follows the plan. Else a search runs on
  // the thread of the step, behind it.
  bool plan_in_background = false;

  bool operator==(const OnlineOptions&) const = default;
};

// OnlineReport is about the last step that came to its end.
struct OnlineReport {
  Bytes budget;             // the largest Bytes if there is no limit
  Bytes measured_peak;      // of all live bytes, never above the budget
  Nanos time;               // of the step, with all that online mode did
  int64_t calls = 0;        // operations of the step
  int64_t evictions = 0;    // number of times that memory was taken from a tensor
  Bytes evicted_bytes;      // their sum
  int64_t reruns = 0;       // operations that ran again
  double rerun_cost = 0;    // modelled cost of the re-runs, over that of the step's operations
  int64_t kept_values = 0;  // tensors that the step made and that could not be evicted
  int64_t steps = 0;        // that came to their end so far

  // The step followed a plan from its begin to its end.
  bool planned = false;
  int64_t matched_calls = 0;  // operations from the first one on that were as in a plan
  int64_t planned_calls = 0;  // operations of the plan that was followed last; 0: there was no plan
  int64_t unplanned_evictions = 0;   // that the plan did not foresee, while one was followed
  std::string why_not_planned = {};  // empty if it was, or if steps are not planned
  // The time of the searches behind the step, or of the one in the background whose answer was there
  // when the step began. It is no part of `time`.
  Nanos planning_time;

  bool operator==(const OnlineReport&) const = default;
};

// Runs training steps in online mode. A step is forward and backward, and may be more, such as the
// optimizer's step. Its loss, gradients, buffers and random state are equal to the last bit to
// those of the step alone.
//
// - Only values that can be made again are evicted: by operators of PyTorch, and by others with the
//   tag pt2_compliant_tag. All else stays: gradients, what an operator made that draws from a
//   generator of the caller's own, memory that code outside of operators has a pointer to.
// - The allocator enforces the budget. A request that does not fit when nothing more can be evicted
//   throws BudgetError, which says what holds the memory.
// - After an exception parameters, buffers, gradients and the random state are as before the step.
//   For that, the memory from before the step that the step writes is copied to host memory, which no
//   budget counts: with the optimizer inside, parameters and optimizer state. Gradients that the
//   step drops before it reads their parameters may be gone.
// - A step whose operations, shapes and dependences were seen before follows a plan that was made of
//   the trace (OnlineOptions::plan_after): what to keep, what to evict first, and what to make again
//   when. Several plans are kept, so steps with branches are planned on each branch that was seen. At
//   the first operation that is not the planned one, the step goes on with another plan of the same
//   beginning, or without a plan. Before it runs out of memory, it gives its plan up and evicts all
//   that can be. All promises hold in any case; a plan changes the time alone. Plans are made from
//   measured times, so evictions of planned steps may differ from run to run. A search takes host
//   memory that no budget counts.
// - A search in the background reads nothing but a copy of the trace. It never changes a step under
//   way, and what it throws is a reason in the report. The destructor ends it. In a child of fork() it
//   does not go on.
// - A step runs on the thread that began it, and one step at a time in a process: steps of several
//   threads take turns. Operators may use more threads; what these take in parallel is not made room
//   for.
//
// Not seen, so not allowed inside a step: code outside of operators that holds const pointers to
// memory of tensors while operations run, that writes tensors from before the step by pointers, or
// other threads that read tensors of the step.
//
// On a device other than the CPU, the backward pass of a step runs on the thread of the step, too.
//
// The constructor throws InputError for a budget that is a share, an unknown heuristic, a LibTorch
// before 2.13, or a device whose memory cannot be limited (set_memory_limit()). It installs the
// counting allocator.
class Online {
 public:
  explicit Online(OnlineOptions options = {});
  ~Online();  // undoes a step that is not over
  Online(Online&&) noexcept;
  Online& operator=(Online&&) noexcept;

  // Runs a function as one step and returns what it returns.
  template <class Step>
  auto run(Step&& step) {
    begin();
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Step&>>) {
        step();
        end();
      } else {
        auto result = step();
        end();
        return result;
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  // The parts of run(), for callers that have no function. begin() throws InputError if a step is
  // under way, and BudgetError if more than the budget is live. end() makes again what is evicted and
  // still held. If it throws, the step is not over. fail() undoes the step and throws its exception;
  // if that only says that an operation found an operand missing, it throws the reason for that.
  void begin();
  void end();
  [[noreturn]] void fail(std::exception_ptr thrown);
  // Undoes the step.
  void undo();

  // Waits for the search in the background, if one is under way. The next step follows its plan.
  void wait_for_plan();
  // Ends the search in the background, and begins no other. It may be called on any thread.
  void stop_planning();

  OnlineReport last_step() const;

  struct State;
  explicit Online(std::unique_ptr<State> state);  // for this library

 private:
  std::unique_ptr<State> state_;
};

struct OnlineHeuristic {
  std::string name;
  std::string description;

  bool operator==(const OnlineHeuristic&) const = default;
};

// Returns the heuristics by which values are chosen.
std::vector<OnlineHeuristic> online_heuristics();

}  // namespace reprise::runtime
