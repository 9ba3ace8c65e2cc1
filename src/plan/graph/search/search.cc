#include "plan/graph/search/search.h"

#include <algorithm>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "plan/common/by_level.h"

namespace reprise::internal::search {

using common::SearchControl;
using schedule::Early;
using schedule::Keeping;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

double in_turn(std::span<const double> all, size_t turn) { return all[turn % all.size()]; }

// Returns the first `count` schedules, without those that cost the same as the one before.
std::vector<FoundSchedule> distinct(std::vector<FoundSchedule> all, size_t count) {
  std::vector<FoundSchedule> some;
  for (FoundSchedule& found : all) {
    if (some.size() == count) break;
    const auto same = [&](const FoundSchedule& other) {
      return other.time == found.time && other.peak == found.peak;
    };
    if (some.empty() || !same(some.back())) some.push_back(std::move(found));
  }
  return some;
}

}  // namespace

GraphSearch::GraphSearch(const ScheduleModel& model, int64_t budget, int threads,
                         SearchControl& control, const SearchParams& params)
    : params_(params),
      model_(model),
      moves_(model),
      budget_(budget),
      threads_(moves_.intervals.size() < params.intervals_for_threads
                   ? 1
                   : static_cast<size_t>(threads)),
      control_(control) {
  const size_t intervals = moves_.intervals.size();
  const size_t several = is_large() ? params_.walkers_of_large : params_.walkers;
  const size_t count = intervals < params_.small_graph ? 1 : several;
  while (walkers_.size() < count) {
    walkers_.push_back(std::make_unique<Annealer>(model_, moves_, budget_, params_));
  }
  walkers_.front()->start(++seed_);
  const std::optional<FoundSchedule> plain = walkers_.front()->walk(model.keep_all());
  collect(*walkers_.front(), true);
  rate_ = std::max(
      1e-9, moves_.total_rerun_time / static_cast<double>(std::max<int64_t>(1, plain->peak)));
}

// Calls work(k) for each walker k.
void GraphSearch::in_parallel(size_t count, const std::function<void(size_t)>& work) {
  const size_t threads = std::min(count, std::max<size_t>(1, threads_));
  if (count == 0) return;
  common::for_each_by_level(
      {count}, static_cast<int>(threads), [&](int, size_t k) { work(k); },
      [](size_t) { return true; });
}

void GraphSearch::collect(const Annealer& walker, bool counts_as_smallest) {
  const auto speed = [](const FoundSchedule& f) { return std::tie(f.time, f.run_count); };
  const auto size = [](const FoundSchedule& f) { return std::tie(f.peak, f.time); };
  if (walker.best() && (!best_ || speed(*walker.best()) < speed(*best_))) best_ = walker.best();
  if (!counts_as_smallest || !walker.smallest()) return;
  if (!smallest_ || size(*walker.smallest()) < size(*smallest_)) smallest_ = walker.smallest();
}

void GraphSearch::repair(const std::vector<Schedule>& schedules, bool counts_as_smallest,
                         const SearchControl& control) {
  control_.report(-1);
  const SearchControl& limit = best_ ? control : control_;
  const bool gives_up = params_.use.hopeless && best_;
  const int64_t hopeless = gives_up ? best_->time + best_->time / params_.hopeless : INT64_MAX;
  std::vector<std::optional<FoundSchedule>> found(schedules.size());
  for (const auto& walker : walkers_) walker->start(++seed_);
  const size_t walkers = std::min(walkers_.size(), schedules.size());
  in_parallel(walkers, [&](size_t w) {
    for (size_t k = w; k < schedules.size(); k += walkers) {
      found[k] = walkers_[w]->repair(schedules[k], rate_, hopeless, limit);
    }
  });
  for (size_t w = 0; w < walkers; ++w) collect(*walkers_[w], counts_as_smallest);
  for (std::optional<FoundSchedule>& start : found) {
    if (!start) continue;
    if (counts_as_smallest) small_.push_back(*start);
    starts_.push_back(std::move(*start));
  }
}

