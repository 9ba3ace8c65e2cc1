// A Search looks for the best plan from several starts: a walk from each of them (anneal.h), then
// rounds of walks from the best ones. The planners of this room differ in what a plan is made from,
// in their starts, and in the changes of their walks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/search_control.h"
#include "plan/place/anneal.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::place {

// Rules say what a search does with its evaluations and its time, in shares of them.
struct Rules {
  int64_t evaluations = 0;
  int64_t floor = 0;             // a time that no plan beats
  double moving = 0.1;           // for plans that make nothing again
  bool again = true;             // false: all plans are such ones
  double looks = 0.4;            // for a look at every start
  double round = 0.6;            // for each round
  size_t finalists = 2;          // candidates of a round; every second one has a start, too
  size_t most_rounds = SIZE_MAX;
  size_t patience = 3;           // rounds that bring next to nothing, until the search ends
  size_t far_patience = 3;       // the same, while the best plan is above the floor by 1 %
  int64_t gain = INT64_MAX;      // a gain that is a smaller part of the time counts as none
  std::vector<double> tolerances = {1};  // of the rounds in turn; the first one is of the looks
  uint64_t seed = 1;
  int threads = 1;
};

template <class State>
class Search {
 public:
  using Candidate = place::Candidate<State>;
  using Improve = std::function<Candidate(Candidate, const WalkLimits&)>;

  // All references must outlive the search. `improve` is called on several threads if the rules
  // say so.
  Search(common::SearchControl& control, Improve improve)
      : control_(control), improve_(std::move(improve)) {}

  // Returns the best candidate so far. If it does not fit, none did.
  const std::optional<Candidate>& best() const { return best_; }
  bool fits() const { return best_ && best_->cost.fits(); }
  // Returns whether time is up, or the best plan takes no longer than the floor.
  bool done(int64_t floor) const {
    return control_.out_of_time() || (fits() && best_->cost.time <= floor);
  }

  void consider(const Candidate& candidate) {
    if (!best_ || candidate < *best_) best_ = candidate;
  }
  // Takes a start.
  void add(Candidate start) {
    consider(start);
    pool_.push_back(std::move(start));
  }
  // Forgets all starts but the best ones.
  void keep_best(size_t most) {
    std::stable_sort(pool_.begin(), pool_.end());
    while (pool_.size() > most) pool_.pop_back();
  }

  // Improves the starts. The same starts and rules give the same result with any number of threads,
  // unless time is up.
  void run(const Rules& rules) {
    if (pool_.empty() || done(rules.floor)) return;
    seed_ = rules.seed;
    if (rules.moving > 0) {
      std::vector<Candidate> moving{pool_.front()};
      improve(moving, rules, {rules.moving, rules.moving, rules.tolerances.front(), false});
    }
    if (done(rules.floor)) return;
    const std::vector<Candidate> starts = pool_;
    improve(pool_, rules, {rules.looks, rules.looks, rules.tolerances.front(), rules.again});
    keep_best(pool_.size());
    for (size_t round = 0, idle = 0; round < rules.most_rounds; ++round) {
      if (idle >= patience(rules) || done(rules.floor)) return;
      const PlanCost before = pool_.front().cost;
      std::vector<Candidate> some = finalists(rules.finalists);
      if (round % 2 == 1) some.push_back(starts[round / 2 % starts.size()]);
      const double tolerance = rules.tolerances[round % rules.tolerances.size()];
      improve(some, rules, {rules.round, 1, tolerance, rules.again});
      std::move(some.begin(), some.end(), std::back_inserter(pool_));
      keep_best(kPool);
      idle = gains(before, pool_.front().cost, rules.gain) ? 0 : idle + 1;
    }
  }

 private:
  static constexpr size_t kPool = 8;    // candidates that are kept between rounds
  static constexpr int64_t kFar = 100;  // as a part of the floor

  struct Turn {
    double evaluations, time;  // shares of all evaluations, and of the time that is left
    double tolerance;
    bool again;
  };

  // Improves all of these at once.
  void improve(std::vector<Candidate>& candidates, const Rules& rules, const Turn& turn) {
    const size_t count = candidates.size();
    const auto threads = std::min(count, static_cast<size_t>(rules.threads));
    const common::SearchControl part = control_.part(turn.time);
    const size_t turns = (count + threads - 1) / threads;
    const uint64_t seed = std::exchange(seed_, seed_ + count);
    common::for_each_by_level(
        {count}, static_cast<int>(threads),
        [&](int thread, size_t c) {
          const auto left = static_cast<double>(turns - c / threads);
          const WalkLimits limits{
              .evaluations =
                  static_cast<int64_t>(turn.evaluations * static_cast<double>(rules.evaluations) /
                                       static_cast<double>(count)),
              .tolerance = turn.tolerance,
              .floor = rules.floor,
              .seed = seed + c,
              .again = turn.again,
              .control = part.part(1 / left),
              .report = [&, thread] {
                if (thread == 0) control_.report(-1);
              }};
          candidates[c] = improve_(std::move(candidates[c]), limits);
        },
        [](size_t) { return true; });
    for (const Candidate& candidate : candidates) consider(candidate);
  }

  // The best ones of different costs.
  std::vector<Candidate> finalists(size_t most) const {
    std::vector<Candidate> some;
    for (const Candidate& candidate : pool_) {
      if (some.size() == most) break;
      if (some.empty() || some.back() < candidate) some.push_back(candidate);
    }
    return some;
  }

  // Far from the floor it is worthwhile to go on for longer.
  size_t patience(const Rules& rules) const {
    const bool far = !fits() || best_->cost.time - rules.floor > rules.floor / kFar;
    return far ? rules.far_patience : rules.patience;
  }

  static bool gains(const PlanCost& before, const PlanCost& after, int64_t gain) {
    if (before.excess != after.excess) return after.excess < before.excess;
    return before.time - after.time > before.time / gain;
  }

  common::SearchControl& control_;
  const Improve improve_;
  std::vector<Candidate> pool_;
  std::optional<Candidate> best_;
  uint64_t seed_ = 1;
};

// Returns the answer of a planner that moves nothing, as one of a planner that moves values: its
// plan takes `time`, and no plan takes less than `bound`.
inline Answer without_moves(Answer alone, Nanos time, Nanos bound) {
  alone.schedule_class.clear();
  alone.lower_bound = bound;
  if (alone.found()) alone.set_found(time);
  return alone;
}

}  // namespace reprise::internal::place
