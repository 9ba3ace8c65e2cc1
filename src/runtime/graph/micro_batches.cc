#include "reprise/runtime/micro_batches.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "runtime/graph/no_plan.h"
#include "runtime/graph/step_search.h"

namespace reprise::runtime {

using internal::graph::as_plan_options;
using internal::graph::why_no_plan;

namespace {

int64_t rows_of(const Tensors& inputs) {
  if (inputs.empty() || !inputs[0].defined() || inputs[0].dim() == 0) {
    throw InputError(
        "a step in parts needs a first input, or result of its body, with the batch in its "
        "dimension 0");
  }
  return inputs[0].size(0);
}

Tensors slice(const Tensors& inputs, int64_t rows, int64_t begin, int64_t end) {
  Tensors part = inputs;
  for (at::Tensor& input : part) {
    if (input.defined() && input.dim() > 0 && input.size(0) == rows) {
      input = input.narrow(0, begin, end - begin);
    }
  }
  return part;
}

// Returns the outputs without history, which would keep the part's memory.
Tensors without_history(const Tensors& outputs) {
  Tensors result;
  for (const at::Tensor& output : outputs) {
    result.push_back(output.defined() ? output.detach() : output);
  }
  return result;
}

void add(Tensors& sums, const Tensors& outputs) {
  at::NoGradGuard no_grad;
  bool alike = outputs.size() == sums.size();
  for (size_t k = 0; alike && k < outputs.size(); ++k) {
    alike = outputs[k].defined() == sums[k].defined() &&
            (!sums[k].defined() || outputs[k].sizes() == sums[k].sizes());
  }
  if (!alike) {
    throw InputError(
        "the parts of a step must return tensors of the same shapes, to be added up: sums or means "
        "over "
        "their rows, not something for each row");
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].defined()) sums[k] = sums[k] + outputs[k].detach();
  }
}

// A Seam lies between a body and the parts behind it. The gradients of the parts, side by side, are
// those of the body's results.
class Seam {
 public:
  explicit Seam(const Tensors& whole) : whole_(whole), gradients_(whole.size()) {}

  // Returns the slices without their history, as leaves of the next part.
  static Tensors cut(const Tensors& slices) {
    Tensors leaves;
    for (const at::Tensor& slice : slices) {
      const bool wants = slice.defined() && slice.requires_grad();
      leaves.push_back(wants ? slice.detach().requires_grad_() : slice);
    }
    return leaves;
  }

  // Collects the gradients of these leaves, whose first row is the row `first` of the whole.
  void collect(const Tensors& leaves, int64_t first) {
    at::NoGradGuard no_grad;
    for (size_t k = 0; k < leaves.size(); ++k) {
      if (!leaves[k].defined() || !leaves[k].requires_grad()) continue;
      const at::Tensor gradient = leaves[k].grad();
      if (!gradient.defined()) continue;
      at::Tensor& all = gradients_[k];
      if (leaves[k].sizes() == whole_[k].sizes()) {  // Each part gets the whole.
        all = all.defined() ? all + gradient : gradient;
        continue;
      }
      if (!all.defined()) all = at::zeros_like(whole_[k]);
      all.narrow(0, first, gradient.size(0)).copy_(gradient);
    }
  }

