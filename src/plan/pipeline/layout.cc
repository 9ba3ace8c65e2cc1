#include "plan/pipeline/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::internal::pipeline {
namespace {

StageTimes sums_of(const Pipeline& pipeline, bool plain) {
  StageTimes times{{Nanos(0)}, {Nanos(0)}, {Nanos(0)}};
  const std::vector<Stage>& stages = pipeline.chain.stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    Nanos forward = stages[i].options.front().forward.time;
    Nanos backward = stages[i].options.front().backward.time;
    if (!plain) {
      forward = std::min(forward, stages[i].forward.time);
      for (const StageOption& option : stages[i].options) {
        forward = std::min(forward, option.forward.time);
        backward = std::min(backward, option.backward.time);
      }
    }
    if (i + 1 == stages.size()) backward += pipeline.chain.loss.cost.time;
    const WeightPart* weights = weight_part(pipeline, i);
    times.forward.push_back(times.forward.back() + forward);
    times.backward.push_back(times.backward.back() + backward);
    times.weights.push_back(times.weights.back() + (weights ? weights->cost.time : Nanos(0)));
  }
  return times;
}

std::vector<size_t> cuts_of_user(const Pipeline& pipeline, const std::vector<int64_t>& given,
                                 size_t most) {
  const size_t stages = pipeline.chain.stages.size();
  std::vector<size_t> cuts{0};
  for (const int64_t cut : given) {
    if (cut <= static_cast<int64_t>(cuts.back()) || cut >= static_cast<int64_t>(stages)) {
      throw InputError(
          fmt::format("the cut {} is wrong: cuts ascend, and lie in 1..{}", cut, stages - 1));
    }
    cuts.push_back(static_cast<size_t>(cut));
  }
  if (cuts.size() > most) {
    throw InputError(fmt::format("{} cuts make {} parts, and {} devices take at most {}",
                                 given.size(), cuts.size(), pipeline.devices.size(), most));
  }
  cuts.push_back(stages);
  return cuts;
}

}  // namespace

StageTimes least_times(const Pipeline& pipeline) { return sums_of(pipeline, false); }
StageTimes plain_times(const Pipeline& pipeline) { return sums_of(pipeline, true); }

std::vector<size_t> balanced_cuts(const Pipeline& pipeline, const StageTimes& times,
                                  const std::vector<int32_t>& device) {
  const size_t stages = pipeline.chain.stages.size(), parts = device.size();
  constexpr Nanos kNever{std::numeric_limits<int64_t>::max()};
  // best[e]: the least slowest part of the parts so far, over the stages before e.
  std::vector<Nanos> best(stages + 1, kNever);
  best[0] = Nanos(0);
  std::vector<std::vector<size_t>> from(parts, std::vector<size_t>(stages + 1, 0));
  for (size_t q = 0; q < parts; ++q) {
    const PipelineDevice& on = pipeline.devices[device[q]];
    std::vector<Nanos> next(stages + 1, kNever);
    for (size_t e = q + 1; e + (parts - q - 1) <= stages; ++e) {
      for (size_t f = q; f < e; ++f) {
        if (best[f] == kNever) continue;
        const Nanos slowest = std::max(best[f], time_on(on, times.both(f, e)));
        if (slowest >= next[e]) continue;
        next[e] = slowest;
        from[q][e] = f;
      }
    }
    best = std::move(next);
  }
  std::vector<size_t> cuts(parts + 1, stages);
  for (size_t q = parts; q-- > 0;) cuts[q] = from[q][cuts[q + 1]];
  return cuts;
}

void require_links(const Pipeline& pipeline, const Layout& layout) {
  for (size_t q = 0; q + 1 < layout.parts(); ++q) {
    const int32_t a = layout.device[q], b = layout.device[q + 1];
    if (a == b) continue;
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      if (find_link(pipeline, from, to) >= 0) continue;
      throw InputError(
          fmt::format("parts {} and {} exchange messages, and there is no link from "
                      "\"{}\" to \"{}\"; add it to the links of the pipeline",
                      q, q + 1, pipeline.devices[from].name, pipeline.devices[to].name),
          {.pointer = "/links"});
    }
  }
}

Layout layout_of(const Pipeline& pipeline, const std::vector<int64_t>& given,
                 int64_t parts_per_device) {
  const size_t stages = pipeline.chain.stages.size(), devices = pipeline.devices.size();
  if (parts_per_device < 1) {
    throw InputError(fmt::format("{} parts on each device are too few; a device has at least one",
                                 parts_per_device));
  }
  const size_t used = std::min(devices, stages);
  const size_t rounds = std::min(static_cast<size_t>(parts_per_device), stages / used);
  Layout layout;
  if (!given.empty()) layout.cuts = cuts_of_user(pipeline, given, devices * rounds);
  const size_t parts = given.empty() ? used * rounds : layout.cuts.size() - 1;
  const size_t in_turn = std::min(devices, parts);
  for (size_t q = 0; q < parts; ++q) layout.device.push_back(static_cast<int32_t>(q % in_turn));
  if (given.empty()) {
    layout.cuts = balanced_cuts(pipeline, plain_times(pipeline), layout.device);
  }
  return layout;
}

}  // namespace reprise::internal::pipeline
