#include "plan/pipeline/part_plans.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "plan/chain/branches.h"
#include "plan/chain/trace.h"
#include "reprise/model/lower.h"

namespace reprise::internal::pipeline {
namespace {

// Labels and steps beyond these numbers are left out, and the answer is no longer proven.
constexpr size_t kMostLabelsAPlace = 160;
constexpr size_t kMostStepsABlock = 24;
constexpr uint32_t kNoLabel = UINT32_MAX;

// Returns the chain in which weight gradients are a workspace of the backward that makes them.
Chain with_summed_weights(const Chain& chain) {
  Chain result = chain;
  for (Stage& stage : result.stages) {
    for (StageOption& option : stage.options) option.backward.workspace += stage.weight_gradient;
    stage.weight_gradient = Bytes(0);
  }
  return result;
}

// A Skyline is a staircase of points (x, y) that no other point beats in both.
class Skyline {
 public:
  // Returns false if a point is as good or better.
  bool add(int64_t x, int64_t y) {
    auto after = points_.upper_bound(x);
    if (after != points_.begin() && std::prev(after)->second <= y) return false;
    while (after != points_.end() && after->second >= y) after = points_.erase(after);
    points_[x] = y;
    return true;
  }

 private:
  std::map<int64_t, int64_t> points_;  // y descends
};

// Keeps what no other one beats in all three numbers, sorted by cost; returns whether all are left.
template <class T, class Cost, class Held, class Peak>
bool keep_undominated(std::vector<T>& all, const Cost& cost, const Held& held, const Peak& peak) {
  std::ranges::sort(all, [&](const T& a, const T& b) {
    return std::tuple(cost(a), held(a), peak(a)) < std::tuple(cost(b), held(b), peak(b));
  });
  Skyline seen;
  std::erase_if(all, [&](const T& one) { return !seen.add(held(one), peak(one)); });
  if (all.size() <= kMostLabelsAPlace) return true;
  std::vector<T> few;
  for (size_t k = 0; k < kMostLabelsAPlace; ++k) {
    few.push_back(all[k * (all.size() - 1) / (kMostLabelsAPlace - 1)]);
  }
  all = std::move(few);
  return false;
}

}  // namespace

struct PartPlans::Label {
  int64_t cost = 0;
  int64_t held = 0;  // without the activation of its boundary, unless that is pinned
  int64_t peak = 0;
  uint32_t below = kNoLabel;
  // The piece on top.
  uint32_t first = 0, end = 0;
  int32_t option = -1;        // -1: a block
  int64_t sweep_memory = 0;   // of a block: of its sweep, without its input
  int64_t room = 0;           // of a block: the memory of its recurrence
  bool pinned_below = false;  // whether its input is pinned
};

// Stacks are the stacks of all parts that begin with one stage.
class PartPlans::Stacks {
 public:
  Stacks(const PartPlans& parts, size_t first)
      : parts_(parts), model_(parts.model_), first_(first) {
    const size_t boundaries = model_.stages + 1;
    places_.resize(2 * boundaries);
    ways_.resize(boundaries);
    Label start;
    start.end = static_cast<uint32_t>(first);
    places_[2 * first + (first == 0 ? 1 : 0)].push_back(start);
  }

  // Extends the stacks to this boundary. Returns whether none was left out.
  const std::vector<Way>& ways_to(size_t end, bool& exact) {
    while (done_ < end) {
      extend(std::max(done_, first_), false);
      extend(std::max(done_, first_), true);
      done_ = std::max(done_, first_) + 1;
      settle(done_, exact);
    }
    exact = exact && complete_;
    return ways_[end];
  }

  const Label& label(uint32_t position) const { return labels_[position]; }
  size_t bytes() const { return labels_.capacity() * sizeof(Label); }

 private:
  int64_t activation(size_t k) const { return k == 0 ? 0 : model_.x[k]; }