  void backward() {
    Tensors roots, gradients;
    for (size_t k = 0; k < whole_.size(); ++k) {
      if (!gradients_[k].defined()) continue;
      roots.push_back(whole_[k]);
      gradients.push_back(gradients_[k]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
  }

 private:
  const Tensors& whole_;
  Tensors gradients_;
};

// Where a whole batch only just has a plan, a few parts may be slower than the whole batch, and
// more parts faster again. So the search goes on until so many numbers in a row are slower.
constexpr int kMostSlower = 2;

bool has_ranks(const MicroBatchOptions& options) {
  return !options.capture.group.empty() || !options.capture.share_work.empty();
}

// Says whether the answers of plan_of() are in force in their steps. Ranks of a process group plan
// together, and a step opens the memory that its values move to.
bool plans_in_steps(const MicroBatchOptions& options) {
  return has_ranks(options) || !options.plan.offload.to.empty() ||
         !options.capture.other_devices.empty();
}

PlanResult plan_of(CapturedStep& step, const StepPlanOptions& planning,
                   const MicroBatchOptions& options) {
  if (has_ranks(options)) return step.plan(planning);
  if (plans_in_steps(options)) return step.try_plan(planning);
  return plan(step.graph(), as_plan_options(planning));
}

// Says whether `a` is faster. Without plans it says whether `a` is closer to having one.
bool better(const PlanResult& a, const PlanResult& b) {
  if (a.plan && b.plan) return a.plan->time < b.plan->time;
  if (a.plan || b.plan) return a.plan.has_value();
  if (!a.smallest_budget || !b.smallest_budget) return a.smallest_budget.has_value();
  return *a.smallest_budget < *b.smallest_budget;
}

std::string refusal(const PartsTried& closest, const std::string& why) {
  return fmt::format("no number of parts has a plan; closest is {}: {}", closest.parts, why);
}

}  // namespace

StepFunction in_parts(BodyFunction body, PartFunction part, int64_t parts) {
  return [body = std::move(body), part = std::move(part), parts](const Tensors& inputs) {
    const Tensors whole = body(inputs);
    if (parts == 1) return part(whole, 1.0);
    Seam seam(whole);
    int64_t first = 0;
    const StepFunction tail = in_parts(
        [&](const Tensors& slices, double share) {
          const Tensors leaves = Seam::cut(slices);
          Tensors outputs = part(leaves, share);
          seam.collect(leaves, first);
          first += slices[0].size(0);
          return outputs;
        },
        parts);
    Tensors sums = tail(whole);
    seam.backward();
    return sums;
  };
}

StepFunction in_parts(PartFunction part, int64_t parts) {
  if (parts < 1) throw InputError(fmt::format("a step cannot have {} parts", parts));
  return [part = std::move(part), parts](const Tensors& inputs) {
    if (parts == 1) return part(inputs, 1.0);
    const int64_t rows = rows_of(inputs);
    if (rows < parts) {
      throw InputError(fmt::format("a batch of {} rows has no {} parts", rows, parts));
    }
    Tensors sums;
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
      const double share = static_cast<double>(end - begin) / static_cast<double>(rows);
      const Tensors outputs = part(slice(inputs, rows, begin, end), share);
      if (p == 0) {
        sums = without_history(outputs);
      } else {
        add(sums, outputs);
      }
    }
    return sums;
  };
}

MicroBatches micro_batches(const PartFunction& part, const Tensors& sample,
                           const MicroBatchOptions& options) {
  const int64_t rows = rows_of(sample);
  StepPlanOptions planning = options.plan;
  std::optional<CapturedStep> best;
  PartsTried chosen;
  std::vector<PartsTried> tried;
  std::vector<int64_t> numbers = options.parts;
  std::sort(numbers.begin(), numbers.end());
  if (has_ranks(options) && numbers.size() != 1) {
    throw InputError(
        "the ranks of a process group cannot choose the number of parts, because each would find "
        "its own: give one number (parts)");
  }
  int slower = 0;  // how many numbers in a row are slower
  for (const int64_t parts : numbers) {
    if (parts > rows && numbers.size() > 1) continue;
    CapturedStep step(options.body ? in_parts(options.body, part, parts) : in_parts(part, parts),
                      sample, options.capture);
    if (planning.budget.relative()) {
      planning.budget = planning.budget.resolve(baseline(step.graph()).peak);
    }
    tried.push_back({parts, plan_of(step, planning, options)});
    if (planning.offload.machine.channels.empty()) planning.offload.machine = step.machine();
    const PlanResult& result = tried.back().result;
    if (best && !better(result, chosen.result)) {
      if (result.plan && ++slower == kMostSlower) break;
      continue;
    }
    slower = 0;
    best = std::move(step);
    chosen = tried.back();
    if (result.plan && result.plan->time <= result.baseline.time) break;
  }
  if (!best) {
    throw InputError(fmt::format("a batch of {} rows has none of these numbers of parts", rows));
  }
  if (!chosen.result.plan && !options.infeasible_is_an_answer) {
    const std::string why =
        why_no_plan(best->graph(), chosen.result, options.capture.optimizer != nullptr);
    throw BudgetError(refusal(chosen, why), chosen.result.budget.count(), 0,
                      chosen.result.smallest_budget.value_or(Bytes(0)).count());
  }
  if (chosen.result.plan && !plans_in_steps(options)) best->use(*chosen.result.plan, planning);
  return {std::move(*best), std::move(chosen), std::move(tried)};
}

}  // namespace reprise::runtime
