#include "plan/graph/search/search.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

namespace reprise::internal::search {

using common::SearchControl;
using schedule::Early;
using schedule::Keeping;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

constexpr size_t kPool = 8;          // schedules that are annealed first
constexpr size_t kWalkers = 4;       // of a graph that is not small
constexpr size_t kSmallGraph = 100;  // intervals
constexpr size_t kLargeGraph = 5000;
constexpr size_t kRepairs = 4;    // of a large graph
constexpr int64_t kHopeless = 2;  // a repair ends that takes such a part more than the best plan
// What is less than such a part of the time is not worth more effort; the second of a large graph.
constexpr int64_t kNear = 10'000, kNearOfLarge = 2'000;
constexpr int64_t kMostSteps = 40'000;  // of a round
constexpr size_t kShortRounds = 3;      // the first ones: an eighth of the steps, a quarter, a half
// Within such a part of the bound two idle rounds are enough; no other course follows.
constexpr int64_t kClose = 500, kCloseEnough = 200;
constexpr int kIdleCourses = 3;                      // in a row: the search is over
constexpr double kAbove = 1.1, kLargestPrice = 256;  // in raise_price()
constexpr int64_t kStepsToFit = 4'000;
constexpr double kFitWeight = 32, kFitHeat = 1;  // in fit()

// Fewer steps of fewer intervals are done before a thread has started.
constexpr size_t kIntervalsForThreads = 200;

// The first `count` that differ from the one before.
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
                         SearchControl& control)
    : model_(model),
      moves_(model),
      budget_(budget),
      threads_(moves_.intervals.size() < kIntervalsForThreads ? 1 : static_cast<size_t>(threads)),
      control_(control) {
  const size_t intervals = moves_.intervals.size();
  const size_t count = intervals < kSmallGraph ? 1 : intervals < kLargeGraph ? kWalkers : 2;
  while (walkers_.size() < count) {
    walkers_.push_back(std::make_unique<Annealer>(model_, moves_, budget_));
  }
  walkers_.front()->start(++seed_);
  const std::optional<FoundSchedule> plain = walkers_.front()->walk(model.keep_all());
  collect(*walkers_.front(), true);
  rate_ = std::max(1e-9, moves_.total_rerun_time / static_cast<double>(std::max<int64_t>(1, plain->peak)));
}

