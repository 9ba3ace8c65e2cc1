#include "plan/pipeline/bound.h"

#include <algorithm>

namespace reprise::internal::pipeline {
namespace {

struct PartWork {
  Nanos forward, backward;  // `backward` leaves out the weight parts
  Nanos all;                // forward, backward and weight parts
  Nanos weights;
};

}  // namespace

Nanos message_between(const Pipeline& pipeline, int32_t from, int32_t to, Bytes bytes) {
  const int32_t link = from == to ? -1 : find_link(pipeline, from, to);
  return link < 0 ? Nanos(0) : message_time(pipeline.links[link], bytes);
}

Nanos bound_of_all(const Pipeline& pipeline) {
  const StageTimes times = least_times(pipeline);
  double speed = 0;
  for (const PipelineDevice& device : pipeline.devices) {
    speed += 100.0 / static_cast<double>(device.time_percent);
  }
  const Nanos all = times.both(0, pipeline.chain.stages.size()) * pipeline.micro_batches;
  constexpr double kRounding = 1 - 1e-9;  // of the floating-point numbers
  return Nanos(static_cast<int64_t>(static_cast<double>(all.count()) / speed * kRounding));
}

Nanos bound_of(const Pipeline& pipeline, const Layout& layout, const StageTimes& times) {
  const size_t parts = layout.parts();
  std::vector<PartWork> work(parts);
  std::vector<Nanos> down(parts), up(parts);  // messages behind a part, and back to it
  Nanos whole_way;
  for (size_t q = 0; q < parts; ++q) {
    const size_t first = layout.cuts[q], end = layout.cuts[q + 1];
    const PipelineDevice& device = pipeline.devices[layout.device[q]];
    const Nanos weights = times.weights_of(first, end);
    work[q].forward = time_on(device, times.forward_of(first, end));
    work[q].backward = time_on(device, times.backward_of(first, end) - weights);
    work[q].all = time_on(device, times.both(first, end));
    work[q].weights = time_on(device, weights);
    // The backward action of the last part includes a forward, so its time may be rounded up once
    // as a whole.
    whole_way += layout.last(q) ? time_on(device, times.both(first, end) - weights)
                                : work[q].forward + work[q].backward;
    if (layout.last(q)) continue;
    down[q] = message_between(pipeline, layout.device[q], layout.device[q + 1],
                              boundary_bytes(pipeline.chain, end));
    up[q] = message_between(pipeline, layout.device[q + 1], layout.device[q],
                            boundary_gradient_bytes(pipeline.chain, end));
    whole_way += down[q] + up[q];
  }
  Nanos bound = whole_way;
  for (size_t q = 0; q + 1 < parts; ++q) {
    bound = std::max(bound, whole_way + std::max(down[q], up[q]) * (pipeline.micro_batches - 1));
  }
  std::vector<char> seen(pipeline.devices.size(), 0);
  Nanos head, tail;
  for (size_t q = 0; q < parts; ++q) {
    const auto device = static_cast<size_t>(layout.device[q]);
    if (!seen[device]) {
      seen[device] = 1;
      Nanos all, weights;
      for (size_t r = q; r < parts; ++r) {
        if (layout.device[r] != layout.device[q]) continue;
        all += work[r].all * pipeline.micro_batches;
        weights += work[r].weights * pipeline.micro_batches;
      }
      bound = std::max({bound, head + all, head + all - weights + tail});
    }
    head += work[q].forward + down[q];
    tail += work[q].backward + up[q];
  }
  return bound;
}

}  // namespace reprise::internal::pipeline
