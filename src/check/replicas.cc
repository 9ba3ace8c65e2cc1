#include "reprise/check/replicas.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "reprise/check/pipeline.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

Nanos ring_time(const Replicas& replicas, Bytes bytes) {
  const auto count = static_cast<double>(replicas.count);
  const double carried = static_cast<double>(bytes.count()) / count * 1e9 /
                         static_cast<double>(replicas.bytes_per_second);
  const double time = 2 * (count - 1) * (carried + static_cast<double>(replicas.latency.count()));
  if (!(time < 9e18)) throw InputError("a sum over the replicas takes more than 292 years");
  return Nanos(std::llround(time));
}

// A Gradient is complete at some time.
struct Gradient {
  Nanos complete;
  Bytes bytes;
};

// Returns the weight gradients of each device in the order in which they are complete.
std::vector<std::vector<Gradient>> gradients_of(const PipelineProgram& program) {
  const Timeline timeline = simulate(program.graph, program.actions, program.machine);
  // A result is made by the first run that writes it, and the others add to it in place.
  std::vector<Nanos> complete(program.graph.values.size(), Nanos(0));
  std::vector<int32_t> device(program.graph.values.size(), 0);
  for (size_t a = 0; a < program.actions.size(); ++a) {
    const BoundAction& run = program.actions[a];
    if (run.kind != ActionKind::kRun) continue;
    const Variant& variant = program.graph.ops[run.target].variants[run.variant];
    for (const auto* touched : {&variant.writes, &variant.reads}) {
      for (const ValueIndex value : *touched) {
        complete[value] = timeline.steps[a].start + timeline.steps[a].time;
        device[value] = run.at;
      }
    }
  }
  std::vector<std::vector<Gradient>> all(program.machine.memories.size());
  for (const ValueIndex result : program.graph.results) {
    all[device[result]].push_back({complete[result], program.graph.values[result].bytes});
  }
  for (std::vector<Gradient>& of_device : all) {
    std::ranges::stable_sort(of_device, {}, &Gradient::complete);
  }
  return all;
}

}  // namespace

ReplicaTimes simulate(const Pipeline& pipeline, const PipelinePlan& plan,
                      const Replicas& replicas) {
  if (replicas.count < 1) throw InputError("there is at least one replica");
  if (replicas.bytes_per_second < 1) throw InputError("replicas exchange at least a byte a second");
  if (replicas.latency < Nanos(0)) throw InputError("a latency is not negative");
  if (replicas.bucket < Bytes(1)) throw InputError("a bucket has at least a byte");
  const PipelineTimeline timeline = simulate(pipeline, plan);
  ReplicaTimes times{.pipeline = timeline.time, .time = timeline.time, .busy = {}};
  if (replicas.count == 1) return times;
  for (const std::vector<Gradient>& all : gradients_of(lower(pipeline, plan))) {
    Nanos free, busy;
    Bytes bucket;
    const auto carry = [&](Nanos complete) {
      const Nanos ring = ring_time(replicas, std::exchange(bucket, Bytes(0)));
      free = std::max(free, complete) + ring;
      busy += ring;
    };
    for (const Gradient& gradient : all) {
      bucket += gradient.bytes;
      if (bucket >= replicas.bucket) carry(gradient.complete);
    }
    if (bucket > Bytes(0)) carry(all.back().complete);
    times.time = std::max(times.time, free);
    times.busy = std::max(times.busy, busy);
  }
  return times;
}

}  // namespace reprise
