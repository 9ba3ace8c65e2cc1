#include "plan/place/graph_levels/improve.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::graph_levels {

using place::PlanCost;
using place::Flow;
using place::Lane;
using place::Random;
using place::RunList;
using schedule::Early;
using schedule::Interval;
using schedule::Keeping;
using schedule::kPutOff;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

constexpr int kDraws = 12;       // until an interval with a wanted fate is found
constexpr size_t kMostRow = 64;  // ops that are treated alike at once
// Shares of proposals.
constexpr double kRows = 0.1, kOps = 0.15, kSecond = 0.3;

PlanCost cost_of(const FlowCost& flow, int64_t budget) {
  return {std::max<int64_t>(0, flow.peak - budget), flow.time};
}

// The changes of fates.
class Moves {
 public:
  static constexpr int64_t kBetweenLooks = 16;

  Moves(const Workbench& bench, const Fates& start, const WalkLimits& limits)
      : bench_(bench),
        model_(bench.model),
        changes_(bench.changes),
        again_(limits.again),
        random_(limits.seed),
        ledger_(bench.model),
        flow_(bench.model, bench.lane_times),
        lanes_(start.lanes) {}

  bool start(const Fates& fates) {
    if (!ledger_.assign(fates.schedule)) return false;
    ledger_.list(runs_.op_variants, runs_.positions);
    now_ = flow_.build(runs_, lanes_, bench_.budget);
    return true;
  }
  // The mean time of an op.
  double unit() const {
    const double ops = static_cast<double>(std::max<size_t>(1, model_.plain().size()));
    return std::max(1.0, static_cast<double>(ledger_.time()) / ops);
  }
  double price() const { return bench_.price; }
  Fates state() const { return {ledger_.schedule(), lanes_}; }

  bool propose() {
    lane_log_.clear();
    change();
    return ledger_.changed() || !lane_log_.empty();
  }

  std::optional<PlanCost> judge(int64_t limit) {
    if (ledger_.changed() && !ledger_.apply_changes(limit)) return std::nullopt;
    ledger_.list(runs_.op_variants, runs_.positions);
    next_ = flow_.build(runs_, lanes_, bench_.budget, limit);
    if (next_.time > limit) return std::nullopt;
    return cost_of(next_, bench_.budget);
  }

  void keep() {
    ledger_.commit();
    now_ = next_;
  }

  void undo() {
    ledger_.undo();
    for (size_t k = lane_log_.size(); k-- > 0;) {
      lanes_[lane_log_[k].first] = lane_log_[k].second;
    }
  }

 private:
  uint64_t below(size_t count) { return random_.below(count); }

  Keeping keeping(int32_t g) const { return ledger_.schedule().intervals[g]; }
  bool must_keep(int32_t g) const { return model_.intervals()[g].must_keep; }
  int8_t lane(int32_t g) const { return lanes_[g]; }

  void set_keeping(int32_t g, Keeping keeping_now) {
    if (keeping(g) != keeping_now) ledger_.set_interval(g, keeping_now);
  }
  void set_lane(int32_t g, int8_t lane_now) {
    if (lane(g) == lane_now) return;
    lane_log_.emplace_back(g, lane(g));
    lanes_[g] = lane_now;
  }
  int8_t some_lane() { return static_cast<int8_t>(below(bench_.lane_times.lanes().size())); }

  void change() {
    if (!again_) {
      change_lane();
      while (below(3) == 0) change_lane();
      return;
    }
    const double draw = random_.unit();
    if (draw < kRows && !changes_.makers.empty()) return copy_row();
    if (draw < kRows + kOps) change_op();
    propose_fate();
    if (random_.unit() < kSecond) propose_fate();
  }

  void propose_fate() {
    if (!bench_.homes.empty() && below(5) == 0) return change_home();
    if (now_.peak > bench_.budget && below(2) == 0) return give_up_at_peak();
    switch (below(8)) {
      case 0:
      case 1:
        return change_fate();
      case 2:
      case 3:
        return change_lane();
      case 4:
      case 5:  // One value is kept in place of another one.
        keep_again();
        return give_up(-1);
      case 6:
        return keep_again();
      default:
        return give_up(-1);
    }
  }

