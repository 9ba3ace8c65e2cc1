#include "plan/graph/starts/sections.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/graph/bound/instant.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/starts/starts.h"

namespace reprise::internal::starts {

using bound::Instant;
using common::GraphFacts;
using common::runs_once;
using common::SearchControl;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

using Mask = std::vector<char>;  // by value

struct Peak {
  int32_t highest = -1;  // the position with the highest level
  int32_t instant = -1;  // the op nearest to it that runs once in every plan
  int64_t level = 0;     // the level at `instant`
  int64_t peak = 0;      // the level at `highest`
};

// Returns the highest peak outside the windows that were given up.
Peak peak_of(const ScheduleModel& model, const GraphFacts& facts,
             const std::vector<int64_t>& levels, const std::vector<Window>& given_up) {
  const auto count = static_cast<int32_t>(model.plain().size());
  int32_t highest = -1;  // the position with the highest level
  for (int32_t p = 0; p < count; ++p) {
    const bool is_given_up = std::ranges::any_of(
        given_up, [&](const Window& window) { return window.begin <= p && p <= window.end; });
    if (!is_given_up && (highest < 0 || levels[p] > levels[highest])) highest = p;
  }
  if (highest < 0) return {};
  const auto is_instant = [&](int32_t p) {
    if (p < 0 || p >= count) return false;
    const OpIndex op = model.plain()[p].op;
    return facts.certain[op] && runs_once(model.graph().ops[op]);
  };
  for (int32_t away = 0; away < count; ++away) {
    for (const int32_t p : {highest - away, highest + away}) {
      if (is_instant(p)) return {highest, p, levels[p], levels[highest]};
    }
  }
  return {};
}

Mask mask_of(const ScheduleModel& model, const std::vector<ValueIndex>& values) {
  Mask mask(model.graph().values.size(), 0);
  for (const ValueIndex value : values) mask[value] = 1;
  return mask;
}

// Returns the positions where the values are live that the larger of two sets keeps and the smaller
// one does not.
Window around(const ScheduleModel& model, int32_t position,
              const std::vector<std::vector<ValueIndex>>& kept) {
  Window window{position, position};
  const Mask smaller = mask_of(model, kept[0]);
  for (const ValueIndex value : kept[1]) {
    if (smaller[value]) continue;
    const int32_t interval = model.interval_at(value, position);
    if (interval < 0) continue;
    window.begin = std::max(0, std::min(window.begin, model.intervals()[interval].begin));
    window.end = std::max(window.end, model.intervals()[interval].end);
  }
  return window;
}

bool fits_without(const std::vector<int64_t>& levels, const Window& window, int64_t budget) {
  for (size_t p = 0; p < levels.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    const bool is_inside = window.begin <= position && position <= window.end;
    if (!is_inside && levels[p] > budget) return false;
  }
  return true;
}

// Adds to what the cuts keep the values that take longer to make again than their bytes are worth.
// A cut leaves out a value that may not have been made by then, as the bound charges nothing for
// it. An example is the loss of a part before it is added to that of another.
void keep_what_is_small(const ScheduleModel& model, int32_t position, double price,
                        std::vector<std::vector<ValueIndex>>& kept) {
  for (std::vector<ValueIndex>& list : kept) {
    const Mask is_kept = mask_of(model, list);
    for (size_t v = 0; v < is_kept.size(); ++v) {
      const auto value = static_cast<ValueIndex>(v);
      if (is_kept[v] || model.is_input(value) || model.interval_at(value, position) < 0) continue;
      const double worth = price * static_cast<double>(model.bytes(value));
      if (worth < static_cast<double>(model.rerun_time(value))) list.push_back(value);
    }
  }
}

}  // namespace

std::optional<Schedule> schedule_of_sections(const ScheduleModel& model, const Schedule& base,
                                             const GraphFacts& facts, Bytes budget,
                                             const SearchControl& control,
                                             const StartParams& params) {
  ScheduleLedger ledger(model);
  if (!ledger.assign(base)) return std::nullopt;
  Schedule schedule = base;
  std::vector<int64_t> levels = ledger.levels();
  const auto adopt = [&](Schedule next) {
    if (!ledger.assign(next)) return;
    schedule = std::move(next);
    levels = ledger.levels();
  };
  std::vector<Window> given_up;
  for (int section = 0; section < params.most_sections && !control.out_of_time(); ++section) {
    const Peak peak = peak_of(model, facts, levels, given_up);
    if (peak.peak <= budget.count()) break;
    const Run& run = model.plain()[peak.instant];
    Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
    const int64_t beside = peak.peak - peak.level;
    if (!instant.least_time(budget.count() - beside) || instant.price() <= 0) {
      given_up.push_back({peak.highest, peak.highest});
      continue;
    }
    std::vector<std::vector<ValueIndex>> kept = instant.kept();
    keep_what_is_small(model, peak.instant, instant.price(), kept);
    const Window window = around(model, peak.instant, kept);
    if (section == 0 && fits_without(levels, window, budget.count())) return std::nullopt;
    std::optional<Mix> mix;
    if (params.use.mixes) {
      mix = mix_of(model, schedule, peak.instant, kept, budget.count(), window, params.use.put_off);
    }
    if (mix && mix->schedule != schedule) {
      adopt(std::move(mix->schedule));
      continue;
    }
    adopt(kept_at(model, schedule, peak.instant, mask_of(model, kept[0])));
    given_up.push_back({std::min(window.begin, peak.highest), std::max(window.end, peak.highest)});
  }
  return schedule;
}

}  // namespace reprise::internal::starts