std::vector<FoundSchedule> GraphSearch::walk(const std::vector<Schedule>& schedules) {
  std::vector<std::optional<FoundSchedule>> found(schedules.size());
  for (const auto& walker : walkers_) walker->start(++seed_);
  in_parallel(walkers_.size(), [&](size_t w) {
    for (size_t k = w; k < schedules.size(); k += walkers_.size()) {
      if (!control_.out_of_time()) found[k] = walkers_[w]->walk(schedules[k]);
    }
  });
  for (const auto& walker : walkers_) collect(*walker, true);
  std::vector<FoundSchedule> walked;
  for (std::optional<FoundSchedule>& one : found) {
    if (one) walked.push_back(*std::move(one));
  }
  return walked;
}

void GraphSearch::consider(const std::vector<Schedule>& schedules, const SearchControl& control) {
  if (!params_.use.most_promising || !is_large()) return repair(schedules, true, control);
  // A repair takes many walks. So of a large graph only the most promising schedules are repaired.
  std::vector<FoundSchedule> found = walk(schedules);
  std::ranges::stable_sort(found, {}, [&](const FoundSchedule& one) { return rank(one); });
  std::vector<Schedule> promising;
  for (size_t k = 0; k < std::min(found.size(), params_.repairs); ++k) {
    promising.push_back(std::move(found[k].schedule));
  }
  consider_for_budget(promising, control);
}

bool GraphSearch::is_near(int64_t bound) const {
  if (!params_.use.stop_near) return false;
  const int64_t part = bound / (is_large() ? params_.near_of_large : params_.near);
  return walkers_.size() > 1 && best_ && best_->time - bound <= part;
}

bool GraphSearch::is_within(int64_t bound, int64_t part) const {
  return params_.use.stop_near && walkers_.size() > 1 && best_->time - bound < bound / part;
}

// Returns whether a round brought enough: of a small graph anything, otherwise more than a small
// share.
bool GraphSearch::gains(int64_t before, int64_t after) const {
  return walkers_.size() > 1 ? before - after > before / params_.near : after < before;
}

// Orders schedules, of which some may be too large: the time, and a price for the bytes above the
// budget.
double GraphSearch::rank(const FoundSchedule& found) const {
  const auto over = static_cast<double>(std::max<int64_t>(0, found.peak - budget_));
  return static_cast<double>(found.time) + std::max(price_, price_of_excess()) * over;
}

// Near the smallest budget a byte is worth more than elsewhere. The price becomes so high that the
// best plan ranks before the schedules that are too large.
void GraphSearch::raise_price(const std::vector<FoundSchedule>& pool) {
  price_ = price_of_excess();
  if (!params_.use.raised_price) return;
  for (const FoundSchedule& found : pool) {
    if (found.peak <= budget_ || found.time >= best_->time) continue;
    const auto gain = static_cast<double>(best_->time - found.time);
    const double price = params_.above_gain * gain / static_cast<double>(found.peak - budget_);
    price_ = std::max(price_, std::min(price, params_.largest_price * rate_));
  }
}

void GraphSearch::consider_for_budget(const std::vector<Schedule>& schedules,
                                      const SearchControl& control) {
  repair(schedules, false, control);
}

std::vector<Run> GraphSearch::runs_of_best() const {
  ScheduleLedger ledger(model_);
  ledger.assign(best_->schedule);
  return ledger.runs();
}

Bytes GraphSearch::memory() const {
  size_t bytes = 0;
  const auto add = [&](const FoundSchedule& found) {
    const Schedule& schedule = found.schedule;
    bytes += schedule.intervals.capacity() * sizeof(Keeping) +
             (2 * schedule.variant.capacity() + schedule.realization.capacity()) * 4 +
             schedule.early.capacity() * sizeof(Early);
  };
  for (const FoundSchedule& start : starts_) add(start);
  if (best_) add(*best_);
  if (smallest_) add(*smallest_);
  return Bytes(static_cast<int64_t>(bytes));
}

