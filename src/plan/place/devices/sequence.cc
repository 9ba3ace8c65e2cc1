#include "plan/place/devices/sequence.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "plan/common/graph_facts.h"

namespace reprise::internal::devices {

bool keeps_rules(const Graph& graph, const Sequence& runs) {
  std::vector<char> ran(graph.ops.size(), 0);
  OpIndex last_once = -1, last_random = -1;
  for (const Run& run : runs) {
    const Op& op = graph.ops[run.op];
    const Variant& variant = op.variants[run.variant];
    const bool again = ran[run.op] != 0;
    ran[run.op] = 1;
    if (!(again ? common::can_be_rerun(variant) : common::can_be_first(variant))) return false;
    if (common::runs_once(op)) {
      if (again || run.op < last_once) return false;
      last_once = run.op;
    }
    if (op.random && !again) {
      if (run.op < last_random) return false;
      last_random = run.op;
    }
  }
  return true;
}

std::optional<Candidate> evaluate(const Ground& ground, const Sequence& runs) {
  std::optional<Candidate> early = evaluate(ground, runs, false);
  std::optional<Candidate> late = evaluate(ground, runs, true);
  return !early || (late && *late < *early) ? late : early;
}

std::optional<Candidate> evaluate(const Ground& ground, Sequence runs, bool late_frees) {
  if (!keeps_rules(ground.graph, runs)) return std::nullopt;
  const Layout layout = lay_out(ground, runs, late_frees);
  if (!layout.possible) return std::nullopt;
  const Timeline timeline = simulate(ground.graph, layout.actions, ground.machine);
  const auto count = static_cast<int64_t>(runs.size());
  Candidate candidate{{std::move(runs), late_frees},
                      {layout.excess, timeline.time.count(), count}};
  candidate.state.ends.reserve(layout.positions.size());
  for (const size_t position : layout.positions) {
    const TimelineStep& step = timeline.steps[position];
    candidate.state.ends.push_back((step.start + step.time).count());
  }
  return candidate;
}

namespace {

// Arrows lie between runs that must keep their order.
class Arrows {
 public:
  Arrows(const Ground& ground, const Sequence& runs)
      : behind_(runs.size()), missing_(runs.size(), 0) {
    const size_t values = ground.graph.values.size();
    std::vector<int64_t> writer(values, -1);
    std::vector<std::vector<size_t>> readers(values);
    std::vector<int64_t> last_run(ground.graph.ops.size(), -1);
    int64_t once = -1, random = -1;
    for (size_t r = 0; r < runs.size(); ++r) {
      const Variant& variant = ground.variant(runs[r]);
      const Op& op = ground.graph.ops[runs[r].op];
      for (const ValueIndex v : variant.reads) {
        add(writer[v], r);
        readers[v].push_back(r);
      }
      for (const ValueIndex v : variant.writes) {
        add(writer[v], r);
        for (const size_t reader : readers[v]) add(static_cast<int64_t>(reader), r);
        readers[v].clear();
        writer[v] = static_cast<int64_t>(r);
      }
      // A value is gone where it is taken.
      for (const ValueIndex v : variant.consumes) take(v, r, readers, writer);
      for (const auto& pair : variant.reuses) take(pair.second, r, readers, writer);
      add(std::exchange(last_run[runs[r].op], static_cast<int64_t>(r)), r);
      if (common::runs_once(op)) add(std::exchange(once, static_cast<int64_t>(r)), r);
      if (op.random) add(std::exchange(random, static_cast<int64_t>(r)), r);
    }
  }

  const std::vector<size_t>& behind(size_t r) const { return behind_[r]; }
  std::vector<int> missing() const { return missing_; }

 private:
  void add(int64_t from, size_t to) {
    if (from < 0 || static_cast<size_t>(from) == to) return;
    behind_[from].push_back(to);
    ++missing_[to];
  }
  void take(ValueIndex v, size_t r, std::vector<std::vector<size_t>>& readers,
            std::vector<int64_t>& writer) {
    for (const size_t reader : readers[v]) add(static_cast<int64_t>(reader), r);
    readers[v] = {r};
    writer[v] = static_cast<int64_t>(r);
  }

  std::vector<std::vector<size_t>> behind_;
  std::vector<int> missing_;
};

}  // namespace

Sequence by_end(const Ground& ground, const State& state) {
  const Arrows arrows(ground, state.runs);
  std::vector<int> missing = arrows.missing();
  using Entry = std::pair<int64_t, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (size_t r = 0; r < missing.size(); ++r) {
    if (missing[r] == 0) ready.emplace(state.ends[r], r);
  }
  Sequence runs;
  while (!ready.empty()) {
    const size_t r = ready.top().second;
    ready.pop();
    runs.push_back(state.runs[r]);
    for (const size_t next : arrows.behind(r)) {
      if (--missing[next] == 0) ready.emplace(state.ends[next], next);
    }
  }
  return runs;
}

}  // namespace reprise::internal::devices
