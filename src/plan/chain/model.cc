#include "plan/chain/model.h"

#include <algorithm>
#include <numeric>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::chain {
namespace {

int64_t total_time(const StageOption& option) {
  return (option.forward.time + option.backward.time).count();
}

// Without early stops, options have none.
int64_t least_total_time(const Stage& stage, Stops stops) {
  int64_t least = total_time(stage.options.front());
  for (const StageOption& option : stage.options) {
    int64_t time = total_time(option);
    if (option.stopped && stops == Stops::kEarly) {
      time += (option.stopped->time - option.forward.time).count();
    }
    least = std::min(least, time);
  }
  return least;
}

KeepOption make_option(const Chain& chain, size_t i, size_t number, int64_t least, Stops stops) {
  const StageOption& option = chain.stages[i].options[number];
  const int64_t output = boundary_bytes(chain, i + 1).count();
  const int64_t saved = option.saved.count();
  KeepOption keep;
  keep.saved = saved;
  keep.forward = output + saved + option.forward.workspace.count();
  keep.backward = boundary_gradient_bytes(chain, i).count() +
                  chain.stages[i].weight_gradient.count() + option.backward.workspace.count();
  if (!option.consumes) {
    keep.backward += boundary_gradient_bytes(chain, i + 1).count() + saved;
    if (option.reads_output) keep.backward += output;
  }
  if (option.consumes_input) {
    const int64_t input = boundary_bytes(chain, i).count();
    if (option.reads_input) {
      keep.backward -= input;
    } else {  // starts from a level that an earlier operation has left behind
      keep.forward = std::max<int64_t>(0, keep.forward - input);
    }
  }
  keep.cost = total_time(option) - least;
  keep.stopped_forward = keep.forward;
  keep.stopped_cost = keep.cost;
  keep.stopped_variant = static_cast<int32_t>(number) + 1;
  if (option.stopped && stops == Stops::kEarly) {
    keep.stopped_forward = saved + option.stopped->workspace.count();
    if (option.consumes_input && !option.reads_input) {
      keep.stopped_forward =
          std::max<int64_t>(0, keep.stopped_forward - boundary_bytes(chain, i).count());
    }
    keep.stopped_cost += (option.stopped->time - option.forward.time).count();
    keep.stopped_variant = stopped_variant(chain.stages[i], number);
  }
  keep.reads_input = option.reads_input;
  keep.reads_output = option.reads_output;
  return keep;
}

// Returns "fast" and every option's forward. Variants that another one beats are left out, and so
// are variants that give back the input, because another sweep may begin with it.
std::vector<SweepVariant> make_sweeps(const Stage& stage) {
  const int64_t output = stage.output.count();
  std::vector<SweepVariant> all{
      {output + stage.forward.workspace.count(), stage.forward.time.count(), 0}};
  for (size_t o = 0; o < stage.options.size(); ++o) {
    const StageOption& option = stage.options[o];
    if (option.consumes_input && !option.reads_input) continue;
    all.push_back({output + option.saved.count() + option.forward.workspace.count(),
                   option.forward.time.count(), static_cast<int32_t>(o + 1)});
  }
  std::stable_sort(all.begin(), all.end(), [](const SweepVariant& a, const SweepVariant& b) {
    return a.memory != b.memory ? a.memory < b.memory : a.cost < b.cost;
  });
  std::vector<SweepVariant> best;
  for (const SweepVariant& way : all) {
    if (best.empty() || way.cost < best.back().cost) best.push_back(way);
  }
  return best;
}

// Calls visit(cost) for every cost in the model.
template <class Visit>
void for_each_cost(ChainModel& model, const Visit& visit) {
  for (std::vector<KeepOption>& options : model.options) {
    for (KeepOption& option : options) {
      visit(option.cost);
      visit(option.stopped_cost);
    }
  }
  for (std::vector<SweepVariant>& ways : model.sweeps) {
    for (SweepVariant& way : ways) visit(way.cost);
  }
}

// Divides all costs by their greatest common divisor, and returns the divisor.
int64_t take_common_divisor(ChainModel& model) {
  int64_t divisor = 0;
  for_each_cost(model, [&](int64_t cost) { divisor = std::gcd(divisor, cost); });
  divisor = std::max<int64_t>(1, divisor);
  for_each_cost(model, [&](int64_t& cost) { cost /= divisor; });
  return divisor;
}

// Chooses the weights and units and applies them to the times in `model`. No schedule sweeps a
// stage more than L times or makes more than L (L + 1) / 2 re-runs.
void weigh_costs(ChainModel& model) {
  using Int128 = __int128;
  const auto stages = static_cast<int64_t>(model.stages);
  Int128 worst = 0;
  for (size_t i = 0; i < model.stages; ++i) {
    int64_t dearest = 0;
    for (const KeepOption& option : model.options[i]) dearest = std::max(dearest, option.cost);
    worst += dearest + Int128{stages} * model.sweeps[i].front().cost;
  }
  constexpr Int128 kLimit = Int128{1} << 61;
  if (model.least_time + worst > kLimit) {
    throw InputError("the chain's times are too large to plan with");
  }
  model.time_unit = take_common_divisor(model);
  const int64_t weight = stages * (stages + 1) / 2 + 1;
  if ((worst / model.time_unit + 1) * weight > kLimit) return;
  model.time_weight = weight;
  model.rerun_weight = 1;
  for (size_t i = 0; i < model.stages; ++i) {
    for (KeepOption& option : model.options[i]) {
      option.cost *= weight;
      option.stopped_cost *= weight;
    }
    for (SweepVariant& way : model.sweeps[i]) way.cost = way.cost * weight + 1;
  }
  model.cost_unit = take_common_divisor(model);
}

}  // namespace

bool ChainModel::depends_on_pin(size_t i) const {
  if (i == stages) return loss[0] != loss[1];
  if (x[i] == 0) return false;
  return std::any_of(options[i].begin(), options[i].end(),
                     [](const KeepOption& option) { return !option.reads_input; });
}

ChainModel make_model(const Chain& chain, Stops stops) {
  ChainModel model;
  const size_t stages = chain.stages.size();
  model.stages = stages;
  model.fixed = chain.fixed.count();
  model.weight_gradients.push_back(0);
  model.least_time = chain.loss.cost.time.count();
  for (size_t k = 0; k <= stages; ++k) {
    model.x.push_back(boundary_bytes(chain, k).count());
    model.g.push_back(boundary_gradient_bytes(chain, k).count());
  }
  model.g.push_back(0);
  for (size_t i = 0; i < stages; ++i) {
    const Stage& stage = chain.stages[i];
    const int64_t least = least_total_time(stage, stops);
    model.least_time += least;
    model.weight_gradients.push_back(model.weight_gradients.back() + stage.weight_gradient.count());
    std::vector<KeepOption>& options = model.options.emplace_back();
    for (size_t o = 0; o < stage.options.size(); ++o) {
      options.push_back(make_option(chain, i, o, least, stops));
    }
    model.sweeps.push_back(make_sweeps(stage));
  }
  model.weight_gradients.push_back(model.weight_gradients.back());
  model.loss[1] = model.g[stages] + chain.loss.cost.workspace.count();
  model.loss[0] = model.loss[1] - (chain.loss.consumes ? model.x[stages] : 0);
  weigh_costs(model);
  model.least_sweeps.push_back(0);
  for (const std::vector<SweepVariant>& ways : model.sweeps) {
    model.least_sweeps.push_back(model.least_sweeps.back() + ways.back().cost);
  }
  return model;
}

}  // namespace reprise::internal::chain
