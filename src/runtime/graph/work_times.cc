#include "runtime/graph/work_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "reprise/check/simulate.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using device::wall_times;
using step::kind_of;

namespace {

// The shorter one of two samples counts, because the first one may have touched new memory.
Nanos time_of(const std::vector<TimedRun>& samples, bool busy) {
  if (samples.size() != 2) return typical_time(samples, busy);
  return std::min(typical_time({samples[0]}, busy), typical_time({samples[1]}, busy));
}

}  // namespace

void WorkTimes::Slowdown::add(const Slowdown& other) {
  in_order += other.in_order;
  alone += other.alone;
  count += other.count;
}

Nanos WorkTimes::Slowdown::of(Nanos time) const {
  if (alone <= Nanos()) return time;
  const double ratio = static_cast<double>(in_order.count()) / static_cast<double>(alone.count());
  const Nanos longer(std::llround(static_cast<double>(time.count()) * ratio));
  return std::min(longer, std::max(time, time + Nanos((in_order - alone).count() / count)));
}

WorkTimes::WorkTimes(const Works& works, const LoweredStep& lowered)
    : works_(works), lowered_(lowered) {
  for (const Work& work : works.all) kinds_.push_back(kind_of(work));
}

void WorkTimes::add_alone(size_t work, const TimedRun& run) {
  Samples& samples = samples_[kinds_[work]];
  samples.alone.push_back(run);
  samples.total += run.wall;
}

void WorkTimes::add_in_order(size_t work, const TimedRun& run) {
  samples_[kinds_[work]].in_order.push_back(run);
}

int WorkTimes::repeats(size_t work) const {
  const auto found = samples_.find(kinds_[work]);
  return found == samples_.end() ? 0 : static_cast<int>(found->second.alone.size());
}

Nanos WorkTimes::total(size_t work) const {
  const auto found = samples_.find(kinds_[work]);
  return found == samples_.end() ? Nanos() : found->second.total;
}

const std::string& WorkTimes::kind_of_run(const Run& run) const {
  return kinds_[lowered_.works[run.op][run.variant]];
}

std::map<std::string, WorkTimes::Slowdown> WorkTimes::slowdowns(bool busy) const {
  const Graph& graph = lowered_.graph;
  std::map<std::string, Slowdown> of_kind;
  for (const auto& [kind, samples] : samples_) {
    if (samples.alone.empty() || samples.in_order.empty()) continue;
    of_kind[kind] = {time_of(samples.in_order, busy), time_of(samples.alone, busy), 1};
  }
  std::vector<Slowdown> of_op(graph.ops.size());
  for (const Run& run : plain_runs(graph)) {
    const auto found = of_kind.find(kind_of_run(run));
    if (found != of_kind.end()) of_op[run.op] = found->second;
  }
  for (const Choice& choice : graph.choices) {
    Slowdown whole;
    for (const OpIndex op : choice.realizations[0].ops) whole.add(of_op[op]);
    // All ops together are one thing that others stand for.
    whole.count = std::min<int64_t>(whole.count, 1);
    for (size_t r = 1; r < choice.realizations.size(); ++r) {
      for (const OpIndex op : choice.realizations[r].ops) of_op[op] = whole;
    }
  }
  std::map<std::string, Slowdown> all;
  for (size_t op = 0; op < of_op.size(); ++op) {
    for (const int32_t work : lowered_.works[op]) {
      all[kinds_[work]].add(of_op[op]);
    }
  }
  return all;
}

WorkTimes::Shared WorkTimes::share(bool busy) const {
  const std::map<std::string, Slowdown> slowdown = slowdowns(busy);
  Shared shared;
  std::map<std::string, Nanos> times;
  for (size_t w = 0; w < kinds_.size(); ++w) {
    const auto found = samples_.find(kinds_[w]);
    if (found == samples_.end()) {
      shared.time.emplace_back();
      continue;
    }
    const auto [time, fresh] = times.try_emplace(kinds_[w]);
    if (fresh) {
      const bool in_order = !found->second.in_order.empty();
      const std::vector<TimedRun>& samples =
          in_order ? found->second.in_order : found->second.alone;
      const Slowdown longer = in_order ? Slowdown() : slowdown.at(kinds_[w]);
      const std::vector<Nanos> walls = wall_times(samples);
      const auto [least, most] = std::minmax_element(walls.begin(), walls.end());
      time->second = longer.of(time_of(samples, busy));
      shared.spread.push_back({.op = fmt::format("{}:{}", w, works_.all[w].name),
                               .variant = "default",
                               .repeats = static_cast<int64_t>(samples.size()),
                               .min = longer.of(*least),
                               .median = longer.of(median(walls)),
                               .max = longer.of(*most)});
    }
    shared.time.push_back(time->second);
  }
  return shared;
}

}  // namespace reprise::runtime::internal::graph
