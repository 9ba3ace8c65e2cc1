// These are the bytes that every plan holds while one given op runs, or pays for afterwards: a
// minimum cut.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/max_flow.h"
#include "reprise/model/graph.h"

namespace reprise::internal::bound {

// An Assumption is a fact that is known of a plan: a value is live while some op runs, or it is
// not. The op runs exactly once in every plan, or it is an op of the plan's realization of a
// choice; then it is known to be one from `first` to `last`. Values that the op takes do not count
// as live, nor do those that it writes.
struct Assumption {
  ValueIndex value;
  OpIndex first, last;
  bool live;
};

// An Instant is the moment when an op b runs, with a given variant. Every plan that is asked about
// runs b exactly once.
//
//     before b             b                after b
//     --------------------+-------------------------------> time
//     v is made ==========|==============> v is read          v is in L and takes memory during b
//     u is made -> freed  |   u is made again ==> u is read   u is in R; the re-run takes time,
//                         |        ^                          and it needs what it reads:
//                         |        w is read                  w is in L, in R, or granted
//
// Values in memory during b cost a price lambda for each byte. Values that are made again cost the
// time of their makers, and a value that is granted costs nothing. The cheapest division into L and
// R is a minimum cut. It bounds the time of every plan within the budget for every lambda, and the
// best lambda is found exactly.
// docs/planners/graph_bound.md proves it:
//
// | function               | claims                             | lemma |
// |------------------------|------------------------------------|-------|
// | force                  | what has run by the time of b      | 2     |
// | making                 | how a value can come to be after b | 4     |
// | need                   | what is needed after b             | 5     |
// | add_charges            | what re-runs cost                  | 6     |
// | find_run_given         | what has run with a realization    | 2     |
// | add_eithers            | a value, or one in its place       | 7     |
// | add_excesses           | values, or a slower realization    | 7     |
// | least_time             | the cut                            | 8     |
// | least_peak             | the least peak                     | 9     |
// | assume                 | cases                              | 12    |
// | Stretch                | stretches that add up              | 13    |
// | pay                    | pairs of instants                  | 14    |
// | least_time_with_copies | values that are elsewhere          | 15    |
class Instant {
 public:
  using Amount = MaxFlow::Amount;

  // Lemma 13: only runs up to an op c count, so that the bounds of stretches that follow each other
  // add up.
  struct Stretch {
    OpIndex until = -1;                   // the op c, or -1 for the end of the step
    bool follows_another = false;         // runs before b are counted in another stretch
    std::vector<ValueIndex> wanted = {};  // values that cost a price in pay() if not in L or R
  };

  // Prices are in parts of a nanosecond: `unit` of these parts are one nanosecond. The lists are by
  // value; an empty list is all 0.
  struct Prices {
    Amount unit = 1;
    Amount byte = 0;                 // the price of a byte of L
    std::span<const Amount> live;    // the price of a value in L, beside that of its bytes
    std::span<const Amount> missed;  // the price of a wanted value that is neither in L nor in R
  };
  struct Paid {
    Amount total = 0;
    Amount bytes = 0;                // bytes of L
    std::vector<ValueIndex> live;    // L
    std::vector<ValueIndex> missed;  // the wanted values that are neither in L nor in R
  };

  Instant(const common::GraphFacts& facts, OpIndex op, const Variant& variant,
          const std::vector<Assumption>& assumptions, Stretch stretch);
  Instant(const common::GraphFacts& facts, OpIndex op, const Variant& variant,
          const std::vector<Assumption>& assumptions = {})
      : Instant(facts, op, variant, assumptions, Stretch{}) {}

  // Returns a peak that no plan that runs this variant here can go below, or nothing if no plan
  // runs it.
  std::optional<Amount> least_peak();

  // Returns a time that no plan within the budget that runs this variant here can go below, or
  // nothing if no plan runs it. The maximum over lambda is exact as far as 56 bits of its numerator
  // and denominator go. It takes some dozens of cuts at most.
  std::optional<Amount> least_time(int64_t budget);

  // After least_time(): the sets L of the cuts on both sides of the best lambda. The first one
  // fits.
  const std::vector<std::vector<ValueIndex>>& kept() const { return kept_; }
  // After least_time(): the best lambda, in time per byte. It is 0 if nothing need be dropped.
  double price() const { return price_; }

  // Returns the cheapest division at these prices, or nothing if there is none.
  std::optional<Paid> pay(const Prices& prices);
  // Lemma 15: channels carry values to other memories and back. By value: the time that the
  // channels need at least, out of the device and back.
  struct Carriage {
    std::vector<int64_t> out, in;
  };
  // Shares are the shares of the time before b, and from b on, that are asked of the channels, in
  // 64ths. The rest is asked of the runs.
  struct Shares {
    int out = 0, in = 0;

