#include "plan/pipeline/part_costs.h"

#include <algorithm>

#include "plan/common/by_level.h"
#include "plan/pipeline/bound.h"

namespace reprise::internal::pipeline {
namespace {

constexpr Nanos kNotKnown{-1};

// The most bytes that a way may be given. More than everything that a micro-batch can hold is no limit.
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

common::SearchControl control_of(const PipelineProblem& problem, const char* planner) {
  return {PlanOptions{.time_limit = problem.options.time_limit, .observer = problem.options.observer},
          planner};
}

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
  for (size_t i = 0; i < stages_; ++i) split_ = split_ || weight_part(problem.pipeline, i) != nullptr;
  known_.assign(parts * (stages_ + 1) * (stages_ + 1), kNotKnown);
}

const PipelineDevice& PartCosts::device(size_t part) const {
  return problem_.pipeline.devices[static_cast<size_t>(device_[part])];
}

void PartCosts::set_less(int64_t less) {
  if (less == less_) return;
  less_ = less;
  std::ranges::fill(known_, kNotKnown);
}

int64_t PartCosts::in_flight(size_t part) const {
  const auto flight = static_cast<int64_t>(parts() - part) - less_;
  return std::clamp<int64_t>(flight, 1, problem_.pipeline.micro_batches);
}

int64_t PartCosts::room(size_t part, size_t first, size_t end) const {
  return problem_.budgets[static_cast<size_t>(device_[part])].count() - plans_.fixed(first, end);
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
  Nanos sum, least;
  for (size_t q = 0; q < parts(); ++q) {
    const Nanos one = time(q, cuts[q], cuts[q + 1]);
    if (one == kNoTime) return kNoTime;
    sum += one;
    // The slowest part has all micro-batches, behind the way of the first one to it and back.
    least = std::max(least, one * problem_.pipeline.micro_batches + way_to(q, cuts[q]));
  }
  return std::max(sum, least);
}

// The first activation's way to a part and the last gradient's way back, if all devices on it were
// as fast as the fastest, and links took no time.
Nanos PartCosts::way_to(size_t part, size_t first) const {
  if (part == 0) return Nanos(0);
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (size_t q = 0; q < part; ++q) fastest = std::min(fastest, device(q).time_percent);
  const Nanos time = times_.both(0, first) - times_.weights_of(0, first);
  __extension__ using Wide = __int128;
  return Nanos(static_cast<int64_t>(Wide{time.count()} * fastest / 100));
}

Nanos PartCosts::least_of_part(size_t part, size_t first, size_t end) {
  const PipelineDevice& on = device(part);
  const int64_t micro_batches = problem_.pipeline.micro_batches;
  const Nanos plain = time_on(on, times_.both(first, end));
  Nanos work = plain * micro_batches;
  if (!split_ && complete() && micro_batches > 1) {
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
  // Weight gradients may come behind the last gradient's way back.
  const Nanos weights = time_on(on, times_.weights_of(first, end)) * micro_batches;
  const Nanos there = way_to(part, first);
  return std::max(work + there - std::min(weights, there), work);
}

Nanos PartCosts::bound() {
  if (!given_.empty()) {
    return bound_of(problem_.pipeline, Layout{given_, device_}, times_);
  }
  // best[e]: the least largest of what the parts so far need, over the stages before e.
  std::vector<Nanos> best(stages_ + 1, kNoTime);
  best[0] = Nanos(0);
  Nanos all = kNoTime;
  for (size_t q = 0; q < parts(); ++q) {
    std::vector<Nanos> next(stages_ + 1, kNoTime);
    for (size_t e = q + 1; e <= stages_; ++e) {
      for (size_t f = q; f < e; ++f) {
        if (best[f] == kNoTime) continue;
        next[e] = std::min(next[e], std::max(best[f], least_of_part(q, f, e)));
      }
    }
    best = std::move(next);
    all = std::min(all, best[stages_]);  // The devices behind may stay empty.
  }
  return all;
}

}  // namespace reprise::internal::pipeline