  // Drops beaten stacks at a boundary and writes the rest down.
  void settle(size_t boundary, bool& exact) {
    for (size_t pin = 0; pin < 2; ++pin) {
      std::vector<Label>& here = places_[2 * boundary + pin];
      exact = keep_undominated(
                  here, [](const Label& l) { return l.cost; },
                  [](const Label& l) { return l.held; }, [](const Label& l) { return l.peak; }) &&
              exact;
      for (const Label& one : here) {
        finish(boundary, one, pin == 1, static_cast<uint32_t>(labels_.size()));
        labels_.push_back(one);
      }
      positions_end_[2 * boundary + pin] = labels_.size();
    }
    exact = keep_undominated(
                ways_[boundary], [](const Way& w) { return w.cost; },
                [](const Way& w) { return w.retained; }, [](const Way& w) { return w.peak; }) &&
            exact;
  }

  // The stack is all that the forward of a part does that ends here.
  void finish(size_t boundary, const Label& one, bool pinned, uint32_t position) {
    const int64_t output = pinned ? 0 : activation(boundary);
    Way way{.cost = one.cost, .retained = one.held, .peak = one.peak, .label = position};
    if (boundary < model_.stages) {
      way.peak = std::max(way.peak, one.held + output);
      ways_[boundary].push_back(way);
      return;
    }
    way.retained += output;
    way.peak = std::max(way.peak, one.held + output + model_.loss[pinned ? 1 : 0]);
    if (way.peak <= parts_.memory_) ways_[boundary].push_back(way);
  }

  // Offers every piece on top of the stacks of a boundary.
  void extend(size_t k, bool pinned) {
    std::vector<Label>& here = places_[2 * k + (pinned ? 1 : 0)];
    if (here.empty()) return;
    if (k == first_) {
      labels_.push_back(here.front());
      positions_end_[2 * k + (pinned ? 1 : 0)] = labels_.size();
    }
    const auto begin =
        static_cast<uint32_t>(positions_end_.at(2 * k + (pinned ? 1 : 0)) - here.size());
    const int64_t input = pinned ? 0 : activation(k);
    for (size_t n = 0; n < here.size(); ++n) {
      const auto below = static_cast<uint32_t>(begin + n);
      keep_stage(here[n], below, k, pinned, input);
      add_blocks(here[n], below, k, pinned, input);
      defer(here[n], below, k, pinned, input);
    }
  }

  void offer(const Label& label, size_t boundary, bool pinned) {
    if (label.peak > parts_.memory_) return;
    places_[2 * boundary + (pinned ? 1 : 0)].push_back(label);
  }

  void keep_stage(const Label& from, uint32_t below, size_t k, bool pinned, int64_t input) {
    for (size_t o = 0; o < model_.options[k].size(); ++o) {
      const chain::KeepOption& option = model_.options[k][o];
      const int64_t u = model_.given_back(k, option, pinned);
      Label label{.cost = from.cost + option.cost,
                  .held = from.held + input - u + option.saved +
                          (option.reads_output ? model_.x[k + 1] : 0),
                  .peak = std::max({from.peak, from.held + input + option.forward,
                                    from.held + input + option.backward - u}),
                  .below = below,
                  .first = static_cast<uint32_t>(k),
                  .end = static_cast<uint32_t>(k + 1),
                  .option = static_cast<int32_t>(o),
                  .pinned_below = pinned};
      offer(label, k + 1, option.reads_output);
    }
  }

  // Returns the positions of the steps of a curve that are used: all, or some with both ends.
  std::vector<size_t> used_steps(const chain::CurveView& curve) {
    const size_t stride = curve.size() / kMostStepsABlock + 1;
    complete_ = complete_ && stride == 1;
    std::vector<size_t> steps;
    for (size_t n = 0; n < curve.size(); n += stride) steps.push_back(n);
    if (!steps.empty() && steps.back() + 1 < curve.size()) steps.push_back(curve.size() - 1);
    return steps;
  }

