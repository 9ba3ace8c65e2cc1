#include "plan/place/devices/improve.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/common/graph_facts.h"

namespace reprise::internal::devices {

using place::PlanCost;
using place::Random;

namespace {

constexpr uint64_t kLongestStretch = 8;  // runs that change together
constexpr uint64_t kFarthestShift = 12;  // runs that a run passes

// The changes of sequences.
class Moves {
 public:
  static constexpr int64_t kBetweenLooks = 1;

  Moves(const Ground& ground, double price, const Candidate& start, uint64_t seed)
      : ground_(ground), price_(price), random_(seed), now_(start), best_(start.cost) {}

  double unit() const { return static_cast<double>(std::max<int64_t>(1, best_.time)); }
  double price() const { return price_; }
  const State& state() const { return now_.state; }

  bool propose() {
    late_ = now_.state.late_frees != (below(16) == 0);
    runs_ = changed();
    return true;
  }

  // Sorts the runs of the best plan so far by their ends. A copy that stands earlier may begin
  // earlier.
  std::optional<PlanCost> judge(int64_t /*limit*/) {
    next_ = evaluate(ground_, std::move(runs_), late_);
    if (!next_) return std::nullopt;
    if (next_->cost < best_) {
      std::optional<Candidate> sorted = evaluate(ground_, by_end(ground_, next_->state));
      if (sorted && *sorted < *next_) next_ = std::move(sorted);
    }
    return next_->cost;
  }

  void keep() {
    now_ = *std::move(next_);
    best_ = std::min(best_, now_.cost);
  }

  void undo() {}

 private:
  size_t below(size_t n) { return random_.below(n); }

  Sequence changed() {
    Sequence runs = now_.state.runs;
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        other_variant(runs, 1);
        break;
      case 3:
      case 4:
      case 5:
        other_variant(runs, 1 + below(kLongestStretch));
        break;
      case 6:
      case 7:
        run_again(runs);
        break;
      case 8:
        leave_out(runs);
        break;
      case 9:
        shift(runs);
        break;
      case 10:
        exchange(runs);
        break;
      default:
        return by_end(ground_, now_.state);
    }
    return runs;
  }

  // Sends runs that follow each other to the device of some variant of the first.
  void other_variant(Sequence& runs, size_t count) {
    const size_t first = below(runs.size());
    const Op& op = op_of(runs[first]);
    const auto variant = static_cast<int32_t>(below(op.variants.size()));
    const int32_t device = ground_.device({runs[first].op, variant});
    runs[first].variant = variant;
    for (size_t r = first + 1; r < std::min(runs.size(), first + count); ++r) {
      send(runs[r], device);
    }
  }

  // Two runs that are near each other exchange their devices.
  void exchange(Sequence& runs) {
    const size_t first = below(runs.size());
    const size_t second = std::min(runs.size() - 1, first + 1 + below(kFarthestShift));
    const int32_t device = ground_.device(runs[first]);
    send(runs[first], ground_.device(runs[second]));
    send(runs[second], device);
  }

  // Takes some variant on the device, if there is one.
  void send(Run& run, int32_t device) {
    const std::vector<int32_t>& where = ground_.devices[run.op];
    const size_t start = below(where.size());
    for (size_t k = 0; k < where.size(); ++k) {
      const size_t other = (start + k) % where.size();
      if (where[other] != device) continue;
      run.variant = static_cast<int32_t>(other);
      return;
    }
  }

  // Runs the maker of something that a run reads again, before that run.
  void run_again(Sequence& runs) {
    const size_t reader = below(runs.size());
    const std::vector<ValueIndex>& reads = ground_.variant(runs[reader]).reads;
    if (reads.empty()) return;
    const ValueIndex wanted = reads[below(reads.size())];
    for (size_t r = reader; r-- > 0;) {
      if (!common::contains(ground_.variant(runs[r]).writes, wanted)) continue;
      const Op& op = op_of(runs[r]);
      if (common::runs_once(op)) return;
      Run again{runs[r].op, static_cast<int32_t>(below(op.variants.size()))};
      if (!common::contains(ground_.variant(again).writes, wanted)) again.variant = runs[r].variant;
      // Sometimes it stands a little earlier, so that its device does it while others are busy.
      const size_t early = std::min(below(3) == 0 ? below(kFarthestShift) : 0, reader - r - 1);
      runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(reader - early), again);
      return;
    }
  }

  void leave_out(Sequence& runs) {
    std::vector<char> ran(ground_.graph.ops.size(), 0);
    std::vector<size_t> again;
    for (size_t r = 0; r < runs.size(); ++r) {
      if (ran[runs[r].op]++ != 0) again.push_back(r);
    }
    if (again.empty()) return;
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(again[below(again.size())]));
  }

  void shift(Sequence& runs) {
    const size_t from = below(runs.size());
    const size_t far = 1 + below(kFarthestShift);
    const bool earlier = below(2) == 0;
    const size_t to = earlier ? from - std::min(from, far) : std::min(runs.size() - 1, from + far);
    const auto at = [&](size_t r) { return runs.begin() + static_cast<std::ptrdiff_t>(r); };
    if (to < from) {
      std::rotate(at(to), at(from), at(from) + 1);
    } else {
      std::rotate(at(from), at(from) + 1, at(to) + 1);
    }
  }

  const Op& op_of(const Run& run) const { return ground_.graph.ops[run.op]; }

  const Ground& ground_;
  const double price_;
  Random random_;
  Candidate now_;
  PlanCost best_;
  Sequence runs_;  // the changed ones
  bool late_ = false;
  std::optional<Candidate> next_;
};

}  // namespace

Candidate improve(const Ground& ground, double price, Candidate start,
                  const place::WalkLimits& limits) {
  if (start.state.runs.empty()) return start;
  Moves moves(ground, price, start, limits.seed);
  return place::anneal(moves, std::move(start), limits);
}

}  // namespace reprise::internal::devices
