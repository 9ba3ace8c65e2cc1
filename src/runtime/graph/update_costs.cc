#include "runtime/graph/update_costs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "reprise/runtime/allocator.h"
#include "runtime/arena/block_pool.h"
#include "runtime/graph/home_store.h"
#include "runtime/graph/with_gradient.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using arena::BlockPool;
using device::wall_times;

namespace {

struct UpdateSample {
  std::vector<TimedRun> runs;
  Nanos time;
  int64_t workspace = 0, state = 0, movable = 0;
};

// Measures one update on a stand-in for the parameter.
UpdateSample measure_one(const ParameterOptimizer& optimizer, const Update& update,
                         const at::Tensor& parameter, const Geometry& gradient, c10::Device device,
                         const ProcessorWatch& watch, const MeasureOptions& options) {
  at::Tensor stand_in = at::empty_strided(parameter.sizes(), parameter.strides(),
                                          parameter.options().requires_grad(false));
  stand_in.copy_(parameter);
  const auto twin = optimizer.twin(update.parameter, stand_in);
  const WithGradient with(stand_in, at::empty_strided(gradient.sizes, gradient.strides,
                                                      parameter.options().dtype(gradient.dtype))
                                        .fill_(1e-3));
  UpdateSample cost;
  int64_t total = 0;
  const auto repeats = static_cast<size_t>(options.min_repeats);
  const auto most = static_cast<size_t>(options.max_repeats);
  for (bool first = true; first || cost.runs.size() < repeats ||
                          (total < options.min_time.count() && cost.runs.size() < most);
       first = false) {
    reset_peak(device);
    const int64_t before = memory_count(device).live;
    const TimedRun run = time_run(device, [&] { twin->step(0); });
    const MemoryCount count = memory_count(device);
    if (first) cost.state = count.live - before;  // The first step makes the state.
    cost.workspace = std::max(cost.workspace, count.peak - std::max(before, count.live));
    if (first) continue;
    cost.runs.push_back(run);
    total += run.wall.count();
  }
  cost.time = typical_time(cost.runs, watch.busy());
  cost.movable = counted(movable_state(*twin, 0, device), device);
  return cost;
}

TimeSpread spread_of(const Update& update, const UpdateSample& sample) {
  const std::vector<Nanos> times = wall_times(sample.runs);
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  return {.op = "update." + update.name,
          .variant = "default",
          .repeats = static_cast<int64_t>(times.size()),
          .min = *least,
          .median = median(times),
          .max = *most};
}

}  // namespace

UpdateCosts measure_updates(const Recording& recording, const Updates& updates,
                            const ParameterOptimizer* optimizer, const MeasureOptions& options) {
  UpdateCosts costs;
  if (updates.each.empty()) return costs;
  const ReplayScope scope;
  const at::NoGradGuard no_grad;
  const BlockSourceScope pool(std::make_shared<BlockPool>());
  const std::vector<at::Tensor> parameters = optimizer->parameters();
  const ProcessorWatch watch(recording.device);
  std::map<std::string, UpdateSample> known;
  for (const Update& update : updates.each) {
    const at::Tensor& parameter = parameters[update.parameter];
    const Geometry& gradient = recording.gradients[update.leaf].gradient.geometry;
    const auto [found, fresh] = known.try_emplace(
        fmt::format("{} {} {} {} {}", shape_text(parameter), fmt::join(parameter.strides(), ","),
                    c10::toString(gradient.dtype), fmt::join(gradient.strides, ","),
                    optimizer->memory_key(update.parameter)));
    UpdateSample& sample = found->second;
    if (fresh) {
      sample =
          measure_one(*optimizer, update, parameter, gradient, recording.device, watch, options);
      costs.spread.push_back(spread_of(update, sample));
    }
    costs.by_update.push_back({sample.time, Bytes(sample.workspace)});
    costs.state_bytes.push_back(sample.state);
    costs.movable_bytes.push_back(sample.movable);
  }
  return costs;
}

WorkCosts with_updates(WorkCosts works, const UpdateCosts& costs, const Updates& updates) {
  if (updates.each.empty()) return works;
  WorkCost sum;
  for (size_t k = 0; k < updates.each.size(); ++k) {
    const WorkCost& one = costs.by_update[k];
    works.by_work[updates.each[k].work] = one;
    sum.time += one.time;
    sum.workspace = std::max(sum.workspace, one.workspace);
  }
  works.by_work[updates.whole] = sum;
  works.spread.insert(works.spread.end(), costs.spread.begin(), costs.spread.end());
  return works;
}

}  // namespace reprise::runtime::internal::graph
