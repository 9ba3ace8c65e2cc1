// Every model of the zoo runs with each of its stages kept in the same way. It leaves the bits of
// plain training, in the predicted bytes.
#include <torch/csrc/autograd/functions/utils.h>

#include "fixture.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/measure.h"
#include "small_models.h"

namespace reprise::runtime::testing {

using internal::chain::ChainStep;
using internal::chain::measure;
using internal::chain::PlannedModel;
using internal::chain::prepare;
using internal::device::make_node;
using training::make_model;
using training::Model;

namespace {

// Runs the second half of a step when the gradient of its output arrives.
struct HalfNode final : torch::autograd::Node {
  ChainStep& step;
  Tensors result;

  explicit HalfNode(ChainStep& s) : step(s) {}
  std::string name() const override { return "Half"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    result = step.backward(std::move(gradients));
    return {};
  }
};

// Every stage is kept in the same way, if it has that option. The planner is not asked.
class EveryModelKeepsLess : public RuntimeTest,
                            public ::testing::WithParamInterface<std::string> {};

TEST_P(EveryModelKeepsLess, SameBitsAndPredictedBytes) {
  const Model model = make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input()};
  const at::Tensor target = model.sample_target();
  const Loss loss = [&](const Tensors& y) { return model.loss(y.at(0), target); };
  const StepState state(model.stages, inputs);
  plain_step(model.stages, inputs, loss);  // warm up
  state.restore();
  plain_step(model.stages, inputs, loss);
  const Bits plain = bits_now(model.stages, inputs);
  state.restore();

  auto planned = std::make_shared<PlannedModel>(prepare({{"", model.stages}}, {}, {inputs}));
  planned->set_measured(measure(planned->model, {inputs}, loss, quick()));
  const Graph graph = lower(planned->chain);
  for (const std::string name : {"smaller", "rebuild"}) {
    SCOPED_TRACE(name);
    Chain forced = planned->chain;
    int stages = 0;
    for (auto& stage : forced.stages) {
      const auto wanted = std::find_if(stage.options.begin(), stage.options.end(),
                                       [&](const StageOption& o) { return o.name == name; });
      if (wanted == stage.options.end()) {
        stage.options.resize(1);
      } else {
        stage.options = {*wanted};
        ++stages;
      }
    }
    if (stages == 0) continue;
    fmt::print("{}: {} of {} stages {}\n", GetParam(), stages, forced.stages.size(), name);
    const PlanResult result = plan(forced, {.planner = "keep_all"});
    ASSERT_TRUE(result.plan.has_value());
    planned->set_plan(result.plan->actions, {});

    state.restore();
    const int64_t level = (forced.fixed + forced.input.bytes).count(), start = live();
    reset_peak(c10::kCPU);
    ChainStep step(planned, {inputs});
    auto half = make_node<HalfNode>(step);
    const auto forward = [&] {
      Tensors outputs = step.forward();
      torch::autograd::set_history(outputs[0], half.pointer);
      return outputs;
    };
    const at::Tensor value = loss(forward());  // the output dies with the loss
    value.backward();
    EXPECT_EQ(memory_count(c10::kCPU).peak - start, result.plan->peak.count() - level);
    const Tensors& gradients = half.node->result;
    for (size_t p = 0; p < planned->model.parameters.size(); ++p) {
      planned->model.parameters[p].mutable_grad() = gradients[inputs.size() + p];
    }
    EXPECT_EQ(difference(plain, bits_now(model.stages, inputs)), "");
  }
  state.restore();
}

INSTANTIATE_TEST_SUITE_P(Zoo, EveryModelKeepsLess,
                         ::testing::ValuesIn(tested_models()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace reprise::runtime::testing
