// This is the promise of alternatives. Whichever of them a plan uses, forced one kind at a time and
// all together, a step leaves the bits of plain training, in the predicted bytes.
#include "forced_alternatives.h"
#include "reprise/model/errors.h"
#include "small_models.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

using training::make_model;
using training::Model;
using training::ModelConfig;

namespace {

// Returns the kinds that are forced, and an empty name for all of them together.
std::vector<std::string> kinds() {
  std::vector<std::string> all{""};
  for (const AlternativeInfo& info : alternatives()) {
    if (info.in_graph && info.exactness == Exactness::kBitwise) all.push_back(info.name);
  }
  return all;
}

TEST(AlternativesTest, ForcedOneKindAtATimeAndTogetherTheyLeaveTheSameBits) {
  install_cpu_allocator();
  std::map<std::string, size_t> used;
  for (const char* model_name :
       {"resnet18", "vgg16_bn", "unet", "gpt", "mobilenet_v2", "densenet121", "lstm"}) {
    SCOPED_TRACE(model_name);
    at::manual_seed(5);
    ModelConfig config = small_config(model_name);
    if (config.model == "unet") config.input[0] = 8;     // samples that can be parted
    if (config.model == "gpt") config.input = {2, 200};  // rows that can be parted
    const Model model = make_model(config);
    const Tensors inputs{model.sample_input(), model.sample_target()};
    auto step = [&](const Tensors& in) {
      at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
      loss.backward();
      return loss;
    };
    const StepState state(model.stages, {inputs[0]});
    CapturedStep captured =
        capture(step, inputs, {.measure = quick(), .alternatives = every_bitwise()});
    state.restore();
    drop_gradients(model.stages, {inputs[0]});
    const Bits expected = bits_now(model.stages, {inputs[0]}, step(inputs));

    for (const std::string& kind : kinds()) {
      SCOPED_TRACE(kind.empty() ? "all kinds" : kind);
      const size_t ways = std::min<size_t>(ways_of(captured.graph(), kind), 4);
      for (size_t pick = 0; pick < ways; ++pick) {
        SCOPED_TRACE(fmt::format("way {}", pick));
        const Plan plan = forced(captured, kind, pick);
        used[kind] += uses(captured, plan, kind);
        captured.use(plan);
        for (int n = 0; n < 2; ++n) {  // on the heap, then in the arena
          SCOPED_TRACE(fmt::format("step {}", n));
          state.restore();
          drop_gradients(model.stages, {inputs[0]});
          const at::Tensor loss = captured.run(inputs);
          EXPECT_EQ(difference(expected, bits_now(model.stages, {inputs[0]}, loss)).substr(0, 80),
                    "");
          EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
        }
      }
    }
    state.restore();
  }
  for (const std::string& kind : kinds()) {
    if (kind == "cross-entropy-from-logits") continue;  // in alternatives_property_test.cc
    if (kind == "fused-regions") continue;  // needs the compiler of Python: test_fused_regions.py
    EXPECT_GT(used[kind], 0U) << "no model has an occurrence of " << kind << ": nothing is shown";
  }
}

TEST(AlternativesOptionsTest, KindsAreSwitchedByName) {
  install_cpu_allocator();
  const Model model = make_model(small_config("resnet18"));
  const Tensors inputs{model.sample_input(), model.sample_target()};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
    loss.backward();
    return loss;
  };
  auto kinds_in = [](const Graph& graph) {
    std::set<std::string> kinds;
    for (const Op& op : graph.ops) {
      for (const Variant& v : op.variants) {
        if (!v.alternative.empty()) kinds.insert(v.alternative);
      }
    }
    for (const Choice& c : graph.choices) {
      for (size_t r = 1; r < c.realizations.size(); ++r) kinds.insert(c.realizations[r].name);
    }
    return kinds;
  };
  using Names = std::set<std::string>;
  const auto graph = [&](AlternativeOptions options) {
    return capture(step, inputs, {.measure = quick(), .alternatives = std::move(options)}).graph();
  };
  EXPECT_EQ(kinds_in(graph({.only = {"two-call-convolution"}})), Names{"two-call-convolution"});
  // Whether a convolution may run by samples, or a batch norm in two steps, depends on the machine.
  const Names some =
      kinds_in(graph({.without = {"in-place", "cross-entropy-by-rows", "convolution-by-samples",
                                  "two-step-batch-norm"}}));
  EXPECT_EQ(some, (Names{"batch-norm-by-channels", "late-gradient", "one-bit-mask",
                         "two-call-convolution"}));
  try {
    graph({.without = {"in-plaice"}});
    FAIL() << "a name that does not exist was accepted";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("two-call-convolution"), std::string::npos) << e.what();
  }
}

// Wide activations come first, wide weights last. So plain training holds gradients of the last
// layers while it needs the memory for the first one.
TEST(LateGradients, OfWeightsMakeRoomForActivations) {
  install_cpu_allocator();
  at::manual_seed(7);
  nn::Linear first(64, 64), second(64, 512), third(512, 512);
  const std::vector<Stage> stages{
      {"first", first.ptr(), {}}, {"second", second.ptr(), {}}, {"third", third.ptr(), {}}};
  const Tensors inputs{at::randn({4096, 64})};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor pooled = at::tanh(first->forward(in[0])).mean(0);
    const at::Tensor y = third->forward(at::tanh(second->forward(pooled)));
    const at::Tensor loss = y.square().mean();
    loss.backward();
    return Tensors{loss, at::relu(y.detach()).sum()};  // something behind the backward pass
  };
  const StepState state(stages, inputs);
  // This is the only alternative that costs no time.
  CapturedStep captured(
      step, inputs,
      {.measure = quick(), .alternatives = {.only = {"late-gradient"}, .without = {}}});
  drop_gradients(stages, inputs);
  const Bits expected = bits_now(stages, inputs, step(inputs)[0]);

  const Bytes budget =
      baseline(captured.graph()).peak - Bytes(static_cast<int64_t>(third->weight.nbytes()) / 2);
  captured.plan({.budget = budget, .time_limit = Nanos(300'000'000)});
  const std::vector<Action>& actions = captured.planned().plan->actions;
  EXPECT_GT(uses(captured, *captured.planned().plan, "late-gradient"), 0U);
  std::set<std::string> seen;
  for (const Action& action : actions) {
    const bool again = action.kind == ActionKind::kRun && !seen.insert(action.id).second;
    EXPECT_FALSE(again) << action.id;
  }
  for (int n = 0; n < 2; ++n) {
    state.restore();
    drop_gradients(stages, inputs);
    EXPECT_EQ(difference(expected, bits_now(stages, inputs, captured.run(inputs))), "");
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
    EXPECT_LE(captured.last_step().measured_peak, budget);
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
