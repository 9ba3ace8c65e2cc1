#include "plan/place/levels/improve.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace reprise::internal::levels {

using place::PlanCost;
using place::Random;

namespace {

// The changes of choices.
class Moves {
 public:
  static constexpr int64_t kBetweenLooks = 16;

  Moves(Judge& judge, const Choices& start, const place::WalkLimits& limits)
      : judge_(judge),
        model_(judge.model()),
        lanes_(judge.lane_times().lanes().size()),
        sweeps_(limits.again),
        unit_(static_cast<double>(limits.floor)),
        random_(limits.seed),
        now_(start) {}

  double unit() const { return unit_; }
  double price() const { return 0; }
  const Choices& state() const { return now_; }

  bool propose() {
    changes_.clear();
    change();
    return !changes_.empty();
  }

  std::optional<PlanCost> judge(int64_t limit) {
    const std::optional<PlanCost> cost = judge_.cost_of(now_, limit);
    return cost && cost->fits() ? cost : std::nullopt;
  }

  void keep() {}
  void undo() {
    for (size_t c = changes_.size(); c-- > 0;) now_[changes_[c].first] = changes_[c].second;
  }

 private:
  size_t below(size_t count) { return random_.below(count); }

  void set(size_t stage, int32_t StageChoice::*part, int32_t value) {
    if (now_[stage].*part == value) return;
    changes_.emplace_back(stage, now_[stage]);
    now_[stage].*part = value;
  }

  int32_t other_lane(int32_t lane) {
    if (lanes_ == 1) return lane == kStays ? 0 : kStays;
    int32_t other = static_cast<int32_t>(below(lanes_ + 1)) - 1;
    if (other == lane) other = lane == kStays ? 0 : kStays;
    return other;
  }

  int32_t other_option(size_t stage) {
    const int32_t option = now_[stage].option;
    const size_t options = model_.options[stage].size();
    if (!sweeps_) return static_cast<int32_t>(below(options));
    if (option == kSwept) return static_cast<int32_t>(below(options));
    if (options == 1 || below(2) == 0) return kSwept;
    return static_cast<int32_t>((static_cast<size_t>(option) + 1 + below(options - 1)) % options);
  }

  void copy_stage(size_t from, size_t to) {
    const StageChoice other = now_[from];
    if (static_cast<size_t>(other.option + 1) > model_.options[to].size()) return;
    if (other == now_[to]) return;
    changes_.emplace_back(to, now_[to]);
    now_[to] = other;
  }

  // Some stages take over what others at the same distance do.
  void take_over(size_t first) {
    const size_t period = 1 + below(8), length = 1 + below(8);
    if (first + period + length > model_.stages) return;
    for (size_t k = first; k < first + length; ++k) {
      if (below(2) == 0) {
        copy_stage(k, k + period);
      } else {
        copy_stage(k + period, k);
      }
    }
  }

  void change() {
    const size_t stages = model_.stages;
    const size_t i = below(stages);
    switch (sweeps_ ? below(12) : 6 + below(5)) {
      case 0:
      case 1:
        set(i, &StageChoice::option, other_option(i));
        return;
      case 2: {  // One stage is kept in place of another one nearby.
        const size_t j = std::min(stages - 1, i + 1 + below(6));
        const int32_t first = now_[i].option, second = now_[j].option;
        if (static_cast<size_t>(second + 1) > model_.options[i].size() ||
            static_cast<size_t>(first + 1) > model_.options[j].size()) {
          return;
        }
        set(i, &StageChoice::option, second);
        set(j, &StageChoice::option, first);
        return;
      }
      case 3:
        set(i, &StageChoice::cut, 1 - now_[i].cut);
        return;
      case 4: {  // A cut moves.
        if (i + 1 >= stages) return;
        const int32_t first = now_[i].cut;
        set(i, &StageChoice::cut, now_[i + 1].cut);
        set(i + 1, &StageChoice::cut, first);
        return;
      }
      case 5: {
        const int32_t step = now_[i].dearer;
        set(i, &StageChoice::dearer, below(2) == 0 ? step + 1 : step - 1);
        if (now_[i].dearer < 0 || now_[i].dearer > 100) undo_last();
        return;
      }
      case 6:
        return take_over(i);
      case 7:  // Two neighbours change at once.
        set(i, &StageChoice::option, other_option(i));
        if (i + 1 < stages) set(i + 1, &StageChoice::option, other_option(i + 1));
        return;
      case 8:
      case 9:
        set(i, &StageChoice::saved_lane, other_lane(now_[i].saved_lane));
        return;
      case 10:
        set(i, &StageChoice::input_lane, other_lane(now_[i].input_lane));
        return;
      default: {  // A stage is kept and moves, in place of being made again, or the reverse.
        const bool kept = now_[i].option != kSwept;
        set(i, &StageChoice::option, other_option(i));
        if (!kept) set(i, &StageChoice::saved_lane, 0);
        return;
      }
    }
  }

  void undo_last() {
    now_[changes_.back().first] = changes_.back().second;
    changes_.pop_back();
  }

  Judge& judge_;
  const chain::ChainModel& model_;
  const size_t lanes_;
  const bool sweeps_;
  const double unit_;
  Random random_;
  Choices now_;
  std::vector<std::pair<size_t, StageChoice>> changes_;  // stages, and what their choices were
};

}  // namespace

Candidate improve(Judge& judge, Candidate start, const place::WalkLimits& limits) {
  Moves moves(judge, start.state, limits);
  return place::anneal(moves, std::move(start), limits);
}

}  // namespace reprise::internal::levels
