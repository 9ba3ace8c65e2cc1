#include "plan/graph/carry.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace reprise::internal::graph {

using schedule::Early;
using schedule::Interval;
using schedule::Keeping;
using schedule::Schedule;
using schedule::ScheduleModel;

namespace {

// By op of `from`: the position in `to` of the op with the same id; -1: there is none.
std::vector<int32_t> positions_in(const Graph& from, const Graph& to) {
  std::unordered_map<std::string_view, int32_t> by_id;
  for (size_t o = 0; o < to.ops.size(); ++o) by_id.emplace(to.ops[o].id, static_cast<int32_t>(o));
  std::vector<int32_t> positions;
  for (const Op& op : from.ops) {
    const auto found = by_id.find(op.id);
    positions.push_back(found == by_id.end() ? -1 : found->second);
  }
  return positions;
}

std::optional<int32_t> same_variant(const Op& from, int32_t variant, const Op& to) {
  const std::string& name = from.variants[variant].name;
  const auto same = std::find_if(to.variants.begin(), to.variants.end(),
                                 [&](const Variant& one) { return one.name == name; });
  if (same == to.variants.end()) return std::nullopt;
  return static_cast<int32_t>(same - to.variants.begin());
}

class Carrier {
 public:
  Carrier(const ScheduleModel& from, const ScheduleModel& to)
      : from_(from), to_(to), there_(positions_in(from.graph(), to.graph())) {
    const std::vector<Op>& ops = to.graph().ops;
    there_.push_back(static_cast<int32_t>(ops.size()));
    before_.assign(ops.size() + 2, 0);
    for (const int32_t position : there_) {
      if (position >= 0) ++before_[static_cast<size_t>(position) + 1];
    }
    for (size_t p = 1; p < before_.size(); ++p) before_[p] += before_[p - 1];
  }

  std::optional<Schedule> run(const Schedule& schedule) const {
    Schedule result = to_.keep_all();
    if (!set_realizations(schedule, result) || !set_variants(schedule, result)) return std::nullopt;
    for (size_t g = 0; g < result.intervals.size(); ++g) {
      const Interval& interval = to_.intervals()[g];
      // The interval of `from` that lies behind the last of its ops up to where this interval
      // begins.
      const int32_t same =
          from_.interval_before(interval.value, before_[static_cast<size_t>(interval.begin) + 1]);
      if (interval.must_keep || same < 0) continue;
      const Keeping keeping = schedule.intervals[same];
      // Several intervals of `to` can be parts of one interval of `from`. A value that was made
      // again in an earlier part is kept in the later ones.
      const bool is_kept = keeping == Keeping::kOnRerun && is_same_interval(g, same);
      result.intervals[g] = is_kept ? Keeping::kKeep : keeping;
    }
    for (const Early& early : schedule.early) {
      const int32_t position = there_[early.position];
      const ValueIndex value = from_.intervals()[early.interval].value;
      if (position < 0) return std::nullopt;
      const int32_t interval = to_.interval_before(value, position);
      if (interval >= 0) result.early.push_back({position, interval});
    }
    std::sort(result.early.begin(), result.early.end());
    return result;
  }

 private:
  // Returns whether this interval of `to` and the one before it are parts of the same interval of
  // `from`.
  bool is_same_interval(size_t g, int32_t same) const {
    const Interval& interval = to_.intervals()[g];
    if (static_cast<int32_t>(g) == to_.first_interval(interval.value)) return false;
    const auto begin = static_cast<size_t>(to_.intervals()[g - 1].begin);
    return from_.interval_before(interval.value, before_[begin + 1]) == same;
  }

  bool set_realizations(const Schedule& schedule, Schedule& result) const {
    std::unordered_map<std::string_view, size_t> by_id;
    const std::vector<Choice>& choices = to_.graph().choices;
    for (size_t c = 0; c < choices.size(); ++c) by_id.emplace(choices[c].id, c);
    for (size_t c = 0; c < schedule.realization.size(); ++c) {
      const Choice& choice = from_.graph().choices[c];
      const auto found = by_id.find(choice.id);
      if (found == by_id.end()) return false;
      const auto r = static_cast<size_t>(schedule.realization[c]);
      std::vector<OpIndex> ops;
      for (const OpIndex op : choice.realizations[r].ops) {
        ops.push_back(there_[op]);
      }
      const auto& all = choices[found->second].realizations;
      const auto same = std::ranges::find(all, ops, &Realization::ops);
      if (same == all.end()) return false;
      result.realization[found->second] = static_cast<int32_t>(same - all.begin());
    }
    return true;
  }

  bool set_variants(const Schedule& schedule, Schedule& result) const {
    for (size_t o = 0; o < from_.graph().ops.size(); ++o) {
      const auto op = static_cast<OpIndex>(o);
      if (!from_.active(schedule, op)) continue;
      if (there_[o] < 0) return false;
      const auto other = static_cast<size_t>(there_[o]);
      const std::optional<int32_t> variant = carried_variant(op, schedule.variant[o]);
      const std::optional<int32_t> on_demand = carried_variant(op, schedule.on_demand[o]);
      if (!variant || !on_demand) return false;
      result.variant[other] = *variant;
      result.on_demand[other] = *on_demand;
    }
    return true;
  }

  // kPutOff and kFastest stay as they are.
  std::optional<int32_t> carried_variant(OpIndex op, int32_t variant) const {
    if (variant < 0) return variant;
    const auto o = static_cast<size_t>(op);
    return same_variant(from_.graph().ops[o], variant, to_.graph().ops[there_[o]]);
  }

  const ScheduleModel &from_, &to_;
  // By op of `from`, and one more for the end: its position in `to`; -1: it is not there.
  std::vector<int32_t> there_;
  std::vector<int32_t>
      before_;  // by position in `to`: the number of ops of `from` that stand before it
};

}  // namespace

std::optional<Schedule> carried_over(const ScheduleModel& from, const Schedule& schedule,
                                     const ScheduleModel& to) {
  return Carrier(from, to).run(schedule);
}

std::optional<std::vector<Run>> carried_over(const Graph& from, const std::vector<Run>& runs,
                                             const Graph& to) {
  const std::vector<int32_t> there = positions_in(from, to);
  std::vector<Run> result;
  for (const Run& run : runs) {
    const int32_t op = there[run.op];
    if (op < 0) return std::nullopt;
    const auto variant = same_variant(from.ops[run.op], run.variant, to.ops[op]);
    if (!variant) return std::nullopt;
    result.push_back({op, *variant});
  }
  return result;
}

}  // namespace reprise::internal::graph
