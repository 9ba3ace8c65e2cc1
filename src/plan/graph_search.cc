#include "plan/graph_search.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

namespace reprise::internal {
namespace {

constexpr size_t kWalkers = 4;       // of a graph that is not small
constexpr size_t kSmallGraph = 100;  // gaps

// Fewer steps of fewer gaps are done before a thread has started.
constexpr size_t kGapsForThreads = 200;

}  // namespace

GraphSearch::GraphSearch(const ScheduleModel& model, int64_t budget, int threads,
                         SearchControl& control)
    : model_(model),
      moves_(model),
      budget_(budget),
      threads_(moves_.gaps.size() < kGapsForThreads ? 1 : static_cast<size_t>(threads)),
      control_(control) {
  const size_t count = moves_.gaps.size() < kSmallGraph ? 1 : kWalkers;
  while (walkers_.size() < count) {
    walkers_.push_back(std::make_unique<Annealer>(model_, moves_, budget_));
  }
  consider({model.keep_all()});
  rate_ = std::max(1e-9, moves_.replays /
                             static_cast<double>(std::max<int64_t>(1, starts_.front().peak)));
}

// The work of each walker; the walkers of one thread one after the other.
void GraphSearch::in_parallel(size_t count, const std::function<void(size_t)>& work) {
  const size_t threads = std::min(count, std::max<size_t>(1, threads_));
  const auto share = [&](size_t thread) {
    for (size_t k = thread; k < count; k += threads) work(k);
  };
  std::vector<std::jthread> others;
  for (size_t t = 1; t < threads; ++t) others.emplace_back(share, t);
  share(0);
}

void GraphSearch::collect(const Annealer& walker, bool counts_as_smallest) {
  const auto speed = [](const FoundSchedule& f) { return std::tie(f.time, f.run_count); };
  const auto size = [](const FoundSchedule& f) { return std::tie(f.peak, f.time); };
  if (walker.best() && (!best_ || speed(*walker.best()) < speed(*best_))) best_ = walker.best();
  if (!counts_as_smallest || !walker.smallest()) return;
  if (!smallest_ || size(*walker.smallest()) < size(*smallest_)) smallest_ = walker.smallest();
}

void GraphSearch::consider(const std::vector<Schedule>& schedules, bool counts_as_smallest) {
  control_.report(-1);
  std::vector<std::optional<FoundSchedule>> found(schedules.size());
  for (const auto& walker : walkers_) walker->start(++seed_);
  const size_t walkers = std::min(walkers_.size(), schedules.size());
  in_parallel(walkers, [&](size_t w) {
    for (size_t k = w; k < schedules.size(); k += walkers) {
      found[k] = walkers_[w]->repair(schedules[k], rate_, control_);
    }
  });
  for (size_t w = 0; w < walkers; ++w) collect(*walkers_[w], counts_as_smallest);
  for (std::optional<FoundSchedule>& start : found) {
    if (start) starts_.push_back(std::move(*start));
  }
}

void GraphSearch::consider(const std::vector<Schedule>& schedules) { consider(schedules, true); }

void GraphSearch::consider_for_budget(const std::vector<Schedule>& schedules) {
  consider(schedules, false);
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
    bytes += schedule.gaps.capacity() * sizeof(Keeping) +
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
  if (walkers_.size() > 1) return 6;
  return std::clamp<int64_t>(static_cast<int64_t>(moves_.gaps.size()) / 4, 8, 40);
}

int64_t GraphSearch::steps_of_a_round() const {
  const auto gaps = static_cast<int64_t>(moves_.gaps.size());
  if (walkers_.size() > 1) return std::max<int64_t>(20'000, 20 * gaps);
  return std::max<int64_t>(500, 4 * gaps * gaps);
}

void GraphSearch::shrink(bool hopeless) {
  if (best_) return;
  const int64_t steps = std::min<int64_t>(steps_of_a_round(), 20'000);
  const int64_t most_idle = hopeless ? 3 : patience();
  seed_ = 1000;
  for (int64_t round = 0, idle = 0; idle < most_idle && !best_ && !control_.out_of_time();
       ++round) {
    control_.report(-1);
    const FoundSchedule from = *smallest_;
    const double hot = (round == 0 ? 0.05 : 0.02) * static_cast<double>(from.peak);
    for (const auto& walker : walkers_) walker->start(++seed_);
    in_parallel(walkers_.size(), [&](size_t w) {
      const SearchGoal goal{0.01 / std::max(rate_, 1e-9), 1, 0};
      const double own = hot / static_cast<double>(1 + 2 * w);
      walkers_[w]->anneal(from.schedule, {goal, own, steps, true, 0}, control_);
    });
    for (const auto& walker : walkers_) collect(*walker, true);
    idle = smallest_->peak < from.peak ? 0 : idle + 1;
  }
}

void GraphSearch::improve(int64_t bound) {
  if (!best_) return;
  starts_.push_back(*best_);
  const auto rank = [&](const FoundSchedule& found) {
    const auto over = static_cast<double>(std::max<int64_t>(0, found.peak - budget_));
    return static_cast<double>(found.time) + 4 * rate_ * over;
  };
  std::stable_sort(
      starts_.begin(), starts_.end(),
      [&](const FoundSchedule& a, const FoundSchedule& b) { return rank(a) < rank(b); });
  const double runs = static_cast<double>(model_.plain().size());
  const double mean = std::max(1.0, static_cast<double>(best_->time) / runs);
  const size_t walkers = walkers_.size();
  // The best starts, then what is best so far, now and then another start.
  int64_t idle = 0;
  for (size_t round = 0; idle < patience(); ++round) {
    if (control_.out_of_time() || best_->time <= bound) return;
    control_.report(-1);
    const FoundSchedule before = *best_;
    for (const auto& walker : walkers_) walker->start(++seed_);
    in_parallel(walkers, [&](size_t w) {
      const size_t turn = round * walkers + w;
      const bool first = turn < std::min<size_t>(4, starts_.size());
      const bool fresh = first || turn % 4 == 3;
      const Schedule& from = fresh ? starts_[turn % starts_.size()].schedule : before.schedule;
      constexpr double kWeights[] = {4, 2, 8};
      const SearchGoal goal{1, rate_ * kWeights[turn % 3], budget_};
      const double hot = mean * (fresh ? 2 : turn % 2 == 0 ? 0.3 : 1);
      walkers_[w]->anneal(from, {goal, hot, steps_of_a_round(), false, bound}, control_);
    });
    for (const auto& walker : walkers_) collect(*walker, true);
    idle = best_->time < before.time ? 0 : idle + 1;
  }
}

}  // namespace reprise::internal
