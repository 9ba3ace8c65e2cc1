#include "plan/graph_starts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "plan/schedule_ledger.h"

namespace reprise::internal {
namespace {

// The values that forward ops read across the bounds of so many segments.
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

}  // namespace

Schedule kept_at(const ScheduleModel& model, int32_t position, const std::vector<char>& kept) {
  Schedule schedule = model.lean();
  for (size_t g = 0; g < model.gaps().size(); ++g) {
    const Gap& gap = model.gaps()[g];
    if (gap.fixed || gap.begin >= position || gap.end <= position || kept[gap.value]) continue;
    schedule.gaps[g] = Keeping::kOnReplay;
  }
  return schedule;
}

Schedule kept_or_put_off(const ScheduleModel& model, int32_t position,
                         const std::vector<char>& kept) {
  Schedule schedule = kept_at(model, position, kept);
  std::vector<char> wanted(kept);
  for (int32_t p = position - 1; p >= 0; --p) {
    const Run& run = model.plain()[p];
    if (!model.active(schedule, run.op)) continue;
    const Variant& variant = model.graph().ops[run.op].variants[run.variant];
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

std::vector<Schedule> schedules_of_segments(const ScheduleModel& model) {
  std::vector<Schedule> schedules{model.lean()};
  const int32_t loss = position_of_loss(model);
  for (int32_t segments = 2; segments <= loss; segments += 1 + segments / 3) {
    schedules.push_back(kept_at(model, loss, between_segments(model, loss, segments)));
  }
  return schedules;
}

std::optional<Mix> mix_of(const ScheduleModel& model, int32_t position,
                          const std::vector<std::vector<ValueIndex>>& kept, int64_t budget) {
  if (kept.size() != 2) return std::nullopt;
  ScheduleLedger ledger(model);
  const auto kept_of = [&](int32_t from, bool much_after) {
    std::vector<char> is_kept(model.graph().values.size(), 0);
    for (const bool much : {false, true}) {
      for (const ValueIndex value : kept[much]) {
        const bool after = model.gaps()[model.first_gap(value)].begin >= from;
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
      Schedule schedule = schedule_of(model, position, is_kept);
      if (!ledger.assign(schedule) || ledger.peak() > budget) continue;
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

}  // namespace reprise::internal
