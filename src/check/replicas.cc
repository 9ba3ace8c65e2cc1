#include "reprise/check/replicas.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "reprise/check/pipeline.h"
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

// Returns the weight gradients of a device in the order in which they are complete.
std::vector<Gradient> gradients_of(const Pipeline& pipeline, const PipelinePlan& plan,
                                   size_t device, const DeviceTimeline& timeline) {
  const DeviceProgram program = lower(pipeline, plan, device);
  // The results of a device's program are its weight gradients.
  std::vector<Nanos> complete(program.graph.values.size(), Nanos(-1));
  for (const ValueIndex result : program.graph.results) complete[result] = {};
  size_t next = 0;
  for (size_t a = 0; a < program.ends.size(); ++a) {
    Nanos now = timeline.steps[a].start;
    for (; next < program.ends[a]; ++next) {
      const Run& run = program.runs[next];
      const Variant& variant = program.graph.ops[run.op].variants[run.variant];
      now += time_on(pipeline.devices[device], variant.time);
      // The first micro-batch writes a gradient, and the others add to it in place.
      for (const auto* touched : {&variant.writes, &variant.reads}) {
        for (const ValueIndex value : *touched) {
          Nanos& last = complete[value];
          // An action may be shorter than its runs one by one, each of which is rounded up.
          if (last >= Nanos(0)) last = std::min(now, timeline.steps[a].end);
        }
      }
    }
  }
  std::vector<Gradient> all;
  for (const ValueIndex result : program.graph.results) {
    all.push_back({complete[result], program.graph.values[result].bytes});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Gradient& a, const Gradient& b) { return a.complete < b.complete; });
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
  for (size_t device = 0; device < timeline.devices.size(); ++device) {
    Nanos free, busy;
    Bytes bucket;
    const auto carry = [&](Nanos complete) {
      const Nanos ring = ring_time(replicas, std::exchange(bucket, Bytes(0)));
      free = std::max(free, complete) + ring;
      busy += ring;
    };
    const std::vector<Gradient> all =
        gradients_of(pipeline, plan, device, timeline.devices[device]);
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
