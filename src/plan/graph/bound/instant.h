// What every plan holds in memory while one given op runs, or pays for afterwards: a minimum cut.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/max_flow.h"
#include "reprise/model/graph.h"

namespace reprise::internal::bound {

// Whether a value is among the live ones (those that the op takes left out, before it writes any) while
// an op runs that runs exactly once in every plan; of a choice, while one op of the plan's realization runs, which is
// known to be one from `first` to `last`.
struct Assumption {
  ValueIndex value;
  OpIndex first, last;
  bool live;
};

// The moment when op b, which runs exactly once in every plan - of a choice: in every plan that is asked about -, runs
// with a given variant. Let L be
// the values that are live then, without those that b takes and before it writes any.
//
// Claim. For every plan that runs b with this variant there is a set R of values, disjoint from L,
// such that
//   bytes:  its peak is at least base + bytes(L);
//   time:   it takes at least least_time + (extra of the variant) + sum over groups of ops of the
//           largest charge of a value in R, or in L if it was gone before;
//   needs:  what an op reads that runs after b for certain, and every result, is in L, in R, or
//           granted; and so is what every run that can make a value of R after b reads;
//   either: of a choice whose ordered ops are after b (GraphFacts::Either): the value is in L, in R, or granted;
//           or one of its places is in L, and the time is more by `extra`.
// Proof. R: the values outside L that some run after b makes, but for those that are only made by ops
// whose one run is after b (granted). bytes: the definition of the memory while an action runs. needs:
// whatever is read after b is live at b or written by b (granted) or after b. A result is live at the
// end. time: every op of a plan has a first run, of a choice the ops of one realization: least_time.
// A value is charged only when its maker - the only one that this plan can have - has run by the time
// of b: because what b or an op of the same kind before it reads cannot be there otherwise (`forced`). Where several
// ops can make what was read, it is not known which has run, but what the first run of every one of them reads was
// there (GraphFacts::made_from), and so on.
// Then the run that makes it after b is one more, with a variant for replays. One run makes several
// values, so ops that share a value (`group`) pay for the dearest one only; different groups have no
// op in common.
// A value that an op takes which has run by then for certain was gone once (`gone`): live at b, too,
// it has been made again. So it is charged in L as well as in R.
//
// So cost(R) + lambda * (bytes(L) - room) over all (L, R) that meet `needs` is at most the extra
// time of any plan whose room for L is at least bytes(L), for every lambda >= 0. It is a minimum
// cut: a value is needed (source side) or not, and made after b (source side) or not.
//
// either: the realization of the plan reads the value after b, or one in its place. That one is live at b, or a
// run after b makes it, which reads the value. Only ops of this realization touch it, so that no other choice
// counts its bytes; where the needs or an assumption count those of any of the places, they are not counted here.
// `extra` is time of first runs beyond least_time.
//
// With assumptions the claim holds for every plan that they are true of. A value that is live (is not
// live) while b runs is in L (is not). One that is not live while an earlier op runs is gone then; one
// that is live while a later op runs is needed. One that is live while an earlier op runs was made by then. A
// result that is made once is live from then on: if it is not while a later op runs, it is not in L.
// Of op a before b: if v is not live while a runs, its
// maker has run by then and v is live at b or made after it, then it was made after a, once more.
// Of a choice it is known that a is one of its ops, but not which: what has to have run by then is what has to have
// run by the first of them; that a value which is live there was made is known by the last of them only; and of
// an op between the first and the last it is not known which came first.
//
// Stretches. Of the time until a later op c has run that runs once: with the needs that are read by then, and
// what is live at c by assumption, in place of all others, the claim holds of the runs after b that are over
// when c has run. So the bounds of stretches that follow each other count different runs, and add up; but then
// what was `gone` must not be charged in L, which stands for a run before b.
//
// Links. What is live at c, and was not made before b for certain or by c itself, is in L or in R of the stretch until
// c, or granted. `wanted` are such values: pay() puts a price on each that is in neither.
class Instant {
 public:
  using Amount = MaxFlow::Amount;

  struct Stretch {
    OpIndex until = -1;            // c; -1: to the end
    bool follows_another = false;  // runs before b are counted there
    std::vector<ValueIndex> wanted = {};
  };

  // In parts of a nanosecond, `unit` of them one. By value; empty: nothing.
  struct Prices {
    Amount unit = 1;
    Amount byte = 0;                 // of L
    std::span<const Amount> live;    // of a value in L, beside its bytes
    std::span<const Amount> missed;  // of a wanted value that is neither in L nor in R
  };
  struct Paid {
    Amount total = 0;
    Amount bytes = 0;                // of L
    std::vector<ValueIndex> live;    // L
    std::vector<ValueIndex> missed;  // of the wanted ones
  };