  void change_lane() {
    if (!bench_.homes.empty() && below(3) == 0) return change_home();
    const bool any = bench_.movable.empty() || below(8) == 0;
    const std::vector<int32_t>& from = any ? bench_.others : bench_.movable;
    if (from.empty()) return;
    const int32_t g = from[below(from.size())];
    set_lane(g, lane(g) == kStays ? some_lane() : kStays);
  }

  int32_t some_home() { return bench_.homes[below(bench_.homes.size())]; }
  // Lets a group with a home elsewhere stay on the device, or move.
  void change_home() {
    if (below(16) == 0) {  // Homes are used in time, or as far as the bytes allow.
      const auto last = static_cast<int32_t>(lanes_.size()) - 1;
      return set_lane(last, lane(last) == kStays ? int8_t{0} : kStays);
    }
    const int32_t one = some_home();
    const int8_t fate = lane(one) == kStays ? int8_t{0} : kStays;
    if (below(3) == 0) {  // in place of another one
      for (int draw = 0; draw < kDraws; ++draw) {
        const int32_t other = some_home();
        if (lane(other) == lane(one)) continue;
        set_lane(other, lane(one));
        break;
      }
    }
    set_lane(one, fate);
  }
  void send_home_away() {
    for (int draw = 0; draw < kDraws; ++draw) {
      const int32_t one = some_home();
      if (lane(one) == kStays) return set_lane(one, 0);
    }
  }

  void change_fate() {
    if (changes_.intervals.empty()) return change_lane();
    const int32_t g = changes_.intervals[below(changes_.intervals.size())];
    if (keeping(g) == Keeping::kKeep) return drop(g);
    if (below(4) == 0) {
      return set_keeping(g, keeping(g) == Keeping::kDrop ? Keeping::kOnRerun : Keeping::kDrop);
    }
    keep(g);
  }

  void drop(int32_t g) { set_keeping(g, below(4) != 0 ? Keeping::kOnRerun : Keeping::kDrop); }
  void keep(int32_t g) {
    set_keeping(g, Keeping::kKeep);
    if (below(4) != 0) set_lane(g, some_lane());
  }

  void keep_again() {
    for (int draw = 0; draw < kDraws && !changes_.intervals.empty(); ++draw) {
      const int32_t g = changes_.intervals[below(changes_.intervals.size())];
      if (keeping(g) != Keeping::kKeep) return keep(g);
    }
  }

  // Drops a value that is kept, across a position if one is given.
  void give_up(int32_t position) {
    for (int draw = 0; draw < kDraws && !changes_.intervals.empty(); ++draw) {
      const int32_t g = changes_.intervals[below(changes_.intervals.size())];
      const Interval& interval = model_.intervals()[g];
      if (keeping(g) == Keeping::kDrop) continue;
      if (position >= 0 && (interval.begin > position || interval.end < position)) continue;
      return drop(g);
    }
  }

  void give_up_at_peak() {
    ledger_.list(runs_.op_variants, runs_.positions);
    const auto at = static_cast<size_t>(now_.at);
    const auto end = static_cast<int32_t>(model_.plain().size());
    const int32_t position = at < runs_.positions.size() ? runs_.positions[at] : end;
    if (position < end && changes_.first_variants[position].size() > 1 && below(3) == 0) {
      const auto& variants = changes_.first_variants[position];
      return ledger_.set_variant(position, variants[below(variants.size())]);
    }
    if (!bench_.homes.empty() && below(3) == 0) return send_home_away();
    if (below(2) == 0) return give_up(position);
    const bool any = bench_.movable.empty() || below(8) == 0;
    const std::vector<int32_t>& from = any ? bench_.others : bench_.movable;
    for (int draw = 0; draw < kDraws && !from.empty(); ++draw) {
      const int32_t g = from[below(from.size())];
      const Interval& interval = model_.intervals()[g];
      if (lane(g) != kStays || interval.begin > position || interval.end < position) continue;
      return set_lane(g, some_lane());
    }
  }

