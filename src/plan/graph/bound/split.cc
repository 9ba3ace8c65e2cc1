// This is branch and bound over what is live at single instants.
//
//                     all plans: 10
//                    /             \                        a case is split by one value
//     v is live at b: 13         v is not live at b: 12        of two open cases the least holds: 12
//                               /                     \     the least open case is split next
//                 w is live at c: 14             w is not live at c: 15                   then: 13
//
// The bound of one instant may keep a large value by half, and one instant knows nothing of
// another. Cases mend both: a value is live while some op runs, or it is not
// (docs/planners/graph_bound.md, Lemma 12). In a case each instant has its own bound, and the
// largest of them holds. The least bound of all open cases holds for every plan. A value that is
// not live at one instant and is live at a later one was made again in between. So the cases tie
// the instants together.
//
// Runs that make values again before an instant differ from those after it. So the
// bounds of stretches that follow each other add up (Lemma 13). And each of the highest instants is
// paired with all others, as what is live at the later one was there before (bound/pairs.h, Lemma
// 14).
//
// The case with the least bound is split first (A. H. Land and A. G. Doig, "An automatic method of
// solving discrete programming problems", Econometrica 28(3), 1960). It is split at the instant
// with the highest bound where the two cuts around the best price disagree, by the largest value
// that they disagree about.
//
// Tests: oracle/graph_bound_test.cc (never above exhaustive search, at every budget),
// oracle/graph_moment_test.cc (in every case).
#include "plan/graph/bound/split.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "plan/graph/bound/moment.h"
#include "plan/graph/bound/pairs.h"

namespace reprise::internal::bound {

using common::contains;
using common::GraphFacts;
using common::SearchControl;

namespace {

class Splitting {
 public:
  Splitting(const GraphFacts& facts, Bytes budget, const GraphBound& root,
            const SearchControl& control, const BoundParams& params)
      : facts_(facts),
        budget_(budget.count()),
        has_cases_(params.use.cases && facts.graph.ops.size() <= params.large_graph),
        moments_(root.promising),
        control_(control),
        params_(params) {
    if (has_cases_) {
      for (Moment& moment : moments_) find_deciding_ops(facts, moment, budget_, control);
    }
    Case whole{root.time.count(), {}, {}};
    if (!look_at_all(whole)) return;
    if (params_.use.pairs) {
      look_at_pairs(whole, has_cases_ ? control.part(params_.share_for_pairs) : control);
    }
    open_.push(std::move(whole));
  }

  Nanos run() {
    const size_t most =
        has_cases_ ? std::min(params_.most_cases, params_.most_work / (1 + facts_.graph.ops.size()))
                   : 0;
    for (size_t count = 0; count < most && !control_.out_of_time(); ++count) {
      if (open_.empty() || open_.top().doubt.moment < 0) break;
      const Case whole = open_.top();
      open_.pop();
      for (const bool live : {false, true}) consider(whole, live);
    }
    return open_.empty() ? Nanos() : Nanos(open_.top().time);  // empty: there is no plan
  }

 private:
  // A Doubt is the question that the cuts of an instant leave open: whether a value is live there.
  struct Doubt {
    bool disagree = false;  // whether the two cuts disagree about the value
    int64_t time = -1;      // the bound of the instant, beyond facts_.least_time
    int64_t bytes = -1;
    ValueIndex value = -1;
    int32_t moment = -1;  // the place of the instant in moments_

    auto operator<=>(const Doubt&) const = default;
  };
  struct Case {
    int64_t time = 0;
    Doubt doubt;  // the next doubt to be decided
    std::vector<Assumption> assumptions;
    bool stretches_help = true;  // whether stretches raised the bound of the case that was split

    // The top of the queue is the case with the least time.
    bool operator<(const Case& other) const { return time > other.time; }
  };

  using Extra = Instant::Amount;  // a sum of times beyond facts_.least_time

  // Looks at one part of a case that is split.
  void consider(const Case& whole, bool live) {
    Case part{whole.time, {}, whole.assumptions, whole.stretches_help};
    part.assumptions.push_back(assume_at(moments_[whole.doubt.moment], whole.doubt.value, live));
    if (look_at_all(part)) open_.push(std::move(part));
  }

  // Raises the bound of a case. Returns false if the case has no plan.
  bool look_at_all(Case& part) const {
    std::vector<int64_t> times;  // by instant
    for (size_t k = 0; k < moments_.size(); ++k) {
      if (control_.out_of_time()) return true;
      const std::optional<MomentCost> least = cost_of(k, part, {});
      if (!least) return false;
      times.push_back(least->time);
      raise(part, least->time);
      add_doubts(part, k, *least);
    }
    if (!params_.use.stretches) return true;
    return !part.stretches_help || look_at_stretches(part, times);
  }

