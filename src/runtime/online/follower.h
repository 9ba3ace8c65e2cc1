// This is one step in online mode, beside the plans of the steps before it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/online/observed_call.h"
#include "runtime/online/online_plan.h"
#include "runtime/online/remaker.h"
#include "runtime/online/tracer.h"
#include "runtime/online/values.h"

namespace reprise::runtime::internal::online {

using OnlinePlans = std::vector<std::shared_ptr<const OnlinePlan>>;

// A Followed says what became of a step.
struct Followed {
  std::shared_ptr<const OnlinePlan> plan;      // followed to the end of the step; else null
  size_t matched = 0;                          // calls that were as planned
  size_t planned = 0;                          // calls of the plan that was followed last
  std::string why_not;                         // the step was not planned, or not to its end
  int64_t unplanned_evictions = 0;             // while a plan was followed
  int64_t most_missing = 0;                    // bytes: the largest request that was above the plan
  std::shared_ptr<const OnlinePlan> given_up;  // its memory did not suffice; else null
  bool traced = false;                         // `trace` is the whole step
  Trace trace;
};

// Follows a plan as long as the step does what the plan was made for. At the first difference it goes
// on with another plan of the same beginning, or with none. Nothing but time depends on plans: what an
// operation reads is there in any case, and the budget is the allocator's.
//
// - Before a call, the plan's re-runs run whose results are needed and not there.
// - What the plan releases is evicted when memory is asked for: first what is made again last.
// - What the program lets go of and the plan still reads is held.
//
// Without a plan, the follower records the trace.
class PlanFollower {
 public:
  // `plans` are in the order in which they are tried.
  PlanFollower(OnlinePlans plans, Values& values, Remaker& remaker, int64_t smallest,
               c10::Device device);

  // The operands are noted and pinned.
  void begin(const ObservedCall& call);
  // The operands are there, and the kernel comes next. The next function comes right behind it.
  void kernel_begins(const ObservedCall& call);
  void kernel_ended(const ObservedCall& call);
  // The results are noted.
  void end(const ObservedCall& call);

  // Returns the value to evict next by the plan, or null if there is none.
  Value* next_to_evict();
  // So many bytes have to be made free that the plan did not foresee.
  void missing(int64_t bytes);
  // Goes on without a plan, and lets go of all that it holds. Returns whether there was one. It may be
  // called while a value is made that the plan wants.
  bool give_up();
  // Memory is made free for a request, between these two calls.
  void make_room_begins();
  void make_room_ended();
  // Returns the plan that is followed or was given up, if its memory did not suffice. Else null.
  std::shared_ptr<const OnlinePlan> too_small() const;
  // The step is over with so many evictions, and nothing is settled yet.
  void finish(int64_t evictions);
  Followed take() { return std::move(followed_); }

 private:
  struct Released {
    int32_t made_again_at, serial;
    bool operator<(const Released& other) const {
      return made_again_at != other.made_again_at ? made_again_at < other.made_again_at
                                                  : serial > other.serial;
    }
  };

  void run_planned();
  void run_batch(size_t call);
  void run_again(std::span<const PlannedAction> batch, size_t action);
  bool is_over_behind(std::span<const PlannedAction> batch, size_t action, int32_t serial) const;
  void release(const PlannedAction& action);
  void queue(int32_t serial, int32_t made_again_at);
  ValuePtr value(int32_t serial) const;
  bool is_missing(int32_t serial) const;
  void hold_what_outlives(int32_t serial);
  bool adopt_another();
  void stop(std::string why_not, bool record);

  Values& values_;
  Remaker& remaker_;
  const int64_t smallest_;
  const c10::Device device_;
  OnlinePlans plans_;
  std::shared_ptr<const OnlinePlan> plan_;  // null: none is followed
  std::optional<Tracer> tracer_;            // while the step is recorded
  Followed followed_;

  int64_t live_before_ = -1;  // bytes that were live before the first call; -1: there was none yet
  size_t calls_ = 0;          // that ended
  size_t next_batch_ = 0;     // planned actions before this call come next
  uint64_t print_ = 0;
  std::vector<std::weak_ptr<Value>> by_serial_;
  std::unordered_map<int32_t, c10::Storage> held_;  // by serial
  std::vector<Released> released_;                  // a heap; some of it is out of date
  std::vector<int32_t> queued_;  // by serial: the entry of `released_` that holds; -1: none
};

}  // namespace reprise::runtime::internal::online