  void add_blocks(const Label& from, uint32_t below, size_t k, bool pinned, int64_t input) {
    const size_t most = parts_.pieces_ == Pieces::kSingle ? k + 1 : model_.stages;
    chain::Sweep sweep(model_, k);
    for (size_t end = k + 1; end <= most; ++end) {
      sweep.extend();
      const chain::CurveView curve = parts_.table_->curve(parts_.cells_.slot(k, end - 1, pinned));
      const std::vector<size_t> steps = used_steps(curve);
      for (const chain::CurvePoint& swept : sweep.steps()) {
        for (const size_t n : steps) {
          const chain::CurvePoint& step = curve[n];
          Label label{.cost = from.cost + swept.cost + step.cost,
                      .held = from.held + input,
                      .peak = std::max({from.peak, from.held + input + swept.memory,
                                        from.held + input + step.memory}),
                      .below = below,
                      .first = static_cast<uint32_t>(k),
                      .end = static_cast<uint32_t>(end),
                      .sweep_memory = swept.memory,
                      .room = step.memory,
                      .pinned_below = pinned};
          offer(label, end, false);
        }
      }
    }
  }

  // The rest of the chain runs in the backward as a whole, with the loss in it.
  void defer(const Label& from, uint32_t below, size_t k, bool pinned, int64_t input) {
    if (parts_.pieces_ == Pieces::kSingle) return;
    const chain::CurveView curve =
        parts_.table_->curve(parts_.cells_.slot(k, model_.stages, pinned));
    for (const size_t n : used_steps(curve)) {
      const chain::CurvePoint& step = curve[n];
      Way way{.cost = from.cost + step.cost,
              .retained = from.held + input,
              .peak = std::max(from.peak, from.held + input + step.memory),
              .label = below,
              .deferred = step.memory};
      if (way.peak <= parts_.memory_) ways_[model_.stages].push_back(way);
    }
  }

  const PartPlans& parts_;
  const chain::ChainModel& model_;
  size_t first_;
  size_t done_ = 0;                         // the stacks of boundaries up to here are settled
  bool complete_ = true;                    // no step of a curve was left out
  std::vector<std::vector<Label>> places_;  // by boundary and pin
  std::map<size_t, size_t> positions_end_;  // of a place: the end of its labels in labels_
  std::vector<Label> labels_;
  std::vector<std::vector<Way>> ways_;  // by boundary
};

PartPlans::PartPlans(const Pipeline& pipeline, Pieces pieces, int64_t memory, int threads,
                     common::SearchControl& control)
    : pipeline_(pipeline),
      pieces_(pieces),
      memory_(memory),
      model_(chain::make_model(with_summed_weights(pipeline.chain))),
      cells_(model_, /*share=*/true) {
  const size_t stages = model_.stages;
  stacks_.resize(stages);
  weights_.assign(1, 0);
  static_.assign(1, 0);
  least_.assign(1, 0);
  for (size_t i = 0; i < stages; ++i) {
    const Stage& stage = pipeline.chain.stages[i];
    weights_.push_back(weights_.back() + stage.weight_gradient.count());
    static_.push_back(static_.back() + stage_fixed(pipeline, i).count());
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const StageOption& option : stage.options) {
      least = std::min(least, (option.forward.time + option.backward.time).count());
    }
    if (i + 1 == stages) least += pipeline.chain.loss.cost.time.count();
    least_.push_back(least_.back() + least);
  }
  if (!cells_.complete()) return;
  table_.emplace(model_, cells_, chain::CurveLimits{.memory = memory, .threads = threads}, control);
}

PartPlans::~PartPlans() = default;

Bytes PartPlans::memory() const {
  int64_t bytes = table_ ? table_->memory().count() : 0;
  for (const auto& one : stacks_) {
    if (one) bytes += static_cast<int64_t>(one->bytes());
  }
  return Bytes(bytes);
}

int64_t PartPlans::fixed(size_t first, size_t end) const {
  int64_t bytes = model_.fixed + static_[end] - static_[first] + weights_[end] - weights_[first];
  if (first == 0) {
    // While the last micro-batch makes the gradient of its input, those of all others are there.
    bytes += pipeline_.chain.input.bytes.count() * pipeline_.micro_batches +
             pipeline_.chain.input.gradient.count() * (pipeline_.micro_batches - 1);
  }
  return bytes;
}

PartPlans::Stacks& PartPlans::stacks(size_t first) {
  if (!stacks_[first]) stacks_[first] = std::make_unique<Stacks>(*this, first);
  return *stacks_[first];
}

const std::vector<Way>& PartPlans::ways(size_t first, size_t end) {
  return stacks(first).ways_to(end, exact_);
}

