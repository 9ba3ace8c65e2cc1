#include "plan/place/levels/improve.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

namespace reprise::internal::levels {

namespace {

using Clock = std::chrono::steady_clock;

// A search begins by taking flows that are up to this share slower, and ends by taking none.
constexpr double kFirstTolerance = 0.0015;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kEvaluationsBetweenLooks = 16;  // at the clock

// A Change is one entry of the choices with what it was, so that it can be taken back.
struct Change {
  enum class Kind { kOption, kCut, kSavedLane, kInputLane, kDearer };
  Kind kind;
  size_t at;
  int32_t before;
};

class Climb {
 public:
  Climb(const Workbench& bench, Candidate start, int64_t floor)
      : bench_(bench), floor_(floor), best_(std::move(start)), now_(best_.choices) {
    now_time_ = best_.cost.time;
  }

  Candidate run(const Effort& effort) {
    random_.seed(effort.seed);
    Schedule schedule;
    const Clock::time_point start = Clock::now();
    double clock = 0;  // the share of the time that is over
    for (int64_t e = 0; e < effort.evaluations && best_.cost.time > floor_; ++e) {
      if (e % kEvaluationsBetweenLooks == 0) {
        clock = share(Clock::now() - start, effort.time);
        if (clock >= 1) break;
        bench_.control.report(-1);  // How much is left to be found, nobody knows.
      }
      const double left =
          1 - std::max(clock, static_cast<double>(e) / static_cast<double>(effort.evaluations));
      const auto tolerance =
          static_cast<int64_t>(kFirstTolerance * left * left * static_cast<double>(floor_));
      propose();
      if (changes_.empty()) continue;
      place::FlowCost cost;
      const bool is_made = bench_.scheduler.make(now_, schedule);
      const int64_t limit = now_time_ + tolerance;
      if (is_made) {
        cost = bench_.flow.build(schedule.runs, schedule.lanes, bench_.budget, limit, false);
      }
      if (!is_made || cost.time > limit || cost.peak > bench_.budget) {
        undo();
        continue;
      }
      now_time_ = cost.time;
      if (cost.time >= best_.cost.time) continue;
      best_ = {now_, schedule, cost};
    }
    return std::move(best_);
  }

 private:
  static double share(Clock::duration part, std::chrono::nanoseconds whole) {
    return whole.count() <= 0
               ? 1
               : std::chrono::duration<double>(part) / std::chrono::duration<double>(whole);
  }
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }

  int32_t& entry(const Change& change) {
    switch (change.kind) {
      case Change::Kind::kOption:
        return now_.option[change.at];
      case Change::Kind::kCut:
        return now_.cut[change.at];
      case Change::Kind::kSavedLane:
        return now_.saved_lane[change.at];
      case Change::Kind::kInputLane:
        return now_.input_lane[change.at];
      case Change::Kind::kDearer:
        break;
    }
    return now_.dearer[change.at];
  }

  void set(Change::Kind kind, size_t at, int32_t value) {
    Change change{kind, at, 0};
    int32_t& place = entry(change);
    if (place == value) return;
    change.before = place;
    place = value;
    changes_.push_back(change);
  }
  void undo() {
    for (size_t c = changes_.size(); c-- > 0;) entry(changes_[c]) = changes_[c].before;
  }

  int32_t other_lane(int32_t lane) {
    if (bench_.lanes == 1) return lane == kStays ? 0 : kStays;
    int32_t other = static_cast<int32_t>(below(bench_.lanes + 1)) - 1;
    if (other == lane) other = lane == kStays ? 0 : kStays;
    return other;
  }

  int32_t other_option(size_t stage) {
    const int32_t option = now_.option[stage];
    const size_t options = bench_.model.options[stage].size();
    if (!bench_.sweeps) return static_cast<int32_t>(below(options));
    if (option == kSwept) return static_cast<int32_t>(below(options));
    if (options == 1 || below(2) == 0) return kSwept;
    return static_cast<int32_t>((static_cast<size_t>(option) + 1 + below(options - 1)) % options);
  }

