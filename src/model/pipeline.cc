#include "reprise/model/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "model/stages.h"
#include "reprise/model/errors.h"
#include "reprise/model/machine.h"

namespace reprise {
namespace {

constexpr int64_t kMostPercent = 1'000'000;
__extension__ using Wide128 = __int128;

[[noreturn]] void refuse_pipeline(const std::string& pointer, const std::string& message) {
  throw InputError(message, {.pointer = pointer});
}

void check_chain(const Chain& chain) {
  try {
    validate(chain);
  } catch (const InputError& error) {
    Location at = error.where();
    std::string message = error.what();
    const std::string prefix = format_location(at, "");
    if (!prefix.empty() && message.starts_with(prefix)) message.erase(0, prefix.size());
    at.pointer = "/chain" + at.pointer;
    throw InputError(message, at);
  }
}

bool covers(const WeightPart& part, const StageOption& option) {
  return part.options.empty() || std::ranges::find(part.options, option.name) != part.options.end();
}

void check_split_options(const WeightPart& part, const Stage& stage, const std::string& at) {
  for (size_t k = 0; k < part.options.size(); ++k) {
    const bool known = std::ranges::any_of(
        stage.options, [&](const StageOption& option) { return option.name == part.options[k]; });
    if (known) continue;
    refuse_pipeline(fmt::format("{}/options/{}", at, k),
                    fmt::format("stage \"{}\" has no option \"{}\"", stage.name, part.options[k]));
  }
  for (const StageOption& option : stage.options) {
    if (!part.rest || !covers(part, option)) continue;
    const Nanos both = part.rest->time + part.cost.time;
    if (both >= option.backward.time) continue;
    refuse_pipeline(
        at + "/input_gradient/ns",
        fmt::format("both parts of the backward of stage \"{}\" take {} ns, less than the backward "
                    "of its option \"{}\" in one ({} ns)",
                    stage.name, both.count(), option.name, option.backward.time.count()));
  }
}

void check_weight_part(const WeightPart& part, const Stage& stage, const std::string& at,
                       internal::Sums& sums) {
  sums.add(part.cost, at);
  sums.add(part.kept, at + "/kept_bytes");
  if (part.rest) sums.add(*part.rest, at + "/input_gradient");
  check_split_options(part, stage, at);
  for (const StageOption& option : stage.options) {
    if (part.cost.time <= option.backward.time) continue;
    refuse_pipeline(
        at + "/ns",
        fmt::format("the weight part of stage \"{}\" takes {} ns, longer than the "
                    "backward of its option \"{}\" ({} ns), which it is a part of",
                    stage.name, part.cost.time.count(), option.name, option.backward.time.count()));
  }
}

void check_stage_entries(const Pipeline& pipeline) {
  const size_t count = pipeline.chain.stages.size();
  if (pipeline.stages.empty()) return;
  if (pipeline.stages.size() != count) {
    refuse_pipeline("/stages", fmt::format("has {} entries, and the chain has {} stages; give one "
                                           "for each stage, or leave the key out",
                                           pipeline.stages.size(), count));
  }
  internal::Sums sums;
  sums.add(pipeline.chain.fixed, "/chain/fixed_bytes");
  for (size_t i = 0; i < count; ++i) {
    const std::string at = fmt::format("/stages/{}", i);
    sums.add(pipeline.stages[i].fixed, at + "/fixed_bytes");
    sums.add(pipeline.stages[i].output_in_workspace, at + "/output_in_workspace_bytes");
    if (pipeline.stages[i].output_in_workspace > pipeline.chain.stages[i].output) {
      refuse_pipeline(
          at + "/output_in_workspace_bytes",
          fmt::format("is larger than the output of stage \"{}\"", pipeline.chain.stages[i].name));
    }
    const auto& part = pipeline.stages[i].weight_part;
    if (part) check_weight_part(*part, pipeline.chain.stages[i], at + "/weight_part", sums);
  }
}

void check_devices(const std::vector<PipelineDevice>& devices) {
  if (devices.empty()) refuse_pipeline("/devices", "a pipeline has at least one device");
  if (devices.size() > kMostDevices) {
    refuse_pipeline("/devices", fmt::format("a pipeline has at most {} devices", kMostDevices));
  }
  std::set<std::string_view> names;
  for (size_t d = 0; d < devices.size(); ++d) {
    const std::string at = fmt::format("/devices/{}", d);
    if (devices[d].name.empty()) refuse_pipeline(at + "/name", "a device must have a name");
    if (!names.insert(devices[d].name).second) {
      refuse_pipeline(at + "/name", fmt::format("two devices are named \"{}\"", devices[d].name));
    }
    if (devices[d].memory && *devices[d].memory < Bytes(0)) {
      refuse_pipeline(at + "/bytes", "a memory must not be negative");
    }
    if (devices[d].time_percent < 1 || devices[d].time_percent > kMostPercent) {
      refuse_pipeline(at + "/time_percent",
                      fmt::format("must be in 1..{}; 100 is as fast as the device on which the "
                                  "chain was measured",
                                  kMostPercent));
    }
  }
}

void check_links(const Pipeline& pipeline) {
  const auto devices = static_cast<int32_t>(pipeline.devices.size());
  std::set<std::pair<int32_t, int32_t>> directions;
  for (size_t l = 0; l < pipeline.links.size(); ++l) {
    const Link& link = pipeline.links[l];
    const std::string at = fmt::format("/links/{}", l);
    if (link.from < 0 || link.from >= devices) {
      refuse_pipeline(at + "/from", "the pipeline has no such device");
    }
    if (link.to < 0 || link.to >= devices) {
      refuse_pipeline(at + "/to", "the pipeline has no such device");
    }
    if (link.from == link.to) refuse_pipeline(at + "/to", "a link joins two different devices");
    if (link.bytes_per_second < 1) {
      refuse_pipeline(at + "/bytes_per_second", "a link carries at least one byte a second");
    }
    if (link.latency < Nanos(0)) {
      refuse_pipeline(at + "/latency_ns", "a latency must not be negative");
    }
    if (!directions.emplace(link.from, link.to).second) {
      refuse_pipeline(
          at, fmt::format("there are two links from \"{}\" to \"{}\"",
                          pipeline.devices[link.from].name, pipeline.devices[link.to].name));
    }
  }
}

// Sums over all micro-batches and devices must fit 64 bits, with room for what runs twice.
void check_sums(const Pipeline& pipeline) {
  Wide128 bytes = pipeline.chain.input.bytes.count(), time = pipeline.chain.loss.cost.time.count();
  for (const Stage& stage : pipeline.chain.stages) {
    bytes += stage.output.count();
    bytes += stage.output_gradient.value_or(stage.output).count();
    bytes += stage.weight_gradient.count();
    time += stage.forward.time.count();
    for (const StageOption& option : stage.options) {
      bytes += option.saved.count();
      time += option.forward.time.count();
      time += option.backward.time.count();
    }
  }
  int64_t slowest = 100;
  for (const PipelineDevice& device : pipeline.devices) {
    slowest = std::max(slowest, device.time_percent);
  }
  constexpr Wide128 kMost = std::numeric_limits<int64_t>::max();
  if (bytes * pipeline.micro_batches > kMost / 4 ||
      time * pipeline.micro_batches * slowest / 100 > kMost / 4) {
    refuse_pipeline("/micro_batches",
                    "the sum of all sizes or of all times over the micro-batches does not fit 64 "
                    "bits; use smaller numbers");
  }
}

}  // namespace

void validate(const Pipeline& pipeline) {
  check_chain(pipeline.chain);
  if (pipeline.micro_batches < 1 || pipeline.micro_batches > kMostMicroBatches) {
    refuse_pipeline("/micro_batches", fmt::format("must be in 1..{}, is {}", kMostMicroBatches,
                                                  pipeline.micro_batches));
  }
  const auto stages = static_cast<int64_t>(pipeline.chain.stages.size());
  if (stages > kMostStageRuns / pipeline.micro_batches) {
    refuse_pipeline("/micro_batches",
                    fmt::format("{} micro-batches of {} stages are more than {}, the most that can "
                                "be planned; merge stages or make larger micro-batches",
                                pipeline.micro_batches, stages, kMostStageRuns));
  }
  check_stage_entries(pipeline);
  check_devices(pipeline.devices);
  check_links(pipeline);
  check_sums(pipeline);
}

Pipeline restrict_exactness(const Pipeline& pipeline, Exactness allowed) {
  Pipeline result = pipeline;
  internal::restrict_stages(result.chain.stages, allowed, "/chain");
  for (size_t i = 0; i < result.stages.size(); ++i) {
    auto& part = result.stages[i].weight_part;
    if (!part || part->options.empty()) continue;
    std::erase_if(part->options, [&](const std::string& name) {
      return std::ranges::none_of(result.chain.stages[i].options,
                                  [&](const StageOption& option) { return option.name == name; });
    });
    if (part->options.empty()) part.reset();
  }
  return result;
}

int32_t find_link(const Pipeline& pipeline, int32_t from, int32_t to) {
  for (size_t l = 0; l < pipeline.links.size(); ++l) {
    if (pipeline.links[l].from == from && pipeline.links[l].to == to)
      return static_cast<int32_t>(l);
  }
  return -1;
}

Nanos message_time(const Link& link, Bytes bytes) {
  return copy_time({.bytes_per_second = link.bytes_per_second, .latency = link.latency}, bytes);
}

Nanos time_on(const PipelineDevice& device, Nanos time) {
  if (device.time_percent == 100) return time;
  const Wide128 scaled = (Wide128{time.count()} * device.time_percent + 99) / 100;
  if (scaled > std::numeric_limits<int64_t>::max()) internal::throw_overflow();
  return Nanos(static_cast<int64_t>(scaled));
}

Bytes stage_fixed(const Pipeline& pipeline, size_t stage) {
  return pipeline.stages.empty() ? Bytes(0) : pipeline.stages[stage].fixed;
}

const WeightPart* weight_part(const Pipeline& pipeline, size_t stage) {
  if (pipeline.stages.empty() || !pipeline.stages[stage].weight_part) return nullptr;
  return &*pipeline.stages[stage].weight_part;
}

const WeightPart* weight_part(const Pipeline& pipeline, size_t stage, const StageOption& option) {
  const WeightPart* part = weight_part(pipeline, stage);
  return part != nullptr && covers(*part, option) ? part : nullptr;
}

Cost rest_of_backward(const WeightPart& part, const StageOption& option) {
  if (part.rest) return *part.rest;
  return {option.backward.time - part.cost.time, option.backward.workspace};
}

Pipeline pipeline_of_equal_devices(const Chain& chain, int64_t devices, int64_t micro_batches,
                                   const Link& link, std::optional<Bytes> memory) {
  if (devices < 1 || devices > static_cast<int64_t>(kMostDevices)) {
    throw InputError(fmt::format("a pipeline has 1 to {} devices, not {}", kMostDevices, devices));
  }
  Pipeline pipeline;
  pipeline.name = chain.name;
  pipeline.chain = chain;
  pipeline.micro_batches = micro_batches;
  for (int32_t d = 0; d < devices; ++d) {
    pipeline.devices.push_back({fmt::format("device{}", d), memory});
    if (d == 0) continue;
    pipeline.links.push_back({d - 1, d, link.bytes_per_second, link.latency});
    pipeline.links.push_back({d, d - 1, link.bytes_per_second, link.latency});
  }
  // Schedules with several parts a device also send from the last device to the first.
  if (devices > 2) {
    const auto last = static_cast<int32_t>(devices - 1);
    pipeline.links.push_back({last, 0, link.bytes_per_second, link.latency});
    pipeline.links.push_back({0, last, link.bytes_per_second, link.latency});
  }
  validate(pipeline);
  return pipeline;
}

bool is_compute(PipelineActionKind kind) {
  switch (kind) {
    case PipelineActionKind::kForward:
    case PipelineActionKind::kBackward:
    case PipelineActionKind::kInputGradient:
    case PipelineActionKind::kWeightGradient:
      return true;
    case PipelineActionKind::kReceive:
    case PipelineActionKind::kSend:
    case PipelineActionKind::kWait:
      return false;
  }
  return false;
}

bool is_backward(PipelineActionKind kind) {
  return kind == PipelineActionKind::kBackward || kind == PipelineActionKind::kInputGradient;
}

std::string name_of(const PartRun& run) {
  if (run.phase == Phase::kLoss) return "loss";
  return fmt::format("{}{}", run.phase == Phase::kForward ? 'F' : 'B', run.stage);
}

const char* to_string(PipelineActionKind kind) {
  switch (kind) {
    case PipelineActionKind::kForward:
      return "forward";
    case PipelineActionKind::kBackward:
      return "backward";
    case PipelineActionKind::kInputGradient:
      return "input_gradient";
    case PipelineActionKind::kWeightGradient:
      return "weight_gradient";
    case PipelineActionKind::kReceive:
      return "receive";
    case PipelineActionKind::kSend:
      return "send";
    case PipelineActionKind::kWait:
      return "wait";
  }
  return "?";
}

const char* to_string(MessageKind kind) {
  switch (kind) {
    case MessageKind::kActivation:
      return "activation";
    case MessageKind::kGradient:
      return "gradient";
  }
  return "?";
}

std::string describe(const PipelineAction& action) {
  const std::string what = is_compute(action.kind) ? to_string(action.kind)
                                                   : fmt::format("{} {}", to_string(action.kind),
                                                                 to_string(action.message));
  return fmt::format("{}, part {}, micro-batch {}", what, action.part, action.micro_batch);
}

}  // namespace reprise
