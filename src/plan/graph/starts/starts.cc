#include "plan/graph/starts/starts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::starts {

using common::can_be_first;
using common::takes;
using schedule::Interval;
using schedule::Keeping;
using schedule::kPutOff;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

// By value: whether a forward op reads it across the bounds of so many segments.
std::vector<char> between_segments(const ScheduleModel& model, int32_t loss, int32_t segments) {
  const Graph& graph = model.graph();
  std::vector<int32_t> made(graph.values.size(), -1);
  std::vector<char> kept(graph.values.size(), 0);
  const auto segment_of = [&](int32_t position) {
    return static_cast<int64_t>(position) * segments / loss;
  };
  for (int32_t p = 0; p < loss; ++p) {
    const Run& run = model.plain()[p];
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) {
      if (made[value] >= 0 && segment_of(made[value]) != segment_of(p)) kept[value] = 1;
    }
    for (const ValueIndex value : variant.writes) made[value] = p;
  }
  return kept;
}

// The time of a variant, and the price of the bytes that it holds while it runs.
double cost_of_variant(const Graph& graph, const Variant& variant, double price) {
  int64_t bytes = variant.workspace.count();
  for (const ValueIndex value : variant.writes) bytes += graph.values[value].bytes.count();
  for (const ValueIndex value : variant.reads) {
    if (!takes(variant, value)) bytes += graph.values[value].bytes.count();
  }
  return static_cast<double>(variant.time.count()) + price * static_cast<double>(bytes);
}

// The cost of ops that run one after the other, each in its cheapest variant: all times, and the
// price of the most bytes that one of them holds.
double cost_of_ops(const Graph& graph, const std::vector<OpIndex>& ops, double price) {
  double time = 0, held = 0;
  for (const OpIndex op : ops) {
    const Variant* cheapest = nullptr;
    for (const Variant& variant : graph.ops[op].variants) {
      if (!can_be_first(variant)) continue;
      if (cheapest == nullptr ||
          cost_of_variant(graph, variant, price) < cost_of_variant(graph, *cheapest, price)) {
        cheapest = &variant;
      }
    }
    if (cheapest == nullptr) continue;
    time += static_cast<double>(cheapest->time.count());
    held = std::max(held, cost_of_variant(graph, *cheapest, price) -
                              static_cast<double>(cheapest->time.count()));
  }
  return time + held;
}

}  // namespace

Schedule cheapest_variants(const ScheduleModel& model, double price) {
  ScheduleLedger ledger(model);
  ledger.assign(model.lean());
  const auto keep_change = [&](bool is_good) {
    if (is_good && ledger.apply_changes()) {
      ledger.commit();
    } else {
      ledger.undo();
    }
  };
  const Graph& graph = model.graph();
  for (size_t c = 0; c < graph.choices.size(); ++c) {
    const auto& realizations = graph.choices[c].realizations;
    const int32_t before = ledger.schedule().realization[c];
    int32_t cheapest = before;
    for (size_t r = 0; r < realizations.size(); ++r) {
      if (cost_of_ops(graph, realizations[r].ops, price) <
          cost_of_ops(graph, realizations[cheapest].ops, price)) {
        cheapest = static_cast<int32_t>(r);
      }
    }
    ledger.set_realization(static_cast<int32_t>(c), cheapest);
    keep_change(cheapest != before);
  }
  for (const Run& run : model.plain()) {
    const Op& op = graph.ops[run.op];
    if (op.phase == Phase::kForward || !model.active(ledger.schedule(), run.op)) continue;
    int32_t now = run.variant;
    for (size_t k = 0; k < op.variants.size(); ++k) {
      if (!can_be_first(op.variants[k])) continue;
      if (cost_of_variant(graph, op.variants[k], price) >=
          cost_of_variant(graph, op.variants[now], price))
        continue;
      ledger.set_variant(static_cast<int32_t>(run.op), static_cast<int32_t>(k));
      keep_change(true);
      now = ledger.schedule().variant[run.op];
    }
  }
  return ledger.schedule();
}