  void copy_stage(size_t from, size_t to) {
    if (static_cast<size_t>(now_.option[from] + 1) > bench_.model.options[to].size()) return;
    set(Change::Kind::kOption, to, now_.option[from]);
    set(Change::Kind::kSavedLane, to, now_.saved_lane[from]);
    set(Change::Kind::kInputLane, to, now_.input_lane[from]);
    set(Change::Kind::kCut, to, now_.cut[from]);
    set(Change::Kind::kDearer, to, now_.dearer[from]);
  }

  void propose() {
    changes_.clear();
    const size_t stages = bench_.model.stages;
    const size_t i = below(stages);
    switch (bench_.sweeps ? below(bench_.lanes > 0 ? 12 : 8)
                          : 6 + below(bench_.lanes > 0 ? 5 : 2)) {
      case 0:
      case 1:
        set(Change::Kind::kOption, i, other_option(i));
        return;
      case 2: {  // One stage is kept in place of another one nearby.
        const size_t j = std::min(stages - 1, i + 1 + below(6));
        const int32_t first = now_.option[i], second = now_.option[j];
        if (static_cast<size_t>(second + 1) > bench_.model.options[i].size() ||
            static_cast<size_t>(first + 1) > bench_.model.options[j].size()) {
          return;
        }
        set(Change::Kind::kOption, i, second);
        set(Change::Kind::kOption, j, first);
        return;
      }
      case 3:
        set(Change::Kind::kCut, i, 1 - now_.cut[i]);
        return;
      case 4: {  // A cut moves.
        if (i + 1 >= stages) return;
        const int32_t first = now_.cut[i];
        set(Change::Kind::kCut, i, now_.cut[i + 1]);
        set(Change::Kind::kCut, i + 1, first);
        return;
      }
      case 5: {
        const int32_t step = now_.dearer[i];
        set(Change::Kind::kDearer, i, below(2) == 0 ? step + 1 : step - 1);
        if (now_.dearer[i] < 0 || now_.dearer[i] > 100) undo_last();
        return;
      }
      case 6: {  // Some stages take over what others at the same distance do.
        const size_t period = 1 + below(8), length = 1 + below(8);
        if (i + period + length > stages) return;
        for (size_t k = 0; k < length; ++k) {
          if (below(2) == 0) {
            copy_stage(i + k, i + period + k);
          } else {
            copy_stage(i + period + k, i + k);
          }
        }
        return;
      }
      case 7:  // Two neighbours change at once.
        set(Change::Kind::kOption, i, other_option(i));
        if (i + 1 < stages) set(Change::Kind::kOption, i + 1, other_option(i + 1));
        return;
      case 8:
      case 9:
        set(Change::Kind::kSavedLane, i, other_lane(now_.saved_lane[i]));
        return;
      case 10:
        set(Change::Kind::kInputLane, i, other_lane(now_.input_lane[i]));
        return;
      default: {  // A stage is kept and moves, in place of being made again, or the reverse.
        const bool kept = now_.option[i] != kSwept;
        set(Change::Kind::kOption, i, other_option(i));
        if (!kept) set(Change::Kind::kSavedLane, i, 0);
        return;
      }
    }
  }

  void undo_last() {
    entry(changes_.back()) = changes_.back().before;
    changes_.pop_back();
  }

  const Workbench& bench_;
  int64_t floor_;
  Candidate best_;
  Choices now_;
  int64_t now_time_;
  std::vector<Change> changes_;
  std::mt19937_64 random_;
};

}  // namespace

std::optional<Candidate> evaluate(const Workbench& bench, Choices choices) {
  Candidate candidate{std::move(choices), {}, {}};
  const Schedule& schedule = candidate.schedule;
  if (!bench.scheduler.make(candidate.choices, candidate.schedule)) return std::nullopt;
  candidate.cost = bench.flow.build(schedule.runs, schedule.lanes, bench.budget, kNoLimit, false);
  return candidate;
}

Candidate improve(const Workbench& bench, Candidate start, int64_t floor, const Effort& effort) {
  return Climb(bench, std::move(start), floor).run(effort);
}

}  // namespace reprise::internal::levels