  // Pairs the highest of all instants with each of the others, then the next ones.
  void look_at_pairs(Case& whole, const SearchControl& control) {
    std::vector<std::pair<int64_t, size_t>> ranked;
    for (size_t k = 0; k < moments_.size(); ++k) {
      if (control.out_of_time()) return;
      const std::optional<MomentCost> cost = cost_of(k, whole, {});
      if (cost) ranked.emplace_back(-cost->time, k);
    }
    std::sort(ranked.begin(), ranked.end());
    if (!has_cases_) {  // with cases it is done before
      for (Moment& moment : moments_) find_deciding_ops(facts_, moment, budget_, control);
    }
    for (size_t a = 0; a < std::min(ranked.size(), params_.first_instants); ++a) {
      for (size_t b = a + 1; b < ranked.size(); ++b) {
        if (control.out_of_time()) return;
        const auto [first, second] = std::minmax(ranked[a].second, ranked[b].second);
        const int64_t enough = whole.time - facts_.least_time.count();
        const auto cost = cost_of_pair(facts_, moments_[first], moments_[second], budget_, enough,
                                       control, params_.pair);
        if (cost) raise(whole, *cost);
      }
    }
  }

  // Adds up stretches from the highest of all instants on, and stretches before it.
  bool look_at_stretches(Case& part, const std::vector<int64_t>& times) const {
    const auto highest = std::max_element(times.begin(), times.end());
    if (highest == times.end() || *highest <= 0) return true;
    const auto middle = static_cast<size_t>(highest - times.begin());
    const int most =
        part.assumptions.empty() ? params_.most_stretches : params_.most_stretches_of_case;
    const std::optional<Extra> after = time_after(part, middle, most);
    if (!after) return false;
    const std::optional<Extra> before = time_before(part, middle, most);
    if (!before) return false;
    part.stretches_help = *after + *before > *highest;
    raise(part, *after + *before);
    return true;
  }

  // Returns the time of the stretches from an instant to the end, or nothing if there is no plan.
  std::optional<Extra> time_after(Case& part, size_t first, int most) const {
    const std::optional<MomentCost> whole = cost_of(first, part, {-1, true});
    if (!whole) return std::nullopt;
    Extra best = whole->time;
    if (most == 0) return best;
    size_t next = first;
    std::optional<MomentCost> stretch;
    Extra rest = 0;
    for (size_t k = first + 1; k < moments_.size(); ++k) {
      if (control_.out_of_time()) return best;
      std::optional<MomentCost> until = cost_of(first, part, {moments_[k].first, true});
      const std::optional<MomentCost> from = cost_of(k, part, {-1, true});
      if (!until || !from) return std::nullopt;
      const Extra both = Extra{until->time} + from->time;
      if (both <= best) continue;
      best = both;
      rest = from->time;
      stretch = std::move(until);
      next = k;
    }
    if (!stretch) return best;
    add_doubts(part, first, *stretch);
    const std::optional<Extra> others = time_after(part, next, most - 1);
    if (!others) return std::nullopt;
    return best - rest + *others;
  }

  // Returns the time of the stretches that end where an instant begins, or nothing if there is no
  // plan.
  std::optional<Extra> time_before(Case& part, size_t last, int most) const {
    if (most == 0) return 0;
    size_t first = last;
    MomentCost best;
    for (size_t k = 0; k < last; ++k) {
      if (control_.out_of_time()) return best.time;
      std::optional<MomentCost> stretch = cost_of(k, part, {moments_[last].first, true});
      if (!stretch) return std::nullopt;
      if (stretch->time <= best.time) continue;
      best = std::move(*stretch);
      first = k;
    }
    if (first == last) return 0;
    add_doubts(part, first, best);
    const std::optional<Extra> others = time_before(part, first, most - 1);
    if (!others) return std::nullopt;
    return best.time + *others;
  }

  void raise(Case& part, Extra extra) const {
    part.time = std::max(part.time, time_with(facts_, extra).count());
  }

  std::optional<MomentCost> cost_of(size_t moment, const Case& part,
                                    Instant::Stretch stretch) const {
    return cost_of_moment(facts_, moments_[moment], budget_, part.assumptions, stretch);
  }

  void add_doubts(Case& part, size_t moment, const MomentCost& least) const {
    if (!least.is_assumed) return;
    for (const size_t side : {0U, 1U}) {
      for (const ValueIndex value : least.kept[side]) {
        if (is_decided(part, moment, value)) continue;
        const bool disagree = !contains(least.kept[1 - side], value);
        const int64_t bytes = facts_.graph.values[value].bytes.count();
        part.doubt = std::max(
            part.doubt, Doubt{disagree, least.time, bytes, value, static_cast<int32_t>(moment)});
      }
    }
  }

  bool is_decided(const Case& part, size_t moment, ValueIndex value) const {
    const OpIndex first = assume_at(moments_[moment], value, false).first;
    return std::ranges::any_of(part.assumptions, [&](const Assumption& one) {
      return one.value == value && one.first == first;
    });
  }

  const GraphFacts& facts_;
  const int64_t budget_;
  const bool has_cases_;
  std::vector<Moment> moments_;
  const SearchControl& control_;
  const BoundParams& params_;
  std::priority_queue<Case> open_;
};

}  // namespace

Nanos split_bound(const GraphFacts& facts, Bytes budget, const GraphBound& root,
                  const SearchControl& control, const BoundParams& params) {
  if (root.promising.empty() || root.least_peak > budget) return root.time;
  return std::max(root.time, Splitting(facts, budget, root, control, params).run());
}

}  // namespace reprise::internal::bound