// Returns the number of rounds without a gain after which a search gives up.
int64_t GraphSearch::patience() const {
  if (is_large()) return params_.patience_of_large;
  if (walkers_.size() > 1) return params_.patience;
  const auto intervals = static_cast<int64_t>(moves_.intervals.size());
  return std::clamp(intervals / params_.intervals_per_patience, params_.least_patience_of_small,
                    params_.most_patience_of_small);
}

int64_t GraphSearch::steps_of_a_round() const {
  const auto intervals = static_cast<int64_t>(moves_.intervals.size());
  if (walkers_.size() > 1) {
    return std::clamp(params_.steps_per_interval * intervals, params_.least_steps,
                      params_.most_steps);
  }
  return std::max(params_.least_steps_of_small, params_.steps_of_small * intervals * intervals);
}

void GraphSearch::shrink(int64_t least_peak, const SearchControl& control) {
  if (best_ || !params_.use.shrink) return;
  const int64_t steps = std::min(steps_of_a_round(), params_.most_steps_to_shrink);
  const int64_t most_idle = least_peak > budget_
                                ? std::min(params_.patience_without_hope, patience())
                                : params_.patience_to_shrink * patience();
  seed_ = 1000;
  std::stable_sort(small_.begin(), small_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.peak, a.time) < std::tie(b.peak, b.time);
  });
  for (int64_t round = 0, idle = 0; idle < most_idle && !best_; ++round) {
    if (control.out_of_time() || smallest_->peak <= least_peak) return;
    control_.report(-1);
    const FoundSchedule before = *smallest_;
    for (const auto& walker : walkers_) walker->start(++seed_);
    in_parallel(walkers_.size(), [&](size_t w) {
      // Even walkers take the smallest schedule so far, odd ones the other starts in turn.
      const size_t turn = (w + walkers_.size() * static_cast<size_t>(round)) / 2;
      const bool other = w % 2 == 1 && !small_.empty();
      const FoundSchedule& from = other ? small_[turn % small_.size()] : before;
      const SearchGoal goal{params_.time_in_shrink / std::max(rate_, 1e-9), 1, 0, 0};
      const double share = other || round == 0 ? params_.heat_of_others
                           : w == 0            ? params_.heat_of_first_walker
                                               : params_.heat_of_other_walkers;
      const double hot = share * static_cast<double>(from.peak);
      walkers_[w]->anneal(from.schedule, {goal, hot, steps, true, 0}, control);
    });
    for (const auto& walker : walkers_) collect(*walker, true);
    idle = smallest_->peak < before.peak ? 0 : idle + 1;
  }
}

SearchGoal GraphSearch::goal_of(double price) const {
  return {1, price, budget_, params_.price_of_others()};
}

// The mean time of an op.
double GraphSearch::mean_time() const {
  const FoundSchedule& some = best_ ? *best_ : *smallest_;
  return std::max(1.0, static_cast<double>(some.time) / static_cast<double>(model_.plain().size()));
}

// Gives each walker one turn. The turns take the first `used` schedules of the pool one after the
// other.
void GraphSearch::anneal_some(const std::vector<FoundSchedule>& pool, size_t used, Turn turn_of,
                              int64_t bound, std::vector<FoundSchedule>& found) {
  const auto [round, first, course] = turn_of;
  control_.report(-1);
  const double mean = mean_time();
  const auto intervals = static_cast<double>(moves_.intervals.size());
  const size_t count = std::min(walkers_.size(), found.size() - first);
  const int64_t steps = (steps_of_a_round() << course) >>
                        (params_.short_rounds - std::min(round, params_.short_rounds));
  for (size_t w = 0; w < count; ++w) walkers_[w]->start(++seed_);
  in_parallel(count, [&](size_t w) {
    const size_t turn = first + w;
    const SearchGoal goal = goal_of(price_ * in_turn(params_.weights, round + turn));
    // With few steps for many intervals, a hot start would undo more than the steps could make
    // good.
    const double enough = static_cast<double>(steps) / (params_.steps_for_heat * intervals);
    const double hotter = static_cast<double>(1 << course);
    const double heat =
        hotter * (round == 0 ? params_.heat_of_first_round : in_turn(params_.heat, round + turn)) *
        std::min(1.0, enough);
    const FoundSchedule& from = pool[turn % used];
    walkers_[w]->anneal(from.schedule, {goal, mean * heat, steps, false, bound, &pool}, control_);
    found[turn] = walkers_[w]->best() ? *walkers_[w]->best() : from;
  });
  for (size_t w = 0; w < count; ++w) collect(*walkers_[w], true);
}

