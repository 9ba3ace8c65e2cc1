#include "runtime/online/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "reprise/runtime/allocator.h"
#include "runtime/online/print.h"

namespace reprise::runtime::internal::online {

using Kind = PlannedAction::Kind;

PlanFollower::PlanFollower(OnlinePlans plans, Values& values, Remaker& remaker, int64_t smallest,
                           c10::Device device)
    : values_(values),
      remaker_(remaker),
      smallest_(smallest),
      device_(device),
      plans_(std::move(plans)) {
  if (plans_.empty()) {
    tracer_.emplace(values_, Trace{}, smallest_, device_);
    return;
  }
  plan_ = plans_.front();
  followed_.planned = plan_->trace.calls.size();
  queued_.assign(plan_->trace.values.size(), -1);
}

void PlanFollower::begin(const ObservedCall& call) {
  if (live_before_ < 0 && call.record) live_before_ = memory_count(device_).live;
  if (tracer_) return tracer_->begin(call);
  if (!plan_) return;
  // A view may look at what only the next call reads.
  const bool wants = call.record != nullptr ||
                     std::any_of(call.pinned.begin(), call.pinned.end(),
                                 [](const ValuePtr& value) { return !value->present(); });
  if (wants) run_planned();
}

void PlanFollower::kernel_begins(const ObservedCall& call) {
  if (tracer_) tracer_->kernel_begins(call);
}

void PlanFollower::kernel_ended(const ObservedCall& call) {
  if (tracer_) tracer_->kernel_ended(call);
}

void PlanFollower::end(const ObservedCall& call) {
  if (!call.record) {
    if (tracer_) tracer_->end(call, print_);
    return;
  }
  if (!tracer_ && !plan_) return;
  print_ = print_behind(print_, call);
  if (plan_) {
    for (const ValuePtr& value : call.fresh) {
      const auto serial = static_cast<size_t>(value->serial);
      if (serial >= by_serial_.size()) by_serial_.resize(serial + 1);
      by_serial_[serial] = value;
    }
    const std::vector<uint64_t>& prints = plan_->trace.prints;
    const bool as_planned = calls_ < prints.size() && prints[calls_] == print_;
    if (as_planned || adopt_another()) {
      followed_.matched = calls_ + 1;
      call.record->measured = plan_->trace.calls[calls_].cost;
      for (const ValuePtr& value : call.fresh) {
        hold_what_outlives(static_cast<int32_t>(value->serial));
      }
    } else {
      stop(calls_ < prints.size()
               ? fmt::format("operation {} ({}) is not the planned one", calls_, call.facts.name)
               : fmt::format("the step goes on behind the {} planned operations", calls_),
           /*record=*/true);
    }
  }
  if (tracer_) tracer_->end(call, print_);
  ++calls_;
}

ValuePtr PlanFollower::value(int32_t serial) const {
  const auto s = static_cast<size_t>(serial);
  return s < by_serial_.size() ? by_serial_[s].lock() : nullptr;
}

// A value that nobody knows any more is not missed.
bool PlanFollower::is_missing(int32_t serial) const {
  const ValuePtr found = value(serial);
  return found && !found->present() && found->can_be_made();
}

void PlanFollower::run_planned() {
  try {
    while (plan_ && next_batch_ <= calls_ && next_batch_ < plan_->trace.calls.size()) {
      run_batch(next_batch_++);
    }
  } catch (const std::exception& error) {
    // The operation can do without.
    stop(fmt::format("before operation {}: {}", calls_, error.what()), /*record=*/false);
  } catch (...) {
    stop(fmt::format("before operation {}: an exception of an unknown kind", calls_), false);
  }
}

// Goes through the re-runs from the last one to the first: a re-run is needed if its results stay, or
// if a later one reads them. Then all actions are done in order.
void PlanFollower::run_batch(size_t call) {
  const std::shared_ptr<const OnlinePlan> plan = plan_;
  const auto batch = plan->before_call(call);
  std::vector<char> needed(batch.size(), 0);
  std::vector<int32_t> wanted;
  for (size_t a = batch.size(); a-- > 0;) {
    if (batch[a].kind != Kind::kRunAgain) continue;
    const auto of = static_cast<size_t>(batch[a].of);
    for (const int32_t serial : plan->trace.made(of)) {
      const bool is_wanted = std::erase(wanted, serial) > 0;
      const bool is_small = plan->trace.values[serial].bytes < smallest_;
      const bool stays = batch[a].stays && !is_small && !is_over_behind(batch, a, serial);
      if ((is_wanted || stays) && is_missing(serial)) needed[a] = 1;
    }
    if (needed[a] == 0) continue;
    for (const int32_t serial : plan->trace.reads(of)) {
      if (is_missing(serial)) wanted.push_back(serial);
    }
  }
  for (size_t a = 0; a < batch.size(); ++a) {
    if (batch[a].kind == Kind::kRelease) {
      release(batch[a]);
    } else {
      for (const int32_t serial : plan->trace.made(static_cast<size_t>(batch[a].of))) {
        queued_[serial] = -1;
      }
      if (needed[a] != 0) run_again(batch, a);
      if (!plan_) return;  // It was given up.
    }
  }
}

void PlanFollower::run_again(std::span<const PlannedAction> batch, size_t action) {
  for (const int32_t serial : plan_->trace.made(static_cast<size_t>(batch[action].of))) {
    if (is_missing(serial)) return remaker_.make(value(serial));
  }
}

bool PlanFollower::is_over_behind(std::span<const PlannedAction> batch, size_t action,
                                  int32_t serial) const {
  const Trace& trace = plan_->trace;
  return std::any_of(batch.begin() + static_cast<std::ptrdiff_t>(action), batch.end(),
                     [&](const PlannedAction& later) {
                       if (later.kind == Kind::kRelease) return later.of == serial;
                       const auto made = trace.made(static_cast<size_t>(later.of));
                       return std::any_of(made.begin(), made.end(), [&](int32_t other) {
                         return trace.values[other].previous == serial;
                       });
                     });
}

void PlanFollower::release(const PlannedAction& action) {
  held_.erase(action.of);
  queue(action.of, action.made_again_at);
}

void PlanFollower::queue(int32_t serial, int32_t made_again_at) {
  const ValuePtr found = value(serial);
  if (!found || found->bytes < smallest_) return;
  queued_[serial] = made_again_at;
  released_.push_back({made_again_at, serial});
  std::push_heap(released_.begin(), released_.end());
}

Value* PlanFollower::next_to_evict() {
  std::vector<Released> pinned;
  Value* next = nullptr;
  while (next == nullptr && !released_.empty()) {
    std::pop_heap(released_.begin(), released_.end());
    const Released entry = released_.back();
    released_.pop_back();
    if (queued_[entry.serial] != entry.made_again_at) continue;
    const ValuePtr found = value(entry.serial);
    if (!found || !found->present() || !found->can_be_made() || found->stays) continue;
    if (found->pins > 0 || found->wanted > 0) {
      pinned.push_back(entry);
    } else {
      next = found.get();
    }
  }
  for (const Released& entry : pinned) {
    released_.push_back(entry);
    std::push_heap(released_.begin(), released_.end());
  }
  return next;
}

std::shared_ptr<const OnlinePlan> PlanFollower::too_small() const {
  if (followed_.given_up) return followed_.given_up;
  return followed_.unplanned_evictions > 0 ? plan_ : nullptr;
}

void PlanFollower::missing(int64_t bytes) {
  if (!plan_) return;
  ++followed_.unplanned_evictions;
  followed_.most_missing = std::max(followed_.most_missing, bytes);
}

bool PlanFollower::give_up() {
  if (!plan_) return false;
  stop(
      fmt::format("before the end of operation {}, the memory of the plan did not suffice", calls_),
      /*record=*/false);
  return true;
}

void PlanFollower::make_room_begins() {
  if (tracer_) tracer_->make_room_begins();
}

void PlanFollower::make_room_ended() {
  if (tracer_) tracer_->make_room_ended();
}

void PlanFollower::hold_what_outlives(int32_t serial) {
  const auto s = static_cast<size_t>(serial);
  if (s >= plan_->outlives.size() || !plan_->outlives[s]) return;
  const ValuePtr found = value(serial);
  if (!found || !found->current) return;
  if (auto home = found->home.lock()) held_[serial] = c10::Storage(std::move(home));
}

// Goes on with another plan whose calls so far are those of the step. What the other plan has
// released by now may be evicted.
bool PlanFollower::adopt_another() {
  const auto fits = [&](const std::shared_ptr<const OnlinePlan>& other) {
    const std::vector<uint64_t>& prints = other->trace.prints;
    return other != plan_ && calls_ < prints.size() && prints[calls_] == print_;
  };
  const auto found = std::find_if(plans_.begin(), plans_.end(), fits);
  if (found == plans_.end()) return false;
  plan_ = *found;
  followed_.planned = plan_->trace.calls.size();
  next_batch_ = calls_ + 1;
  held_.clear();
  released_.clear();
  queued_.assign(plan_->trace.values.size(), -1);
  const auto none = static_cast<int32_t>(-1);
  std::vector<int32_t> gone(plan_->trace.values.size(), none);
  for (uint32_t a = 0; a < plan_->before[next_batch_]; ++a) {
    const PlannedAction& action = plan_->actions[a];
    if (action.kind == Kind::kRelease) {
      gone[action.of] = action.made_again_at;
      continue;
    }
    for (const int32_t serial : plan_->trace.made(static_cast<size_t>(action.of))) {
      gone[serial] = none;
    }
  }
  const size_t values = plan_->trace.calls[calls_].values;
  for (size_t serial = 0; serial < values; ++serial) {
    if (gone[serial] != none) {
      queue(static_cast<int32_t>(serial), gone[serial]);
    } else {
      hold_what_outlives(static_cast<int32_t>(serial));
    }
  }
  return true;
}

void PlanFollower::stop(std::string why_not, bool record) {
  followed_.why_not = std::move(why_not);
  if (record) {
    tracer_.emplace(values_, plan_->trace.first(calls_), smallest_, device_);
  } else {
    followed_.given_up = too_small();
  }
  plan_.reset();
  held_.clear();
  released_.clear();
}

void PlanFollower::finish(int64_t evictions) {
  held_.clear();
  released_.clear();
  if (plan_) {
    // The plan of a longer step may have been followed, which begins in the same way.
    const auto is_this = [&](const std::shared_ptr<const OnlinePlan>& plan) {
      return plan->trace.prints.size() == calls_ && plan->trace.prints.back() == print_;
    };
    const auto found = std::find_if(plans_.begin(), plans_.end(), is_this);
    if (found != plans_.end()) followed_.plan = *found;
  }
  if (followed_.plan) {
    followed_.planned = calls_;
  } else if (plan_) {
    stop(fmt::format("the step ends after {} of {} planned operations", calls_,
                     plan_->trace.calls.size()),
         /*record=*/true);
  }
  followed_.traced = tracer_.has_value();
  if (!tracer_) return;
  followed_.trace = tracer_->finish();
  followed_.trace.evictions = evictions;
  followed_.trace.rerun_cost = remaker_.measured();
  followed_.trace.live_before = std::max<int64_t>(live_before_, 0);
}

}  // namespace reprise::runtime::internal::online
