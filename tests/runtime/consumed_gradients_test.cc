// This is the promise of CaptureOptions::optimizer. A step that updates each parameter as soon as
// its gradient is complete leaves parameters, optimizer state, loss, buffers and random state with
// the bits of plain training and a separate optimizer step, in the predicted bytes.
#include <torch/optim/lbfgs.h>

#include <algorithm>

#include "optimizer_steps.h"
#include "reprise/check/simulate.h"

namespace reprise::runtime::testing {

namespace {

int64_t smallest_peak_of(const Graph& graph, Nanos time_limit = Nanos(400'000'000)) {
  return plan(graph, {.budget = graph.fixed, .time_limit = time_limit})
      .smallest_budget.value_or(baseline(graph).peak)
      .count();
}

// Returns the largest workspace of an op, where each op has the variant that needs the least.
int64_t least_scratch(const Graph& graph) {
  int64_t largest = 0;
  for (const Op& op : graph.ops) {
    const auto least = std::ranges::min_element(op.variants, {}, &Variant::workspace);
    largest = std::max(largest, least->workspace.count());
  }
  return largest;
}

bool consumes_early(const Plan& plan) {
  return std::any_of(plan.actions.begin(), plan.actions.end(), [](const Action& action) {
    return action.kind == ActionKind::kRun && action.id.find(":update.") != std::string::npos;
  });
}

// Plans a step that is `thirds` of the way from plain training's memory to the smallest one that a
// search of that time finds. Returns whether there is a plan.
bool plan_at(CapturedStep& step, int thirds, Nanos time_limit) {
  const int64_t plain = baseline(step.graph()).peak.count();
  const int64_t smallest = thirds == 0 ? plain : smallest_peak_of(step.graph(), time_limit);
  try {
    step.plan(
        {.budget = Bytes(plain - (plain - smallest) * thirds / 3), .time_limit = time_limit});
  } catch (const BudgetError&) {
    return false;
  }
  return true;
}

// Runs several steps at plain training's memory, at the smallest memory and between: on the heap,
// recorded, and from the arena.
void expect_same_training(const MakeTraining& make, bool recomputes) {
  constexpr int kSteps = 4;
  std::vector<Bits> expected;
  {
    const Training plain = make();
    for (int n = 0; n < kSteps; ++n) {
      drop_gradients(plain.stages, plain.inputs);
      expected.push_back(plain.bits(plain.plain()));
    }
  }
  int early = 0, planned = 0;
  int64_t served = 0;
  bool at_smallest = false;
  for (const int k : {0, 2, 3}) {
    SCOPED_TRACE(fmt::format("budget {} of 3", k));
    const Training training = make();
    const Bits before = training.bits({});
    CapturedStep step = training.capture();
    EXPECT_EQ(difference(before, training.bits({})), "") << "changed by capturing";
    // On a busy machine the search has less of its time than it takes. It gets more then.
    bool found = false, enough = false;
    for (int64_t limit = 400'000'000; !enough && limit < 4'000'000'000; limit *= 2) {
      found = plan_at(step, k, Nanos(limit)) || found;
      enough = found && (k < 3 || !recomputes || consumes_early(*step.planned().plan));
    }
    if (!found) continue;
    ++planned;
    at_smallest |= k == 3;
    early += consumes_early(*step.planned().plan);
    for (int n = 0; n < kSteps; ++n) {
      SCOPED_TRACE(fmt::format("step {}", n));
      drop_gradients(training.stages, training.inputs);
      const at::Tensor loss = step.run(training.inputs);
      EXPECT_EQ(difference(expected[static_cast<size_t>(n)], training.bits(loss)).substr(0, 200),
                "");
      const CapturedStepReport report = step.last_step();
      // The updates that make state are not those that were measured. They need less.
      EXPECT_LE(report.measured_peak, report.predicted_peak);
      if (n > 0) {
        EXPECT_EQ(report.predicted_peak, report.measured_peak);
      }
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_EQ(report.fallbacks, 0);
    }
    // The first step made the state. The second one was recorded.
    served += step.last_step().served;
  }
  EXPECT_GT(planned, 1);
  EXPECT_GT(served, 0);
  if (recomputes && at_smallest) {
    EXPECT_GT(early, 0) << "no gradient was used up early: the test shows nothing";
  }
}

class ConsumedZoo : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ConsumedZoo, StepsEqualASeparateOptimizer) {
  install_cpu_allocator();
  const Rule rule = rule_called(GetParam().second);
  expect_same_training([&] { return zoo_training(GetParam().first, rule.make); }, true);
}

// Each rule has a model; the slow tier has more of them.
std::vector<std::pair<const char*, const char*>> models_and_rules() {
  std::vector<std::pair<const char*, const char*>> all{
      {"mlp", "sgd"},       {"mlp", "adagrad"},           {"mlp", "groups"}, {"mlp", "adam_amsgrad"},
      {"mlp", "rmsprop"},   {"resnet18", "sgd_nesterov"}, {"unet", "adam"},  {"gpt", "adamw"},
      {"gpt", "sgd_dampening"}, {"lstm", "adam"}};
  if (reprise::testing::full_tests()) {
    all.insert(all.end(), {{"vgg16_bn", "adam_amsgrad"},
                           {"densenet121", "adamw"},
                           {"mobilenet_v2", "rmsprop"}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Models, ConsumedZoo, ::testing::ValuesIn(models_and_rules()),
    [](const auto& param) { return std::string(param.param.first) + "_" + param.param.second; });

class ConsumedGradients : public RuntimeTest {};

// The cases have tied weights, recurrent layers, attention, autocast, and functions of one's own.
TEST_F(ConsumedGradients, WhatTrainingCodeDoesEqualsASeparateOptimizer) {
  const size_t count = cases().size();
  for (size_t number = 0; number < count; ++number) {
    const Rule rule = rules()[number % rules().size()];
    SCOPED_TRACE(fmt::format("{} {}", cases()[number].name, rule.name));
    expect_same_training([&] { return case_training(number, rule.make); }, false);
  }
}

TEST_F(ConsumedGradients, TheSmallestPeakNoLongerHoldsAllGradients) {
  const auto make = rule_called("sgd").make;
  const Training training = zoo_training("vgg16_bn", make);
  CapturedStep used_up = training.capture();
  CapturedStep held = runtime::capture(training.step, training.inputs, {.measure = quick()});
  const int64_t fixed = held.graph().fixed.count();
  // Plain training's peak is the same.
  EXPECT_EQ(baseline(used_up.graph()).peak.count() - used_up.graph().fixed.count(),
            baseline(held.graph()).peak.count() - fixed);
  int64_t gradients = 0;
  for (const at::Tensor& p : parameters_of(training.stages)) {
    gradients += (static_cast<int64_t>(p.nbytes()) + 63) / 64 * 64;
  }
  EXPECT_GE(smallest_peak_of(held.graph()) - fixed, gradients);
  // On processors without AVX-512, a convolution's scratch memory alone is more than half of the
  // gradients. Then a quarter of them beside it has to suffice.
  const int64_t scratch = least_scratch(used_up.graph());
  EXPECT_LT(smallest_peak_of(used_up.graph()) - used_up.graph().fixed.count(),
            std::max(gradients / 2, gradients / 4 + scratch));
}

// Nothing that reads a parameter may run after its update, whoever makes the plan.
TEST_F(ConsumedGradients, APlanThatReadsAnUpdatedParameterIsRefused) {
  // The batch is small. Nearly all of the memory is gradients, so that every plan inside the budget
  // below has to use some up early.
  nn::Sequential layers(nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(),
                        nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 64));
  const auto forward_and_backward = [&](const Tensors& in) {
    at::Tensor loss = layers->forward(in[0]).pow(2).mean();
    loss.backward();
    return loss;
  };
  optim::SGD optimizer(layers->parameters(), optim::SGDOptions(0.1));
  CapturedStep step = capture(
      forward_and_backward, {at::randn({7, 64})},
      {.modules = {layers.ptr()}, .measure = quick(), .optimizer = per_parameter(optimizer)});
  step.plan(
      {.budget = Bytes((smallest_peak_of(step.graph()) + baseline(step.graph()).peak.count()) / 2)});
  Plan plan = *step.planned().plan;
  ASSERT_TRUE(consumes_early(plan));
  const Graph& graph = step.graph();
  // The test takes the last update, and the first operation that reads its parameter.
  const auto update = std::find_if(plan.actions.rbegin(), plan.actions.rend(), [](const Action& a) {
    return a.id.find(":update.") != std::string::npos;
  });
  const auto of = [&](const std::string& id) -> const Op& {
    return *std::find_if(graph.ops.begin(), graph.ops.end(),
                         [&](const Op& op) { return op.id == id; });
  };
  const ValueIndex parameter = of(update->id).variants[0].consumes.at(0);
  const Op* reader = nullptr;
  for (const Op& op : graph.ops) {
    const auto& reads = op.variants[0].reads;
    if (op.phase == Phase::kForward && std::count(reads.begin(), reads.end(), parameter)) {
      reader = &op;
      break;
    }
  }
  ASSERT_NE(reader, nullptr);
  plan.actions.insert(update.base(), {ActionKind::kRun, reader->id, reader->variants[0].name});
  try {
    step.use(plan);
    FAIL() << "the plan was accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find(graph.values[static_cast<size_t>(parameter)].id),
              std::string::npos)
        << error.what();
  }
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(ConsumedGradients, WhatCannotBeDoneOneByOneIsRefused) {
  nn::Linear first(10, 10), second(10, 10);
  const Tensors inputs{at::randn({7, 10})};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = second->forward(first->forward(in[0]).tanh()).pow(2).mean();
    loss.backward();
    return loss;
  };
  const Parameters all{first->weight, first->bias, second->weight, second->bias};
  auto captured = [&](optim::Optimizer& optimizer, const Tensors& with) {
    return capture(step, with, {.measure = quick(), .optimizer = per_parameter(optimizer)});
  };
  auto capturing = [&](const Parameters& parameters, const Tensors& with) {
    return refusal([&] {
      optim::SGD optimizer(parameters, optim::SGDOptions(0.1));
      captured(optimizer, with);
    });
  };
  EXPECT_PRED2(contains, refusal([&] {
                 optim::LBFGS optimizer(all);
                 per_parameter(optimizer);
               }),
               "another class");
  EXPECT_PRED2(contains, capturing({first->weight, first->bias, second->weight}, inputs),
               "in no group");
  Parameters twice = all;
  twice.push_back(first->bias);
  EXPECT_PRED2(contains, capturing(twice, inputs), "twice");
  const at::Tensor wanted = at::randn({7, 10}).requires_grad_(true);
  Parameters with_input = all;
  with_input.push_back(wanted);
  EXPECT_PRED2(contains, capturing(with_input, {wanted}), "input 0");
  EXPECT_PRED2(contains, capturing({at::randn({3}).requires_grad_(true)}, inputs), "in no group");

  optim::SGD optimizer(all, optim::SGDOptions(0.1));
  CapturedStep done = captured(optimizer, inputs);
  done.run(inputs);
  first->bias.mutable_grad() = at::zeros({10});
  EXPECT_PRED2(contains, refusal([&] { done.run(inputs); }), "has a gradient already");
  optimizer.zero_grad();
  done.run(inputs);
  auto& options = static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options());
  options.lr(0.01);  // a schedule
  done.run(inputs);
  options.weight_decay(0.1);
  EXPECT_PRED2(contains, refusal([&] { done.run(inputs); }), "capture the step again");
  options.weight_decay(0);
  optimizer.add_param_group(optim::OptimizerParamGroup({at::randn({3}).requires_grad_(true)}));
  EXPECT_PRED2(contains, refusal([&] { done.run(inputs); }), "other parameters");
}

TEST_F(ConsumedGradients, TwoParametersInOneMemoryAreRefused) {
  const at::Tensor one = at::randn({10, 10}).requires_grad_(true);
  const at::Tensor other = one.detach().requires_grad_(true);
  const Tensors inputs{at::randn({7, 10})};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = at::mm(at::mm(in[0], one).tanh(), other).pow(2).mean();
    loss.backward();
    return loss;
  };
  optim::SGD optimizer(Parameters{one, other}, optim::SGDOptions(0.1));
  EXPECT_PRED2(contains, refusal([&] {
                 capture(step, inputs, {.measure = quick(), .optimizer = per_parameter(optimizer)});
               }),
               "same memory");
}