// The work of each walker; the walkers of one thread one after the other.
void GraphSearch::in_parallel(size_t count, const std::function<void(size_t)>& work) {
  const size_t threads = std::min(count, std::max<size_t>(1, threads_));
  std::vector<std::exception_ptr> failures(threads);
  const auto share = [&](size_t thread) {
    try {
      for (size_t k = thread; k < count; k += threads) work(k);
    } catch (...) {
      failures[thread] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    size_t started = 1;
    try {
      for (; started < threads; ++started) others.emplace_back(share, started);
    } catch (...) {
      // No more threads, or no memory for one: their shares are done here.
      for (size_t t = started; t < threads; ++t) share(t);
    }
    share(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
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
  const int64_t hopeless = best_ ? best_->time + best_->time / kHopeless : INT64_MAX;
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

void GraphSearch::consider(const std::vector<Schedule>& schedules, const SearchControl& control) {
  if (moves_.intervals.size() < kLargeGraph) return repair(schedules, true, control);
  // A repair takes many walks: of a large graph the most promising only.
  std::vector<std::optional<FoundSchedule>> found(schedules.size());
  for (const auto& walker : walkers_) walker->start(++seed_);
  in_parallel(walkers_.size(), [&](size_t w) {
    for (size_t k = w; k < schedules.size(); k += walkers_.size()) {
      if (!control_.out_of_time()) found[k] = walkers_[w]->walk(schedules[k]);
    }
  });
  for (const auto& walker : walkers_) collect(*walker, true);
  std::erase_if(found, [](const auto& start) { return !start; });
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return rank(*a) < rank(*b); });
  std::vector<Schedule> promising;
  for (size_t k = 0; k < std::min(found.size(), kRepairs); ++k) {
    promising.push_back(std::move(found[k]->schedule));
  }
  consider_for_budget(promising, control);
}

bool GraphSearch::is_near(int64_t bound) const {
  const bool large = moves_.intervals.size() >= kLargeGraph;
  const int64_t part = bound / (large ? kNearOfLarge : kNear);
  return walkers_.size() > 1 && best_ && best_->time - bound <= part;
}

bool GraphSearch::is_within(int64_t bound, int64_t part) const {
  return walkers_.size() > 1 && best_->time - bound < bound / part;
}

// Whether a round was worth its while.
bool GraphSearch::gains(int64_t before, int64_t after) const {
  return walkers_.size() > 1 ? before - after > before / kNear : after < before;
}

// Of schedules that may be too large.
double GraphSearch::rank(const FoundSchedule& found) const {
  const auto over = static_cast<double>(std::max<int64_t>(0, found.peak - budget_));
  return static_cast<double>(found.time) + std::max(price_, 4 * rate_) * over;
}

// Near the smallest budget a byte is worth more than elsewhere: so much that the best plan is no
// worse than the schedules that are too large.
void GraphSearch::raise_price(const std::vector<FoundSchedule>& pool) {
  price_ = 4 * rate_;
  for (const FoundSchedule& found : pool) {
    if (found.peak <= budget_ || found.time >= best_->time) continue;
    const auto gain = static_cast<double>(best_->time - found.time);
    const double price = kAbove * gain / static_cast<double>(found.peak - budget_);
    price_ = std::max(price_, std::min(price, kLargestPrice * rate_));
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

// Rounds that bring nothing, before a search gives up.
int64_t GraphSearch::patience() const {
  if (moves_.intervals.size() >= kLargeGraph) return 1;
  if (walkers_.size() > 1) return 3;
  return std::clamp<int64_t>(static_cast<int64_t>(moves_.intervals.size()) / 4, 8, 40);
}

int64_t GraphSearch::steps_of_a_round() const {
  const auto intervals = static_cast<int64_t>(moves_.intervals.size());
  if (walkers_.size() > 1) return std::clamp<int64_t>(20 * intervals, 20'000, kMostSteps);
  return std::max<int64_t>(500, 4 * intervals * intervals);
}

void GraphSearch::shrink(int64_t least_peak, const SearchControl& control) {
  if (best_) return;
  const int64_t steps = std::min<int64_t>(steps_of_a_round(), 20'000);
  const int64_t most_idle =
      least_peak > budget_ ? std::min<int64_t>(3, patience()) : 2 * patience();
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
      // The smallest so far, and other starts in turn.
      const size_t turn = (w + walkers_.size() * static_cast<size_t>(round)) / 2;
      const bool other = w % 2 == 1 && !small_.empty();
      const FoundSchedule& from = other ? small_[turn % small_.size()] : before;
      const SearchGoal goal{0.01 / std::max(rate_, 1e-9), 1, 0, 0};
      const double share = other || round == 0 ? 0.05 : w == 0 ? 0.02 : 0.005;
      const double hot = share * static_cast<double>(from.peak);
      walkers_[w]->anneal(from.schedule, {goal, hot, steps, true, 0}, control);
    });
    for (const auto& walker : walkers_) collect(*walker, true);
    idle = smallest_->peak < before.peak ? 0 : idle + 1;
  }
}

// Of an op.
double GraphSearch::mean_time() const {
  const FoundSchedule& some = best_ ? *best_ : *smallest_;
  return std::max(1.0, static_cast<double>(some.time) / static_cast<double>(model_.plain().size()));
}

// One turn of each walker, from the first `used` schedules of the pool in turn.
void GraphSearch::anneal_some(const std::vector<FoundSchedule>& pool, size_t used, Turn turn_of,
                              int64_t bound, std::vector<FoundSchedule>& found) {
  const auto [round, first, course] = turn_of;
  control_.report(-1);
  const double mean = mean_time();
  const auto intervals = static_cast<double>(moves_.intervals.size());
  const size_t count = std::min(walkers_.size(), found.size() - first);
  const int64_t steps =
      (steps_of_a_round() << course) >> (kShortRounds - std::min(round, kShortRounds));
  for (size_t w = 0; w < count; ++w) walkers_[w]->start(++seed_);
  in_parallel(count, [&](size_t w) {
    constexpr double kWeights[] = {1, 0.5, 2};
    constexpr double kHeat[] = {0.3, 1, 0.6, 2};
    const size_t turn = first + w;
    const SearchGoal goal{1, price_ * kWeights[(round + turn) % 3], budget_};
    // Few steps for many intervals would undo more than they could make good.
    const double enough = static_cast<double>(steps) / (20.0 * intervals);
    const double hotter = static_cast<double>(1 << course);
    const double heat =
        hotter * (round == 0 ? 2 : kHeat[(round + turn) % 4]) * std::min(1.0, enough);
    const FoundSchedule& from = pool[turn % used];
    walkers_[w]->anneal(from.schedule, {goal, mean * heat, steps, false, bound, &pool}, control_);
    found[turn] = walkers_[w]->best() ? *walkers_[w]->best() : from;
  });
  for (size_t w = 0; w < count; ++w) collect(*walkers_[w], true);
}

void GraphSearch::fit(int64_t bound) {
  if (best_ && is_near(bound)) return;
  std::stable_sort(starts_.begin(), starts_.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  starts_ = distinct(std::move(starts_), kPool);
  const double mean = mean_time();
  for (size_t first = 0; first < starts_.size(); first += walkers_.size()) {
    if (control_.out_of_time()) return;
    control_.report(-1);
    const size_t count = std::min(walkers_.size(), starts_.size() - first);
    for (size_t w = 0; w < count; ++w) walkers_[w]->start(++seed_);
    in_parallel(count, [&](size_t w) {
      FoundSchedule& from = starts_[first + w];
      if (from.peak <= budget_) return;
      const SearchGoal goal{1, kFitWeight * rate_, budget_};
      walkers_[w]->anneal(from.schedule, {goal, kFitHeat * mean, kStepsToFit, true, bound},
                          control_);
      if (walkers_[w]->best()) from = *walkers_[w]->best();
    });
    for (size_t w = 0; w < count; ++w) collect(*walkers_[w], false);
  }
}

// Rounds from these schedules until some in a row bring nothing.
void GraphSearch::run_course(std::vector<FoundSchedule> pool, int course, int64_t bound) {
  const auto better = [&](const FoundSchedule& a, const FoundSchedule& b) {
    return rank(a) < rank(b);
  };
  const auto sort = [&] {
    raise_price(pool);
    std::stable_sort(pool.begin(), pool.end(), better);
    pool = distinct(std::move(pool), kPool);
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
    // The nearer the bound, the less is to be had.
    if (idle == 2 && is_within(bound, kClose)) return;
    if (control_.out_of_time() || best_->time <= bound || is_near(bound)) return;
    const int64_t before = fastest();
    // Each of the pool, then half of them, and so on; in the end the best alone.
    const size_t used = std::clamp<size_t>(kPool >> round, 1, pool.size());
    const size_t turns = std::max(walkers_.size(), used);
    std::vector<FoundSchedule> found(turns);
    for (size_t first = 0; first < turns; first += walkers_.size()) {
      anneal_some(pool, used, {round, first, course}, bound, found);
    }
    pool.insert(pool.end(), found.begin(), found.end());
    sort();
    idle = gains(before, fastest()) || round < kShortRounds ? 0 : idle + 1;
  }
}

void GraphSearch::improve(int64_t bound) {
  if (!best_) return;
  starts_.push_back(*best_);
  const std::vector<FoundSchedule> starts = std::move(starts_);
  const bool has_more = walkers_.size() > 1 && moves_.intervals.size() < kLargeGraph;
  // None knows what the others found. Behind the first one they are twice and four times as long, in turn.
  for (int course = 0, idle = 0; idle < kIdleCourses; ++course) {
    const int64_t before = best_->time;
    run_course(starts, course == 0 ? 0 : 2 - course % 2, bound);
    if (!has_more || control_.out_of_time() || is_within(bound, kCloseEnough)) return;
    if (course > 0) idle = gains(before, best_->time) ? 0 : idle + 1;
  }
}

}  // namespace reprise::internal::search
