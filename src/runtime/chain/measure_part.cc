#include "runtime/chain/measure_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using state::RandomState;
using state::ValueKeeper;

namespace {

// Stands in for the loss of a part without one.
at::Tensor sum_of_squares(const Tensors& outputs) {
  at::Tensor sum;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    const at::Tensor one = output.square().sum();
    sum = sum.defined() ? sum + one : one;
  }
  if (!sum.defined()) throw InputError("no output of the part depends on a parameter of it");
  return sum;
}

// In a pipeline the backward of the loss is over before that of the last stage begins, and the owner
// of the part holds the values of the losses. So only the gradient remains of the loss.
void settle_loss(MeasuredChain& measured) {
  reprise::Stage& last = measured.chain.stages.back();
  const Bytes at_the_end = last.output_gradient.value_or(last.output);
  measured.chain.loss.cost.workspace += at_the_end - measured.loss_gradient;
  last.output_gradient = measured.loss_gradient;
  last.weight_gradient = std::max(Bytes(0), last.weight_gradient - measured.loss_resident);
}

}  // namespace

Tensors run_once(const PreparedModel& model, Tensors x) {
  ValueKeeper buffers(model.buffers);
  buffers.save();
  const RandomState random(model.device);
  for (const PreparedStage& stage : model.stages) x = run_fast(stage, x, model.parameters);
  buffers.restore();
  random.restore();
  return x;
}

void require_own_parameters(const PreparedModel& model) {
  std::vector<int64_t> user(model.parameters.size(), -1);
  for (size_t i = 0; i < model.stages.size(); ++i) {
    for (const size_t p : model.stages[i].parameters) {
      if (user[p] >= 0) {
        throw InputError(fmt::format(
            "the stages '{}' and '{}' share a parameter; in a pipeline each parameter belongs to "
            "one stage: make them one stage",
            model.stages[user[p]].stage.name, model.stages[i].stage.name));
      }
      user[p] = static_cast<int64_t>(i);
    }
  }
}

MeasuredChain measure_part(const PreparedModel& model, const Tensors& sample, const Loss& loss,
                           const MeasureOptions& options,
                           const std::function<void()>& forget_error) {
  MeasureOptions measuring = options;
  measuring.output_held = false;
  MeasuredChain measured = measure(model, {sample}, loss ? loss : Loss(sum_of_squares), measuring,
                                   {.measured = true, .forget_error = forget_error});
  settle_loss(measured);
  return measured;
}

}  // namespace reprise::runtime::internal::chain