// Gradients of inputs are the same as without an optimizer in the step. A learning rate that
// changes is the optimizer's own business.
TEST_F(ConsumedGradients, GradientsOfInputsAndSchedulesWorkAsEver) {
  auto run = [&](bool consumed) {
    at::manual_seed(3);
    nn::Linear layer(10, 10);
    const at::Tensor x = at::randn({7, 10}).requires_grad_(true);
    auto step = [&](const Tensors& in) {
      at::Tensor loss = layer->forward(in[0]).pow(2).mean();
      loss.backward();
      return loss;
    };
    optim::SGD optimizer(layer->parameters(), optim::SGDOptions(0.1).momentum(0.9));
    std::optional<CapturedStep> captured;
    if (consumed) {
      captured.emplace(
          capture(step, Tensors{x}, {.measure = quick(), .optimizer = per_parameter(optimizer)}));
    }
    Bits bits;
    for (int n = 0; n < 3; ++n) {
      static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(0.1 / (1 + n));
      x.mutable_grad() = at::Tensor();
      if (captured) {
        captured->run({x});
      } else {
        step({x});
        optimizer.step();
        optimizer.zero_grad();
      }
      put_bits(bits, fmt::format("input gradient {}", n), x.grad());
    }
    put_bits(bits, "parameter", layer->parameters());
    put_state(bits, optimizer);
    return bits;
  };
  EXPECT_EQ(difference(run(false), run(true)), "");
}