  // A row of ops, with the values that they make, is treated like another row that looks alike.
  void copy_row() {
    const OpIndex to = changes_.makers[below(changes_.makers.size())];
    const std::vector<OpIndex>& alike = changes_.alike[changes_.kind[to]];
    const OpIndex from = alike[below(alike.size())];
    if (from == to) return;
    const bool exchange = below(2) == 0;
    const auto count = static_cast<OpIndex>(changes_.kind.size());
    const auto length = static_cast<OpIndex>(size_t{1} << below(7));
    for (OpIndex d = 0; d < std::min<OpIndex>(length, kMostRow) && std::max(from, to) + d < count;
         ++d) {
      const auto source = static_cast<size_t>(from + d), target = static_cast<size_t>(to + d);
      if (changes_.kind[source] != changes_.kind[target]) break;
      const std::vector<ValueIndex>& of = model_.graph().ops[source].variants.front().writes;
      const std::vector<ValueIndex>& for_these = model_.graph().ops[target].variants.front().writes;
      for (size_t k = 0; k < of.size(); ++k) copy_value(of[k], for_these[k], exchange);
    }
  }

  void copy_value(ValueIndex from, ValueIndex to, bool exchange) {
    const int32_t source = model_.first_interval(from), target = model_.first_interval(to);
    const int32_t count =
        std::min(model_.first_interval(from + 1) - source, model_.first_interval(to + 1) - target);
    for (int32_t k = 0; k < count; ++k) {
      const int32_t there = source + k, here = target + k;
      const Keeping keeping_there = keeping(there), keeping_here = keeping(here);
      const int8_t lane_there = lane(there), lane_here = lane(here);
      if (!must_keep(here) && !must_keep(there)) {
        set_keeping(here, keeping_there);
        if (exchange) set_keeping(there, keeping_here);
      }
      set_lane(here, lane_there);
      if (exchange) set_lane(there, lane_here);
    }
  }

  // An op runs in another way, or at another time.
  void change_op() {
    switch (below(5)) {
      case 0: {
        if (changes_.flexible.empty()) return;
        const int32_t p = changes_.flexible[below(changes_.flexible.size())];
        const std::vector<int32_t>& variants = changes_.first_variants[p];
        return ledger_.set_variant(p, variants[below(variants.size())]);
      }
      case 1: {
        if (changes_.repeatable.empty()) return;
        const int32_t p = changes_.repeatable[below(changes_.repeatable.size())];
        const OpIndex op = model_.plain()[p].op;
        const size_t count = model_.graph().ops[op].variants.size();
        return ledger_.set_on_demand(p, static_cast<int32_t>(below(count + 1)) - 1);
      }
      case 2: {
        const std::vector<Choice>& choices = model_.graph().choices;
        if (choices.empty()) return;
        const size_t c = below(choices.size());
        return ledger_.set_realization(static_cast<int32_t>(c),
                                       static_cast<int32_t>(below(choices[c].realizations.size())));
      }
      case 3: {
        if (changes_.patient.empty()) return;
        const int32_t p = changes_.patient[below(changes_.patient.size())];
        const auto at = static_cast<size_t>(p);
        const bool waits = ledger_.schedule().variant[at] == kPutOff;
        return ledger_.set_variant(p, waits ? model_.plain()[at].variant : kPutOff);
      }
      default:
        return change_early();
    }
  }

  // A value is made before it is read, or no longer.
  void change_early() {
    if (changes_.intervals.empty()) return;
    std::vector<Early> all = ledger_.schedule().early;
    if (!all.empty() && below(2) == 0) {
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(below(all.size())));
      return ledger_.set_early(std::move(all));
    }
    const int32_t g = changes_.intervals[below(changes_.intervals.size())];
    const Interval& interval = model_.intervals()[g];
    const auto length = static_cast<size_t>(interval.end - interval.begin);
    const Early early{interval.begin + 1 + static_cast<int32_t>(below(length)), g};
    all.insert(std::lower_bound(all.begin(), all.end(), early), early);
    ledger_.set_early(std::move(all));
    set_keeping(g, Keeping::kOnRerun);
  }

  const Workbench& bench_;
  const ScheduleModel& model_;
  const search::ScheduleMoves& changes_;
  const bool again_;
  Random random_;
  ScheduleLedger ledger_;
  Flow flow_;
  std::vector<int8_t> lanes_;
  FlowCost now_, next_;
  RunList runs_;
  std::vector<std::pair<int32_t, int8_t>> lane_log_;  // what lanes were before the proposal
};

}  // namespace

