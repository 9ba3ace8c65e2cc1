#include "plan/pipeline/part_costs.h"

#include <algorithm>
#include <utility>

#include "plan/common/by_level.h"
#include "plan/pipeline/bound.h"

namespace reprise::internal::pipeline {
namespace {

constexpr Nanos kNotKnown{-1};

// Returns the most bytes that a way may be given. More than everything that a micro-batch can hold
// is no limit.
int64_t most_memory(const PipelineProblem& problem) {
  const Chain& chain = problem.pipeline.chain;
  int64_t most = 0;
  for (const Bytes budget : problem.budgets) most = std::max(most, budget.count());
  int64_t all = chain.loss.cost.workspace.count() + chain.input.gradient.count();
  for (const Stage& stage : chain.stages) {
    int64_t largest = 0;
    for (const StageOption& option : stage.options) {
      largest = std::max(largest, option.saved.count() + option.forward.workspace.count() +
                                      option.backward.workspace.count());
    }
    all += largest + 2 * stage.output.count() + stage.forward.workspace.count() +
           2 * stage.output_gradient.value_or(stage.output).count() + stage.weight_gradient.count();
  }
  return std::min(most, all);
}

}  // namespace

PartCosts::PartCosts(const PipelineProblem& problem, Pieces pieces, common::SearchControl& control)
    : problem_(problem),
      stages_(problem.pipeline.chain.stages.size()),
      times_(least_times(problem.pipeline)),
      plans_(problem.pipeline, pieces, most_memory(problem),
             common::thread_count(problem.options.threads), control) {
  size_t parts = std::min(problem.pipeline.devices.size(), stages_);
  if (!problem.options.cuts.empty()) {
    given_ = layout_of(problem.pipeline, problem.options.cuts, 1).cuts;
    parts = given_.size() - 1;
  }
  for (size_t q = 0; q < parts; ++q) device_.push_back(static_cast<int32_t>(q));
  rule_ = alternate_rule(problem.pipeline, parts);
  for (size_t q = 0; q + 1 < parts; ++q) {
    Nanos least = kNoTime;
    for (size_t e = 1; e < stages_; ++e) least = std::min(least, there_and_back(q, e));
    crossings_.push_back(least);
  }
  known_.assign(parts * (stages_ + 1) * (stages_ + 1), kNotKnown);
}

const PipelineDevice& PartCosts::device(size_t part) const {
  return problem_.pipeline.devices[device_[part]];
}

void PartCosts::set_rule(OrderRule rule) {
  if (rule.held != rule_.held) std::ranges::fill(known_, kNotKnown);
  rule_ = std::move(rule);
}

int64_t PartCosts::in_flight(size_t part) const {
  return std::min(rule_.held[part], problem_.pipeline.micro_batches);
}

int64_t PartCosts::room(size_t part, size_t first, size_t end) const {
  return problem_.budgets[device_[part]].count() - plans_.fixed(first, end);
}

std::optional<Way> PartCosts::way(size_t part, size_t first, size_t end, int64_t reserved) {
  return plans_.best(first, end, in_flight(part), room(part, first, end) - reserved);
}

Nanos PartCosts::time(size_t part, size_t first, size_t end) {
  Nanos& known = known_[(part * (stages_ + 1) + first) * (stages_ + 1) + end];
  if (known != kNotKnown) return known;
  const std::optional<Way> found = way(part, first, end);
  known = found ? time_on(device(part), plans_.time(first, end, *found)) : kNoTime;
  return known;
}

Nanos PartCosts::least_time(const std::vector<size_t>& cuts) {
  const int64_t micro_batches = problem_.pipeline.micro_batches;
  Nanos way, least;  // the way of one micro-batch, without weight parts that may come later
  for (size_t q = 0; q < parts(); ++q) {
    const Nanos one = time(q, cuts[q], cuts[q + 1]);
    if (one == kNoTime) return kNoTime;
    const Nanos weights = rule_.splits_backwards()
                              ? time_on(device(q), times_.weights_of(cuts[q], cuts[q + 1]))
                              : Nanos(0);
    way += one - std::min(one, weights);
    if (q > 0) way += there_and_back(q - 1, cuts[q]);
    least = std::max(least, time_at(q, cuts[q], one * micro_batches, weights * micro_batches));
    if (q > 0) least = std::max(least, least_of_link(q - 1, cuts[q]));
  }
  return std::max(way, least);
}

// Returns the time on the fastest of these devices, rounded down.
Nanos PartCosts::fastest_time(size_t from, size_t to, Nanos time) const {
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (size_t q = from; q < to; ++q) fastest = std::min(fastest, device(q).time_percent);
  if (from == to) return Nanos(0);
  __extension__ using Wide = __int128;
  return Nanos(static_cast<int64_t>(Wide{time.count()} * fastest / 100));
}

// Returns the time of an activation from a part to the next one and of a gradient back, without
// waiting.
Nanos PartCosts::there_and_back(size_t crossing, size_t boundary) const {
  const Pipeline& pipeline = problem_.pipeline;
  const int32_t a = device_[crossing], b = device_[crossing + 1];
  return message_between(pipeline, a, b, boundary_bytes(pipeline.chain, boundary)) +
         message_between(pipeline, b, a, boundary_gradient_bytes(pipeline.chain, boundary));
}

// Returns the least time of the first activation's way to a part and of the last gradient's way back.
Nanos PartCosts::way_to(size_t part, size_t first) const {
  if (part == 0) return Nanos(0);
  Nanos time = fastest_time(0, part, times_.both(0, first) - times_.weights_of(0, first));
  for (size_t q = 0; q + 1 < part; ++q) time += crossings_[q];
  return time + there_and_back(part - 1, first);
}

// Returns the least time of a step in which a part has so much work. The weight gradients in it may
// come behind the last gradient's way back.
Nanos PartCosts::time_at(size_t part, size_t first, Nanos work, Nanos weights) const {
  const Nanos there = way_to(part, first);
  return work + there - std::min(weights, there);
}

// Returns the least time of a step in which all micro-batches cross a boundary at this crossing.
Nanos PartCosts::least_of_link(size_t crossing, size_t boundary) const {
  const Pipeline& pipeline = problem_.pipeline;
  const int32_t a = device_[crossing], b = device_[crossing + 1];
  const Nanos slower =
      std::max(message_between(pipeline, a, b, boundary_bytes(pipeline.chain, boundary)),
               message_between(pipeline, b, a, boundary_gradient_bytes(pipeline.chain, boundary)));
  const Nanos behind = fastest_time(
      crossing + 1, parts(), times_.both(boundary, stages_) - times_.weights_of(boundary, stages_));
  return way_to(crossing + 1, boundary) + behind + slower * (pipeline.micro_batches - 1);
}

Nanos PartCosts::least_of_part(size_t part, size_t first, size_t end) {
  const PipelineDevice& on = device(part);
  const int64_t micro_batches = problem_.pipeline.micro_batches;
  const Nanos plain = time_on(on, times_.both(first, end));
  Nanos work = plain * micro_batches;
  if (!has_weight_parts(problem_.pipeline) && complete() && micro_batches > 1) {
    // From the second micro-batch on, the weight gradients of the part are there, as room() counts.
    // The gradients of the other inputs may come later.
    int64_t memory = room(part, first, end);
    if (first == 0) memory += problem_.pipeline.chain.input.gradient.count() * (micro_batches - 1);
    const std::optional<Way> way = plans_.best(first, end, 1, memory);
    if (plans_.exact()) {
      if (!way) return kNoTime;
      work = plain + time_on(on, plans_.time(first, end, *way)) * (micro_batches - 1);
    }
  }
  return time_at(part, first, work, time_on(on, times_.weights_of(first, end)) * micro_batches);
}

bool PartCosts::allowed(size_t part, size_t first, size_t end) const {
  return given_.empty() || (first == given_[part] && end == given_[part + 1]);
}

// Returns the least time in which one micro-batch goes through all parts and back.
Nanos PartCosts::shortest_way() const {
  std::vector<Nanos> best(stages_ + 1, kNoTime);
  best[0] = Nanos(0);
  Nanos all = kNoTime;
  for (size_t q = 0; q < parts(); ++q) {
    std::vector<Nanos> next(stages_ + 1, kNoTime);
    for (size_t e = q + 1; e <= stages_; ++e) {
      for (size_t f = q; f < e; ++f) {
        if (best[f] == kNoTime || !allowed(q, f, e)) continue;
        const Nanos work = time_on(device(q), times_.both(f, e) - times_.weights_of(f, e));
        next[e] = std::min(next[e], best[f] + work + (q > 0 ? there_and_back(q - 1, f) : Nanos(0)));
      }
    }
    best = std::move(next);
    all = std::min(all, best[stages_]);
  }
  return all;
}

Nanos PartCosts::bound() {
  // best[e]: the least largest of what the parts so far need, over the stages before e.
  std::vector<Nanos> best(stages_ + 1, kNoTime);
  best[0] = Nanos(0);
  Nanos all = kNoTime;
  for (size_t q = 0; q < parts(); ++q) {
    std::vector<Nanos> next(stages_ + 1, kNoTime);
    for (size_t e = q + 1; e <= stages_; ++e) {
      for (size_t f = q; f < e; ++f) {
        if (best[f] == kNoTime || !allowed(q, f, e)) continue;
        Nanos time = std::max(best[f], least_of_part(q, f, e));
        if (q > 0) time = std::max(time, least_of_link(q - 1, f));
        next[e] = std::min(next[e], time);
      }
    }
    best = std::move(next);
    all = std::min(all, best[stages_]);  // The devices behind may stay empty.
  }
  return std::max(all, shortest_way());
}

}  // namespace reprise::internal::pipeline