// This optimizer is plain descent that fails at an update.
class Failing final : public ParameterOptimizer {
 public:
  Failing(Parameters parameters, int at) : parameters_(std::move(parameters)), left_(at) {}
  std::string name() const override { return "failing"; }
  Parameters parameters() const override { return parameters_; }
  void step(size_t parameter) override {
    if (left_-- == 0) throw std::runtime_error("the disk is full");
    at::NoGradGuard no_grad;
    const at::Tensor& tensor = parameters_[parameter];
    at::Tensor(tensor.variable_data()).sub_(tensor.grad());
  }
  bool has_state(size_t) const override { return false; }
  std::string memory_key(size_t) const override { return ""; }
  std::unique_ptr<ParameterOptimizer> twin(size_t, const at::Tensor& stand_in) const override {
    return std::make_unique<Failing>(Parameters{stand_in}, 1000);
  }

 private:
  Parameters parameters_;
  int left_;
};

TEST_F(ConsumedGradients, AStepThatFailsSaysWhatItHasUpdated) {
  nn::Linear first(64, 64), second(64, 64);
  auto module = std::make_shared<nn::Module>();
  module->register_module("first", first.ptr());
  module->register_module("second", second.ptr());
  const Tensors inputs{at::randn({7, 64})};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = second->forward(first->forward(in[0]).tanh()).pow(2).mean();
    loss.backward();
    return loss;
  };
  const Parameters all = module->parameters();
  CapturedStep captured = capture(
      step, inputs,
      {.modules = {module}, .measure = quick(), .optimizer = std::make_shared<Failing>(all, 2)});
  captured.plan({.budget = Bytes(smallest_peak_of(captured.graph()) + 256),
                 .time_limit = Nanos(500'000'000)});
  ASSERT_TRUE(consumes_early(*captured.planned().plan));
  try {
    captured.run(inputs);
    FAIL() << "the update failed";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_PRED2(contains, text, "second.weight");
    EXPECT_PRED2(contains, text, "second.bias");
    EXPECT_PRED2(contains, text, "the disk is full");
  }
  for (const at::Tensor& parameter : all) EXPECT_FALSE(parameter.grad().defined());
  captured.run(inputs);  // it goes on, on what there is
}

}  // namespace
}  // namespace reprise::runtime::testing
