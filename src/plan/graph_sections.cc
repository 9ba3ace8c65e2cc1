#include "plan/graph_sections.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/graph_instant.h"
#include "plan/graph_starts.h"
#include "plan/schedule_ledger.h"

namespace reprise::internal {
namespace {

constexpr int kMostSections = 200;

struct Peak {
  int32_t instant = -1;  // of the ops that run once in every plan, that with the highest level
  int64_t level = 0;     // of it
  int64_t peak = 0;      // of all
};

// Outside some windows.
Peak peak_of(const ScheduleModel& model, const GraphFacts& facts,
             const std::vector<int64_t>& levels, const std::vector<Window>& given_up) {
  Peak highest;
  for (size_t p = 0; p < model.plain().size(); ++p) {
    const bool is_given_up = std::ranges::any_of(given_up, [&](const Window& window) {
      return window.begin <= static_cast<int32_t>(p) && static_cast<int32_t>(p) <= window.end;
    });
    if (is_given_up) continue;
    highest.peak = std::max(highest.peak, levels[p]);
    const OpIndex op = model.plain()[p].op;
    if (!facts.certain[op] || !runs_once(model.graph().ops[op])) continue;
    if (highest.instant >= 0 && levels[p] <= highest.level) continue;
    highest.instant = static_cast<int32_t>(p);
    highest.level = levels[p];
  }
  return highest;
}

// Where the values are that the larger of two sets keeps and the smaller one does not.
Window around(const ScheduleModel& model, int32_t position,
              const std::vector<std::vector<ValueIndex>>& kept) {
  Window window{position, position};
  for (const ValueIndex value : kept[1]) {
    if (contains(kept[0], value)) continue;
    const int32_t gap = model.gap_at(value, position);
    if (gap < 0) continue;
    window.begin = std::max(0, std::min(window.begin, model.gaps()[gap].begin));
    window.end = std::max(window.end, model.gaps()[gap].end);
  }
  return window;
}

// Beside what the cuts keep: what takes longer to make again than its bytes are worth. Cuts leave it out where it may
// not have been made before, and cost nothing later: the loss of a part, before it is added to that of another.
void keep_what_is_small(const ScheduleModel& model, int32_t position, double price,
                        std::vector<std::vector<ValueIndex>>& kept) {
  for (size_t v = 0; v < model.graph().values.size(); ++v) {
    const auto value = static_cast<ValueIndex>(v);
    if (model.is_input(value) || model.gap_at(value, position) < 0) continue;
    const double worth = price * static_cast<double>(model.bytes(value));
    if (worth >= static_cast<double>(model.replay_time(value))) continue;
    for (std::vector<ValueIndex>& list : kept) {
      if (!contains(list, value)) list.push_back(value);
    }
  }
}

}  // namespace

std::optional<Schedule> schedule_of_sections(const ScheduleModel& model, const Schedule& base,
                                             const GraphFacts& facts, Bytes budget,
                                             const SearchControl& control) {
  ScheduleLedger ledger(model);
  Schedule schedule = base;
  std::vector<Window> given_up;
  for (int section = 0; section < kMostSections && !control.out_of_time(); ++section) {
    if (!ledger.assign(schedule)) return std::nullopt;
    const Peak peak = peak_of(model, facts, ledger.levels(), given_up);
    if (peak.peak <= budget.count() || peak.instant < 0) return schedule;
    const Run& run = model.plain()[peak.instant];
    Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
    const int64_t beside =
        peak.peak - peak.level;  // the peak may be at an op that not all plans have
    if (!instant.least_time(budget.count() - beside) || instant.price() <= 0) {
      given_up.push_back({peak.instant, peak.instant});
      continue;
    }
    std::vector<std::vector<ValueIndex>> kept = instant.kept();
    keep_what_is_small(model, peak.instant, instant.price(), kept);
    const Window window = around(model, peak.instant, kept);
    if (auto mix = mix_of(model, schedule, peak.instant, kept, budget.count(), window);
        mix && mix->schedule != schedule) {
      schedule = std::move(mix->schedule);
      continue;
    }
    std::vector<char> is_kept(model.graph().values.size(), 0);
    for (const ValueIndex value : kept[0]) is_kept[value] = 1;
    schedule = kept_at(model, schedule, peak.instant, is_kept);
    given_up.push_back(window);
  }
  return std::nullopt;
}

}  // namespace reprise::internal