std::optional<Way> PartPlans::best(size_t first, size_t end, int64_t in_flight, int64_t memory) {
  std::optional<Way> best;
  if (!complete()) return best;
  for (const Way& way : ways(first, end)) {  // by cost
    const __int128 need = static_cast<__int128>(in_flight - 1) * way.retained + way.peak;
    if (need > memory) continue;
    if (!best || way.cost < best->cost) best = way;
  }
  return best;
}

int64_t PartPlans::least_memory(size_t first, size_t end, int64_t in_flight) {
  __int128 least = std::numeric_limits<int64_t>::max();
  if (!complete()) return std::numeric_limits<int64_t>::max();
  for (const Way& way : ways(first, end)) {
    least = std::min(least, static_cast<__int128>(in_flight - 1) * way.retained + way.peak);
  }
  return static_cast<int64_t>(least);
}

Nanos PartPlans::time(size_t first, size_t end, const Way& way) const {
  return Nanos(least_[end] - least_[first] + model_.time_of(way.cost) - model_.least_time);
}

namespace {

PartRun named_run(const Pipeline& pipeline, const ChainIndex& index, const Run& run) {
  if (run.op == index.loss()) return {Phase::kLoss, 0, "default"};
  const size_t stage = *index.stage_of(run.op);
  const bool forward = run.op == index.forward(stage);
  const std::vector<StageOption>& options = pipeline.chain.stages[stage].options;
  const auto position = static_cast<int32_t>(stage);
  if (!forward) return {Phase::kBackward, position, options[run.variant].name};
  return {Phase::kForward, position, run.variant == 0 ? "fast" : options[run.variant - 1].name};
}

}  // namespace

PartPlan PartPlans::plan(size_t first, size_t end, const Way& way) const {
  const ChainIndex index{model_.stages};
  const auto cost = [&](size_t slot, int64_t m) { return chain::cost_at(table_->curve(slot), m); };
  PartPlan plan;
  std::vector<const Label*> stack;  // from the top
  for (uint32_t at = way.label; at != kNoLabel; at = stack.back()->below) {
    stack.push_back(&stacks_[first]->label(at));
  }
  stack.pop_back();  // the start is no piece
  std::vector<Run> forward, backward;
  for (auto piece = stack.rbegin(); piece != stack.rend(); ++piece) {
    const Label& one = **piece;
    if (one.option >= 0) {
      forward.push_back({index.forward(one.first), one.option + 1});
      continue;
    }
    for (size_t k = one.first; k < one.end; ++k) {
      const int64_t room = one.sweep_memory - (k == one.first ? 0 : model_.x[k]);
      int32_t variant = 0;  // Memory ascends and cost descends: the last that fits is the cheapest.
      for (const chain::SweepVariant& sweep : model_.sweeps[k]) {
        if (sweep.memory <= room) variant = sweep.variant;
      }
      forward.push_back({index.forward(k), variant});
    }
  }
  const auto top = stack.empty() ? first : static_cast<size_t>(stack.front()->end);
  if (way.deferred >= 0) {
    const bool pinned =
        stack.empty()
            ? first == 0
            : stack.front()->option >= 0 &&
                  model_.options[stack.front()->first][stack.front()->option].reads_output;
    const chain::Trace rest =
        chain::trace_segment(model_, cells_, cost, top, model_.stages, pinned, way.deferred);
    backward.insert(backward.end(), rest.runs.begin(), rest.runs.end());
  } else if (end == model_.stages) {
    backward.push_back({index.loss(), 0});
  }
  for (const Label* piece : stack) {
    if (piece->option >= 0) {
      backward.push_back({index.backward(piece->first), piece->option});
      continue;
    }
    const chain::Trace again = chain::trace_segment(
        model_, cells_, cost, piece->first, piece->end - 1, piece->pinned_below, piece->room);
    backward.insert(backward.end(), again.runs.begin(), again.runs.end());
  }
  for (const Run& run : forward) plan.forward.push_back(named_run(pipeline_, index, run));
  for (const Run& run : backward) plan.backward.push_back(named_run(pipeline_, index, run));
  return plan;
}

}  // namespace reprise::internal::pipeline
