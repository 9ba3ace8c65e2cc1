// Branch and bound over what is live at single instants.
//
// The bound of one instant lets a byte be shared: a large value may be kept by half. And one instant
// knows nothing of another. Both are mended by cases: a value is live while some op runs, or it is not.
// In a case every instant has a bound of its own (Instant, with assumptions), the largest holds; of all
// open cases the least holds for every plan. What is not live at one instant and is live at a later one
// was made again in between: so the cases tie the instants together.
//
// Best first (A. H. Land and A. G. Doig, "An automatic method of solving discrete programming
// problems", Econometrica 28(3), 1960). A case is split at the instant with the highest bound
// where the two cuts around the best price disagree, by the largest value that they disagree about.
//
// Tests: oracle/graph_bound_test.cc (never above exhaustive search, at every budget).
#include "plan/graph_split.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "plan/graph_instant.h"

namespace reprise::internal {
namespace {

// So many cases, fewer of a large graph.
constexpr size_t kMostCases = 2'000, kMostWork = 200'000;
constexpr size_t kLargeGraph = 600;  // ops; so few cases raise nothing there

class Splitting {
 public:
  Splitting(const GraphFacts& facts, Bytes budget, const GraphBound& root,
            const SearchControl& control)
      : facts_(facts), budget_(budget.count()), instants_(root.promising), control_(control) {
    Case whole{root.time.count(), {}, {}};
    if (look_at_all(whole)) open_.push(std::move(whole));
  }

  Nanos run() {
    const size_t most = std::min(kMostCases, kMostWork / (1 + facts_.graph.ops.size()));
    for (size_t count = 0; count < most && !control_.out_of_time(); ++count) {
      if (open_.empty() || open_.top().doubt.op < 0) break;
      const Case whole = open_.top();
      open_.pop();
      for (const bool live : {false, true}) consider(whole, live);
    }
    return open_.empty() ? Nanos() : Nanos(open_.top().time);  // empty: there is no plan
  }

 private:
  // What the cuts of an instant ask: whether this value is live there.
  struct Doubt {
    bool disagree = false;  // the two cuts do
    int64_t time = -1;      // the bound of the instant
    int64_t bytes = -1;
    ValueIndex value = -1;
    OpIndex op = -1;

    auto operator<=>(const Doubt&) const = default;
  };
  struct Case {
    int64_t time = 0;
    Doubt doubt;  // the next to be decided
    std::vector<Assumption> assumptions;

    // The queue's top is the least time.
    bool operator<(const Case& other) const { return time > other.time; }
  };

  // In both parts of a case.
  void consider(const Case& whole, bool live) {
    Case part{whole.time, {}, whole.assumptions};
    part.assumptions.push_back({whole.doubt.value, whole.doubt.op, live});
    if (look_at_all(part)) open_.push(std::move(part));
  }

  // Raises the bound of the case. False if there is no plan in it.
  bool look_at_all(Case& part) const {
    return std::ranges::all_of(
        instants_, [&](OpIndex op) { return control_.out_of_time() || look_at(op, part); });
  }

  bool look_at(OpIndex op, Case& part) const {
    std::optional<Instant::Amount> time;
    std::vector<std::vector<ValueIndex>> kept;
    for (const Variant& variant : facts_.graph.ops[op].variants) {
      if (!can_be_first(variant)) continue;
      Instant instant(facts_, op, variant, part.assumptions);
      const std::optional<Instant::Amount> least = instant.least_time(budget_);
      if (!least || (time && *time <= *least)) continue;
      time = least;
      kept = instant.kept();
    }
    if (!time) return false;
    constexpr Instant::Amount kMost = std::numeric_limits<int64_t>::max();
    const auto least = static_cast<int64_t>(std::min(*time, kMost));
    part.time = std::max(part.time, least);
    for (const size_t side : {0U, 1U}) {
      for (const ValueIndex value : kept[side]) {
        const bool disagree = !contains(kept[1 - side], value);
        const int64_t bytes = facts_.graph.values[value].bytes.count();
        part.doubt = std::max(part.doubt, Doubt{disagree, least, bytes, value, op});
      }
    }
    return true;
  }

  const GraphFacts& facts_;
  const int64_t budget_;
  const std::vector<OpIndex> instants_;
  const SearchControl& control_;
  std::priority_queue<Case> open_;
};

}  // namespace

Nanos split_bound(const GraphFacts& facts, Bytes budget, const GraphBound& root,
                  const SearchControl& control) {
  if (root.instant < 0 || root.least_peak > budget) return root.time;
  if (facts.graph.ops.size() > kLargeGraph) return root.time;
  return std::max(root.time, Splitting(facts, budget, root, control).run());
}

}  // namespace reprise::internal
