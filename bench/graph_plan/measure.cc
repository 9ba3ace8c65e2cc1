#include "measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"

namespace reprise::bench {
namespace {

double processor_time() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

Machine machine_with(double bytes_per_second) {
  Machine machine = parse_offload("host=1GB/s");
  for (Channel& channel : machine.channels) {
    channel.bytes_per_second = std::max<int64_t>(1, static_cast<int64_t>(bytes_per_second));
  }
  return machine;
}

double bandwidth_of(const Chain& chain) {
  double bytes = 0, seconds = 0;
  for (const Stage& stage : chain.stages) {
    bytes += static_cast<double>((stage.options.front().saved + stage.output).count());
    seconds += static_cast<double>(stage.options.front().forward.time.count()) / 1e9;
  }
  return bytes / std::max(seconds, 1e-9);
}

Row planned(const Problem& problem, const Baseline& plain, const std::string& planner, double share,
            const MeasureOptions& options, double channel) {
  const Graph& graph = problem.graph;
  const int64_t fixed = options.above_fixed ? graph.fixed.count() : 0;
  const int64_t whole = plain.peak.count() - fixed;
  PlanOptions ask;
  ask.budget = Bytes(fixed + static_cast<int64_t>(static_cast<double>(whole) * share));
  ask.planner = planner;
  ask.time_limit = Nanos(static_cast<int64_t>(options.time_limit * 1e9));
  ask.threads = options.threads;
  const bool moves = channel > 0 && find_planner(planner).moves;
  if (moves) ask.machine = machine_with(channel);
  const double start = processor_time();
  const bool as_chain = problem.chain && find_planner(planner).plan_graph == nullptr;
  const PlanResult result = as_chain ? plan(*problem.chain, ask) : plan(graph, ask);
  const ProblemId id = as_chain ? problem_id(*problem.chain) : problem_id(graph);
  Row row{.planner = planner, .budget = share, .termination = to_string(result.termination)};
  row.processor_seconds = processor_time() - start;
  row.seconds = static_cast<double>(result.search.wall.count()) / 1e9;
  row.moves = moves;
  if (result.proof == Proof::kAllPlans || result.schedule_class == "all+copies") {
    row.bound = ratio(result.lower_bound.count(), plain.time.count());
  }
  if (result.smallest_budget) {
    row.smallest = ratio(result.smallest_budget->count() - fixed, whole);
  }
  if (!result.plan) return row;
  for (const Violation& v : verify(graph, *result.plan, result.budget, id, ask.machine)) {
    throw InternalError("invalid plan: " + v.message);
  }
  row.peak = ratio(result.plan->peak.count() - fixed, whole);
  row.time = ratio(result.plan->time.count(), plain.time.count());
  return row;
}

}  // namespace

double whole_bandwidth(const Problem& problem) {
  if (problem.chain) return bandwidth_of(*problem.chain);
  const Graph& graph = problem.graph;
  std::vector<char> from_forward(graph.values.size(), 0), saved(graph.values.size(), 0);
  double seconds = 0;
  for (const Run& run : plain_runs(graph)) {
    const Op& op = graph.ops[static_cast<size_t>(run.op)];
    const Variant& variant = op.variants[static_cast<size_t>(run.variant)];
    const bool forward = op.phase == Phase::kForward;
    if (forward) seconds += static_cast<double>(variant.time.count()) / 1e9;
    for (const ValueIndex value : variant.writes) {
      from_forward[static_cast<size_t>(value)] = forward;
    }
    for (const ValueIndex value : variant.reads) {
      const auto v = static_cast<size_t>(value);
      if (!forward && from_forward[v]) saved[v] = 1;
    }
  }
  double bytes = 0;
  for (size_t v = 0; v < saved.size(); ++v) {
    if (saved[v]) bytes += static_cast<double>(graph.values[v].bytes.count());
  }
  return bytes / std::max(seconds, 1e-9);
}

GraphResult measure(const Problem& problem, const MeasureOptions& options) {
  const Graph& graph = problem.graph;
  const Baseline plain = baseline(graph);
  GraphResult result{graph.name, graph.ops.size(), 0, 1, plain.peak, plain.time, {}};
  if (options.channel > 0) result.channel = options.channel * whole_bandwidth(problem);
  if (options.channel > 0) {
    PlanOptions ask;
    ask.time_limit = Nanos(static_cast<int64_t>(options.time_limit * 1e9));
    ask.threads = options.threads;
    result.unlimited = ratio(plan(graph, ask).plan->time.count(), plain.time.count());
  }
  for (const double share : options.budgets) {
    for (const std::string& planner : options.planners) {
      if (options.progress) {
        options.progress(fmt::format("{}: {:.0f} %, {}", graph.name, 100 * share, planner));
      }
      result.rows.push_back(planned(problem, plain, planner, share, options, result.channel));
    }
  }
  return result;
}

}  // namespace reprise::bench