Schedule kept_at(const ScheduleModel& model, const Schedule& base, int32_t position,
                 const std::vector<char>& kept) {
  Schedule schedule = base;
  for (size_t g = 0; g < model.intervals().size(); ++g) {
    const Interval& interval = model.intervals()[g];
    if (interval.must_keep || interval.begin >= position || interval.end <= position ||
        kept[interval.value])
      continue;
    schedule.intervals[g] = Keeping::kOnRerun;
  }
  return schedule;
}

Schedule kept_or_put_off(const ScheduleModel& model, const Schedule& base, int32_t position,
                         const std::vector<char>& kept) {
  Schedule schedule = kept_at(model, base, position, kept);
  std::vector<char> wanted(kept);
  for (int32_t p = position - 1; p >= 0; --p) {
    const Run& run = model.plain()[p];
    if (!model.active(schedule, run.op) || schedule.variant[p] == kPutOff) continue;
    const Variant& variant = model.graph().ops[run.op].variants[schedule.variant[p]];
    const bool waits =
        model.can_wait(p) && std::none_of(variant.writes.begin(), variant.writes.end(),
                                          [&](ValueIndex value) { return wanted[value]; });
    if (waits) {
      schedule.variant[p] = kPutOff;
    } else {
      for (const ValueIndex value : variant.reads) wanted[value] = 1;
    }
  }
  return schedule;
}

int32_t position_of_loss(const ScheduleModel& model) {
  const std::vector<Run>& plain = model.plain();
  const auto at = std::find_if(plain.begin(), plain.end(), [&](const Run& run) {
    return model.graph().ops[run.op].phase != Phase::kForward;
  });
  return static_cast<int32_t>(at - plain.begin());
}

Schedule schedule_of_segments(const ScheduleModel& model, const Schedule& base, int32_t segments) {
  const int32_t loss = position_of_loss(model);
  return kept_at(model, base, loss, between_segments(model, loss, segments));
}

std::vector<Schedule> schedules_of_segments(const ScheduleModel& model, const Schedule& base) {
  std::vector<Schedule> schedules{base};
  const int32_t loss = position_of_loss(model);
  for (int32_t segments = 2; segments <= loss; segments += 1 + segments / 3) {
    schedules.push_back(schedule_of_segments(model, base, segments));
  }
  return schedules;
}

std::optional<Mix> mix_of(const ScheduleModel& model, const Schedule& base, int32_t position,
                          const std::vector<std::vector<ValueIndex>>& kept, int64_t budget,
                          std::optional<Window> window, bool put_off) {
  if (kept.size() != 2) return std::nullopt;
  ScheduleLedger ledger(model);
  const auto peak = [&] {
    if (!window) return ledger.peak();
    const std::vector<int64_t> levels = ledger.levels();
    const int64_t last = std::min<int64_t>(window->end, std::ssize(levels) - 1);
    return *std::max_element(levels.begin() + window->begin, levels.begin() + last + 1);
  };
  const auto kept_of = [&](int32_t from, bool much_after) {
    std::vector<char> is_kept(model.graph().values.size(), 0);
    for (const bool much : {false, true}) {
      for (const ValueIndex value : kept[much]) {
        const bool after = model.intervals()[model.first_interval(value)].begin >= from;
        if (after == (much == much_after)) is_kept[value] = 1;
      }
    }
    return is_kept;
  };
  std::optional<Mix> best;
  const auto fits = [&](int32_t from, bool much_after) {
    const std::vector<char> is_kept = kept_of(from, much_after);
    bool any = false;
    for (const auto schedule_of : {kept_at, kept_or_put_off}) {
      if (schedule_of == kept_or_put_off && !put_off) continue;
      Schedule schedule = schedule_of(model, base, position, is_kept);
      if (!ledger.assign(schedule) || peak() > budget) continue;
      any = true;
      if (!best || ledger.time() < best->time) best = {std::move(schedule), ledger.time()};
    }
    return any;
  };
  for (const bool much_after : {false, true}) {
    int32_t little = much_after ? position : 0, much = position - little;
    if (!fits(little, much_after)) break;
    if (fits(much, much_after)) break;
    while (std::abs(much - little) > 1) {
      const int32_t middle = little + (much - little) / 2;
      (fits(middle, much_after) ? little : much) = middle;
    }
  }
  return best;
}

}  // namespace reprise::internal::starts
