#include "plan/place/levels/improve.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/place/anneal.h"

namespace reprise::internal::levels {

using place::Random;

namespace {

constexpr double kTolerance = 0.0015;  // at first, as a share of the floor

// A Change is one entry of the choices with what it was, so that it can be taken back.
struct Change {
  enum class Kind { kOption, kCut, kSavedLane, kInputLane, kDearer };
  Kind kind;
  size_t at;
  int32_t before;
};

// A Walk goes from the choices of a candidate to others.
class Walk {
 public:
  Walk(const Workbench& bench, Candidate start, int64_t floor, uint64_t seed)
      : bench_(bench),
        floor_(floor),
        random_(seed),
        best_(std::move(start)),
        now_(best_.choices),
        now_time_(best_.cost.time) {}

  double cost() const { return static_cast<double>(now_time_); }
  Candidate best() && { return std::move(best_); }

  bool done() const { return best_.cost.time <= floor_; }

  bool propose() {
    changes_.clear();
    change();
    return !changes_.empty();
  }

  std::optional<double> judge(double limit) {
    if (!bench_.scheduler.make(now_, schedule_)) return std::nullopt;
    next_ = bench_.flow.build(schedule_.runs, schedule_.lanes, bench_.budget,
                              static_cast<int64_t>(std::min(limit, 9e18)), false);
    if (next_.peak > bench_.budget) return std::nullopt;
    return static_cast<double>(next_.time);
  }

  void keep() {
    now_time_ = next_.time;
    if (now_time_ < best_.cost.time) best_ = {now_, schedule_, next_};
  }

  void undo() {
    for (size_t c = changes_.size(); c-- > 0;) entry(changes_[c]) = changes_[c].before;
  }

 private:
  size_t below(size_t count) { return random_.below(count); }

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

  // Some stages take over what others at the same distance do.
  void take_over(size_t first) {
    const size_t period = 1 + below(8), length = 1 + below(8);
    if (first + period + length > bench_.model.stages) return;
    for (size_t k = first; k < first + length; ++k) {
      if (below(2) == 0) {
        copy_stage(k, k + period);
      } else {
        copy_stage(k + period, k);
      }
    }
  }

  void change() {
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
      case 6:
        return take_over(i);
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
  Random random_;
  Candidate best_;
  Choices now_;
  int64_t now_time_;
  Schedule schedule_;     // of the changed choices
  place::FlowCost next_;  // what they cost
  std::vector<Change> changes_;
};

}  // namespace

std::optional<Candidate> evaluate(const Workbench& bench, Choices choices, int64_t limit) {
  Candidate candidate{std::move(choices), {}, {}};
  const Schedule& schedule = candidate.schedule;
  if (!bench.scheduler.make(candidate.choices, candidate.schedule)) return std::nullopt;
  candidate.cost = bench.flow.build(schedule.runs, schedule.lanes, bench.budget, limit, false);
  if (candidate.cost.time > limit) return std::nullopt;
  return candidate;
}

Candidate improve(const Workbench& bench, Candidate start, int64_t floor, const Effort& effort) {
  Walk walk(bench, std::move(start), floor, effort.seed);
  const double tolerance = kTolerance * static_cast<double>(floor);
  place::anneal(walk, {.evaluations = effort.evaluations, .tolerance = tolerance},
                bench.control.at_most(effort.time), [&] { bench.control.report(-1); });
  return std::move(walk).best();
}

}  // namespace reprise::internal::levels
