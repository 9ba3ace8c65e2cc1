#include "support/random_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace reprise::testing {
namespace {

int64_t between(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

WeightPart random_weight_part(std::mt19937_64& random, const Stage& stage, bool all_facts) {
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const StageOption& option : stage.options) {
    most = std::min(most, option.backward.time.count());
  }
  WeightPart part{{Nanos(between(random, 0, most)), Bytes(between(random, 0, 4))},
                  Bytes(between(random, 0, 10))};
  if (!all_facts) return part;
  part.consumes = random() % 2 == 0;
  part.reads_input = random() % 2 == 0;
  if (random() % 3 == 0) {
    for (const StageOption& option : stage.options) {
      if (random() % 2 == 0) part.options.push_back(option.name);
    }
  }
  if (random() % 2 == 0) {
    Nanos longest;
    for (const StageOption& option : stage.options) {
      longest = std::max(longest, option.backward.time);
    }
    part.rest =
        Cost{longest - part.cost.time + Nanos(between(random, 0, 3)), Bytes(between(random, 0, 4))};
  }
  return part;
}

}  // namespace

Pipeline random_pipeline(std::mt19937_64& random, const RandomPipelineOptions& options) {
  Pipeline pipeline;
  pipeline.name = "random";
  pipeline.chain = random_chain(random, options.chain);
  pipeline.micro_batches = between(random, 1, options.max_micro_batches);
  for (const Stage& stage : pipeline.chain.stages) {
    PipelineStage entry{.fixed = Bytes(between(random, 0, 10))};
    if (options.weight_parts && random() % 3 != 0) {
      entry.weight_part = random_weight_part(random, stage, options.split_costs);
    }
    if (options.split_costs) {
      entry.output_in_workspace = Bytes(between(random, 0, stage.output.count()));
    }
    pipeline.stages.push_back(entry);
  }
  const int64_t devices = between(random, options.min_devices, options.max_devices);
  for (int64_t d = 0; d < devices; ++d) {
    PipelineDevice device{fmt::format("gpu{}", d)};
    if (options.speeds && random() % 2 == 0) device.time_percent = between(random, 50, 200);
    if (options.memories && random() % 2 == 0) device.memory = Bytes(between(random, 0, 400));
    pipeline.devices.push_back(device);
  }
  for (int32_t a = 0; a < devices; ++a) {
    for (int32_t b = 0; b < devices; ++b) {
      if (a == b) continue;
      Link link{a, b, std::numeric_limits<int64_t>::max(), Nanos(0)};
      if (options.messages) {
        link.bytes_per_second = between(random, 100'000'000, 5'000'000'000);
        link.latency = Nanos(between(random, 0, 10));
      }
      pipeline.links.push_back(link);
    }
  }
  validate(pipeline);
  return pipeline;
}

Pipeline equal_stages(int devices, int64_t micro_batches, Nanos forward, Nanos input, Nanos weight,
                      int stages_per_device) {
  Chain chain;
  chain.name = "equal";
  for (int i = 0; i < devices * stages_per_device; ++i) {
    Stage stage;
    stage.name = fmt::format("s{}", i);
    stage.forward.time = forward;
    StageOption keep;
    keep.saved = Bytes(10);
    keep.reads_output = keep.reads_input = false;
    keep.forward.time = forward;
    keep.backward.time = input + weight;
    stage.options = {keep};
    chain.stages.push_back(stage);
  }
  Pipeline pipeline = pipeline_of_equal_devices(
      chain, devices, micro_batches,
      Link{.bytes_per_second = std::numeric_limits<int64_t>::max(), .latency = Nanos(0)});
  for (int i = 0; i < devices * stages_per_device; ++i) {
    PipelineStage entry;
    if (weight > Nanos(0)) entry.weight_part = WeightPart{{weight, Bytes(0)}, Bytes(2)};
    pipeline.stages.push_back(entry);
  }
  return pipeline;
}

}  // namespace reprise::testing