void GraphSearch::fit(int64_t bound) {
  if (!params_.use.fit || (best_ && is_near(bound))) return;
  std::stable_sort(starts_.begin(), starts_.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  starts_ = distinct(std::move(starts_), params_.pool);
  const double mean = mean_time();
  for (size_t first = 0; first < starts_.size(); first += walkers_.size()) {
    if (control_.out_of_time()) return;
    control_.report(-1);
    const size_t count = std::min(walkers_.size(), starts_.size() - first);
    for (size_t w = 0; w < count; ++w) walkers_[w]->start(++seed_);
    in_parallel(count, [&](size_t w) {
      FoundSchedule& from = starts_[first + w];
      if (from.peak <= budget_) return;
      const SearchGoal goal = goal_of(params_.price_to_fit * rate_);
      const double hot = params_.heat_to_fit * mean;
      walkers_[w]->anneal(from.schedule, {goal, hot, params_.steps_to_fit, true, bound}, control_);
      if (walkers_[w]->best()) from = *walkers_[w]->best();
    });
    for (size_t w = 0; w < count; ++w) collect(*walkers_[w], false);
  }
}

// Anneals in rounds, from these schedules, until several rounds in a row bring nothing.
void GraphSearch::run_course(std::vector<FoundSchedule> pool, int course, int64_t bound) {
  const auto better = [&](const FoundSchedule& a, const FoundSchedule& b) {
    return rank(a) < rank(b);
  };
  const auto sort = [&] {
    raise_price(pool);
    std::stable_sort(pool.begin(), pool.end(), better);
    pool = distinct(std::move(pool), params_.pool);
  };
  const auto fastest = [&] {
    int64_t time = std::numeric_limits<int64_t>::max();
    for (const FoundSchedule& found : pool) {
      if (found.peak <= budget_) time = std::min(time, found.time);
    }
    return time;
  };
  sort();
  int64_t idle = 0;
  for (size_t round = 0; idle < patience(); ++round) {
    // Near the bound there is little left to gain.
    if (idle == 2 && is_within(bound, params_.close)) return;
    if (control_.out_of_time() || best_->time <= bound || is_near(bound)) return;
    const int64_t before = fastest();
    // The first round takes all schedules of the pool, the next one half of them, and so on. The
    // last rounds take the best one alone.
    const size_t used =
        std::clamp<size_t>(params_.pool >> std::min<size_t>(round, 63), 1, pool.size());
    const size_t turns = std::max(walkers_.size(), used);
    std::vector<FoundSchedule> found(turns);
    for (size_t first = 0; first < turns; first += walkers_.size()) {
      anneal_some(pool, used, {round, first, course}, bound, found);
    }
    pool.insert(pool.end(), found.begin(), found.end());
    sort();
    idle = gains(before, fastest()) || round < params_.short_rounds ? 0 : idle + 1;
  }
}

void GraphSearch::improve(int64_t bound) {
  if (!best_ || !params_.use.improve) return;
  starts_.push_back(*best_);
  const std::vector<FoundSchedule> starts = std::move(starts_);
  const bool has_more = params_.use.later_courses && walkers_.size() > 1 && !is_large();
  // No course knows what the others found. Those after the first are twice and four times as long,
  // in turn.
  for (int course = 0, idle = 0; idle < params_.idle_courses; ++course) {
    const int64_t before = best_->time;
    run_course(starts, course == 0 ? 0 : 2 - course % 2, bound);
    if (!has_more || control_.out_of_time() || is_within(bound, params_.close_enough)) return;
    if (course > 0) idle = gains(before, best_->time) ? 0 : idle + 1;
  }
}

}  // namespace reprise::internal::search