    bool operator==(const Shares&) const = default;
  };
  static constexpr int kWhole = 64;
  // The best cut does not make these values again: some stay here, and the others are away.
  struct Places {
    std::vector<ValueIndex> here, away;
    double price = 0;  // of a byte, in time
  };

  // Returns a time that no plan with copies within the budget that runs this variant here can go
  // below, or nothing if no plan runs it. The stretch must follow another and have no end. It takes
  // some dozens of cuts at most.
  std::optional<Amount> least_time_with_copies(int64_t budget, const Carriage& carriage,
                                               const Shares& shares, Places* places = nullptr);

  // Returns the bytes that are left for L within a budget.
  Amount room(int64_t budget) const { return budget - base_; }
  // Returns how much longer the variant takes than the fastest one.
  int64_t extra() const { return extra_; }
  // Returns the values that can be in L or R and that are not granted.
  std::vector<ValueIndex> values() const;

  // Returns the values to keep if each has its own price, in time. The list is empty if there is no
  // such set.
  std::vector<ValueIndex> cheapest(const std::vector<double>& prices);

 private:
  // A Source says how a value can come to be after b.
  enum class Source {
    kGranted,  // It costs nothing, or nothing is known.
    kKept,     // It must be live.
    kMade,     // A run after b may make it.
  };
  struct Making {
    Source source = Source::kGranted;
    int64_t charge = 0;
    std::vector<ValueIndex> reads;
  };
  struct Node {
    ValueIndex value;
    size_t needed;  // the node n(v), "needed"; the next node is m(v), "made after b"
    size_t keep;    // the arc that is cut if the value is in L
    bool can_keep;
  };
  struct Charge {
    ValueIndex group;
    int64_t cost;
    size_t node;      // if it is on the source's side, the charge is paid
    bool is_limited;  // the excess of a choice may stand for it
  };
  struct ChargeArc {
    size_t arc;
    int64_t cost;
    bool is_limited;  // some charge of the group is
  };
  struct Instead {
    size_t arc;                      // to the value that is needed if no place is live
    std::vector<ValueIndex> places;  // the values that can be live in its place
    ValueIndex smallest;             // the smallest place
    int64_t bytes;
  };
  struct ExcessArc {
    size_t arc;  // to a step that is on the source's side if all of its values are needed
    int64_t cost;
  };
  struct Wanted {
    size_t arc;  // the arc that is cut if the value is missed
    ValueIndex value;
  };
  struct Line {
    Amount cost = 0, bytes = 0;  // no cut is larger than cost + lambda * bytes
    std::vector<ValueIndex> kept;
  };

  static constexpr size_t kSource = 0, kSink = 1;  // nodes

  // Returns whether a read after the op `after`, at the op `last` at the latest, is in the stretch.
  bool is_inside(OpIndex after, OpIndex last) const {
    return after > op_ && (stretch_.until < 0 || last <= stretch_.until);
  }
  void assume(std::vector<Assumption> assumptions);
  bool stays(ValueIndex value) const;
  void force(OpIndex until, ValueIndex live = -1);
  void find_run_given();
  Making making(ValueIndex value) const;
  bool charged(ValueIndex value) const;
  // Returns the node n(v) of a value, or nothing if the value is granted.
  std::optional<size_t> node_of(ValueIndex value);
  void need(ValueIndex value, size_t from);
  void add_eithers();
  void add_excesses();
  void add_charges();
  // Spent has the times of first runs before b, from b on, and of those of which neither is known.
  struct Spent {
    int64_t before = 0, after = 0, either = 0;
  };
  Spent spent() const;
  Line solve_with_copies(Amount price, Amount unit, const Carriage& carriage, const Shares& shares,
                         Amount* total, Places* places);
  // Returns the cut at lambda = price / unit, or nothing if every cut has an infinite arc.
  std::optional<Line> solve(Amount price, Amount unit, Amount* total);
  Line current_line() const;

  const common::GraphFacts& facts_;
  OpIndex op_;
  const Variant& variant_;
  const Stretch stretch_;
  int64_t extra_ = 0;                           // the time of the variant beyond the fastest one
  Amount base_ = 0;                             // the bytes while b runs, without those of L
  std::vector<char> forced_op_, forced_value_;  // by the time of b: has run; has been live
  std::vector<char> run_given_;                 // by op: has run by then if its realization runs
  std::vector<char> not_live_;                  // by value: an assumption says that it is not in L
  std::vector<char> gone_;                      // by value: it was live, and was taken before b
  std::vector<int32_t> node_of_;                // by value: n(v); -1: none yet, -2: granted
  std::vector<Node> nodes_;
  std::vector<Charge> charges_;
  std::vector<ChargeArc> charge_arcs_;
  std::vector<Instead> insteads_;
  std::vector<ExcessArc> excess_arcs_;
  std::vector<Wanted> wanted_;
  MaxFlow flow_;
  std::vector<std::vector<ValueIndex>> kept_;
  double price_ = 0;
};

}  // namespace reprise::internal::bound