std::vector<int32_t> movable_intervals(const ScheduleModel& model, bool with_ops) {
  std::vector<int32_t> movable;
  for (size_t g = 0; g < model.intervals().size(); ++g) {
    const Interval& interval = model.intervals()[g];
    if (model.bytes(interval.value) > 0 && with_ops == (interval.end - interval.begin > 1)) {
      movable.push_back(static_cast<int32_t>(g));
    }
  }
  return movable;
}

std::vector<int32_t> homes_that_may_stay(const ScheduleModel& model,
                                         const place::HomeGroups& homes) {
  std::vector<int32_t> lanes;
  for (size_t g = 0; g < homes.groups(); ++g) {
    if (homes.may_stay(g)) lanes.push_back(static_cast<int32_t>(model.intervals().size() + g));
  }
  return lanes;
}

std::vector<int8_t> without_lanes(const Workbench& bench) {
  std::vector<int8_t> lanes(bench.model.intervals().size(), kStays);
  const size_t groups = bench.lane_times.homes().groups();
  if (groups > 0) lanes.resize(lanes.size() + groups + 1, 0);
  return lanes;
}

std::vector<int8_t> lanes_for_long_gaps(const Workbench& bench) {
  const ScheduleModel& model = bench.model;
  std::vector<int64_t> begins{0};  // by position, in the time of plain training
  for (const Run& run : model.plain()) {
    begins.push_back(begins.back() +
                     model.op_variant(model.op_variant_of(run.op, run.variant)).time);
  }
  std::vector<int8_t> lanes = without_lanes(bench);
  if (bench.lane_times.lanes().empty()) return lanes;
  const Lane& lane = bench.lane_times.lanes().front();
  const std::vector<Channel>& channels = bench.lane_times.machine().channels;
  const int64_t latency = (channels[lane.out].latency + channels[lane.in].latency).count();
  for (const int32_t g : bench.movable) {
    const Interval& interval = model.intervals()[g];
    const int64_t copies = bench.lane_times.out_time(0, interval.value) / 2 +
                           bench.lane_times.in_time(0, interval.value) / 2;
    const int64_t gap = begins[interval.end] - begins[static_cast<size_t>(interval.begin) + 1];
    if (gap / 2 >= copies && copies >= latency) lanes[g] = 0;
  }
  return lanes;
}

std::optional<FlowCost> build(const Workbench& bench, const Fates& fates, Flow& flow) {
  ScheduleLedger ledger(bench.model);
  if (!ledger.assign(fates.schedule)) return std::nullopt;
  RunList runs;
  ledger.list(runs.op_variants, runs.positions);
  return flow.build(runs, fates.lanes, bench.budget);
}

std::optional<Candidate> evaluate(const Workbench& bench, Fates fates) {
  Flow flow(bench.model, bench.lane_times);
  const std::optional<FlowCost> found = build(bench, fates, flow);
  if (!found) return std::nullopt;
  return Candidate{std::move(fates), cost_of(*found, bench.budget)};
}

Candidate with_homes_that_pay(const Workbench& bench, Candidate start,
                              const common::SearchControl& control) {
  ScheduleLedger ledger(bench.model);
  const bool has_homes = bench.lane_times.homes().groups() > 0;
  if (!has_homes || !ledger.assign(start.state.schedule)) return start;
  RunList runs;
  ledger.list(runs.op_variants, runs.positions);
  Flow flow(bench.model, bench.lane_times);
  std::vector<int8_t>& lanes = start.state.lanes;
  const auto let_stay = [&](size_t position) {
    const int8_t before = std::exchange(lanes[position], kStays);
    const PlanCost cost = cost_of(flow.build(runs, lanes, bench.budget), bench.budget);
    if (cost < start.cost) {
      start.cost = cost;
    } else {
      lanes[position] = before;
    }
  };
  for (const int32_t home : bench.homes) {
    if (control.out_of_time()) return start;
    let_stay(static_cast<size_t>(home));
  }
  let_stay(lanes.size() - 1);  // What moves comes and leaves as the bytes allow.
  return start;
}

Candidate improve(const Workbench& bench, Candidate start, const WalkLimits& limits) {
  Moves moves(bench, start.state, limits);
  if (!moves.start(start.state)) return start;
  return place::anneal(moves, std::move(start), limits);
}

}  // namespace reprise::internal::graph_levels