  Instant(const common::GraphFacts& facts, OpIndex op, const Variant& variant,
          const std::vector<Assumption>& assumptions, Stretch stretch);
  Instant(const common::GraphFacts& facts, OpIndex op, const Variant& variant,
          const std::vector<Assumption>& assumptions = {})
      : Instant(facts, op, variant, assumptions, Stretch{}) {}

  // No plan that runs this variant here has a smaller peak. None: no plan does.
  std::optional<Amount> least_peak();

  // No plan within the budget that runs this variant here takes less time; none: no plan does.
  // Exact maximum over lambda as far as 56 bits of its numerator and denominator go; at most some
  // dozens of cuts.
  std::optional<Amount> least_time(int64_t budget);

  // After least_time(): the sets L of the cuts on both sides of the best lambda, the one that fits
  // first.
  const std::vector<std::vector<ValueIndex>>& kept() const { return kept_; }
  // After least_time(): the best lambda, in time per byte; 0: nothing need be dropped.
  double price() const { return price_; }

  // The cheapest way at these prices. None: there is no way.
  std::optional<Paid> pay(const Prices& prices);
  // Bytes for L within a budget.
  Amount room(int64_t budget) const { return budget - base_; }
  // Time of the variant beyond the fastest.
  int64_t extra() const { return extra_; }
  // Values that L or R can hold, and that are not granted.
  std::vector<ValueIndex> values() const;

  // What to keep when each value has a price in time of its own. Empty if there is no such set.
  std::vector<ValueIndex> cheapest(const std::vector<double>& prices);

 private:
  // How a value can come to be after b.
  enum class Source {
    kGranted,  // nothing is to be paid for it, or nothing is known
    kKept,     // only by being live
    kMade,     // also by a run after b
  };
  struct Making {
    Source source = Source::kGranted;
    int64_t charge = 0;
    std::vector<ValueIndex> reads;
  };
  struct Node {
    ValueIndex value;
    size_t needed;  // the node; the next one says that it is made
    size_t keep;    // the arc that is cut when it is kept
    bool can_keep;
  };
  struct Charge {
    OpIndex group;
    int64_t cost;
    size_t node;  // on the source's side: to be paid
  };
  struct ChargeArc {
    size_t arc;
    int64_t cost;
  };
  struct Instead {
    size_t arc;                      // to what is needed otherwise
    std::vector<ValueIndex> places;  // that can be live
    ValueIndex smallest;             // of them
    int64_t bytes, cost;
  };
  struct Wanted {
    size_t arc;  // that is cut when it is missed
    ValueIndex value;
  };
  struct Line {
    Amount cost = 0, bytes = 0;  // cost + lambda * bytes bounds from above what the cut can be
    std::vector<ValueIndex> kept;
  };

  // Of what is read after `after`, at `last` at the latest.
  bool is_inside(OpIndex after, OpIndex last) const {
    return after > op_ && (stretch_.until < 0 || last <= stretch_.until);
  }
  void assume(std::vector<Assumption> assumptions);
  bool stays(ValueIndex value) const;
  void force(OpIndex until, ValueIndex live = -1);
  Making making(ValueIndex value) const;
  bool charged(ValueIndex value) const;
  // The node that says that the value is needed; none if it is granted.
  std::optional<size_t> node_of(ValueIndex value);
  void need(ValueIndex value, size_t from);
  void add_eithers();
  void add_charges();
  // The cut at lambda = price / unit. None: nothing but infinite arcs.
  std::optional<Line> solve(Amount price, Amount unit, Amount* total);
  Line current_line() const;

  const common::GraphFacts& facts_;
  OpIndex op_;
  const Variant& variant_;
  const Stretch stretch_;
  int64_t extra_ = 0;  // time of the variant beyond the fastest
  Amount base_ = 0;    // bytes while it runs, without the other values of L
  std::vector<char> forced_op_, forced_value_;  // has run, was live by then
  std::vector<char> not_live_;                  // by value: by assumption
  std::vector<char> gone_;                      // by value: was live, and was taken before b
  std::vector<int32_t> node_of_;                // by value; -1: none yet, -2: granted
  std::vector<Node> nodes_;
  std::vector<Charge> charges_;
  std::vector<ChargeArc> charge_arcs_;
  std::vector<Instead> insteads_;
  std::vector<Wanted> wanted_;
  MaxFlow flow_;
  std::vector<std::vector<ValueIndex>> kept_;
  double price_ = 0;
};

}  // namespace reprise::internal::bound
