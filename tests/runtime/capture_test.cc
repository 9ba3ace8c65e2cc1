// Checks promises of captured steps (runtime/capture.h) beyond the zoo: what training code does
// around the usual layers, what is refused and why, and that a failed step leaves nothing behind.
#include "reprise/runtime/capture.h"

#include "reprise/check/simulate.h"
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

std::vector<Stage> as_stages(const Case& work) { return {{work.name, work.module, {}}}; }

at::Tensor eager(const Case& work, const Tensors& inputs) {
  at::Tensor loss = work.loss(inputs);
  loss.backward();
  return loss;
}

CapturedStep captured(const Case& work, OnMiss on_miss = OnMiss::kRefuse) {
  CaptureOptions options;
  options.modules = {work.module};
  options.on_miss = on_miss;
  options.measure = quick();
  return capture([&work](const Tensors& in) { return eager(work, in); }, work.inputs, options);
}

int64_t smallest_peak(const Graph& graph) {
  return plan(graph, {.budget = graph.fixed, .time_limit = Nanos(300'000'000)})
      .smallest_budget.value_or(baseline(graph).peak)
      .count();
}

class CaptureTest : public RuntimeTest {};

TEST_F(CaptureTest, WhatTrainingCodeDoesIsReplayedBitForBitInThePredictedBytes) {
  for (const Case& work : cases()) {
    SCOPED_TRACE(work.name);
    const std::vector<Stage> stages = as_stages(work);
    const StepState state(stages, work.inputs);
    CapturedStep step = captured(work);
    std::vector<Bits> expected;
    state.restore();
    for (int n = 0; n < 2; ++n) {
      drop_gradients(stages, work.inputs);
      const at::Tensor loss = eager(work, work.inputs);
      expected.push_back(bits_now(stages, work.inputs, loss));
    }
    state.restore();
    const int64_t plain = baseline(step.graph()).peak.count(), floor = smallest_peak(step.graph());
    for (int k = 0; k <= 5; ++k) {
      SCOPED_TRACE(fmt::format("budget {} of 5 from plain {} to {}", k, plain, floor));
      try {
        step.plan(
            {.budget = Bytes(plain - (plain - floor) * k / 5), .time_limit = Nanos(100'000'000)});
      } catch (const BudgetError&) {
        EXPECT_GT(k, 3);
        continue;
      }
      state.restore();
      for (int n = 0; n < 2; ++n) {
        drop_gradients(stages, work.inputs);
        const at::Tensor loss = step.run(work.inputs);
        EXPECT_EQ(difference(expected[static_cast<size_t>(n)], bits_now(stages, work.inputs, loss)),
                  "");
        EXPECT_EQ(step.last_step().predicted_peak.count(), step.last_step().measured_peak.count());
        EXPECT_EQ(step.last_step().fallbacks, 0);
      }
    }
    state.restore();
  }
}

TEST_F(CaptureTest, GradientsThatAreThereAreAddedTo) {
  const Case work = convolutions();
  const std::vector<Stage> stages = as_stages(work);
  CapturedStep step = captured(work);
  for (int n = 0; n < 3; ++n) eager(work, work.inputs);
  const Bits expected = bits_now(stages, {});
  drop_gradients(stages, {});
  for (int n = 0; n < 3; ++n) step.run(work.inputs);  // gradients of the run before leave the arena
  EXPECT_GT(step.last_step().served, 0);
  EXPECT_EQ(step.last_step().fallbacks, 0);
  EXPECT_GE(step.last_step().arena_height, step.last_step().arena_live_bytes);
  EXPECT_EQ(difference(expected, bits_now(stages, {})), "");
}

TEST_F(CaptureTest, OtherValuesOfTheInputsAreUsed) {
  const Case work = convolutions();
  const std::vector<Stage> stages = as_stages(work);
  CapturedStep step = captured(work);
  const Tensors other{at::randn({3, 8, 12, 12}), longs({1, 1, 3})};
  const at::Tensor loss = eager(work, other);
  const Bits expected = bits_now(stages, {}, loss);
  for (int n = 0; n < 2; ++n) {
    drop_gradients(stages, {});
    EXPECT_EQ(difference(expected, bits_now(stages, {}, step.run(other))), "");
  }
}

TEST_F(CaptureTest, SeveralOutputsAndBackwardPasses) {
  nn::Linear layer(10, 10);
  const Tensors inputs{at::randn({7, 10})};
  auto both = [&](const Tensors& in) {
    const at::Tensor y = layer->forward(in[0]);
    at::Tensor first = y.pow(2).mean(), second = layer->forward(y.detach().tanh()).sum();
    first.backward();
    second.backward();
    return Tensors{first, second, y};
  };
  CapturedStep step = capture(both, inputs, {.measure = quick()});
  const Tensors plain = both(inputs);
  const at::Tensor gradient = layer->weight.grad().clone();
  layer->zero_grad();
  const Tensors replayed = step.run_all(inputs);
  ASSERT_EQ(replayed.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(plain[i].equal(replayed[i]));
  EXPECT_TRUE(gradient.equal(layer->weight.grad()));
}

// Returns the message of the InputError that capturing throws.
std::string refusal(const std::function<at::Tensor(const Tensors&)>& step, const Tensors& inputs) {
  try {
    capture(step, inputs, {.measure = quick()});
  } catch (const InputError& error) {
    return error.what();
  }
  return "captured";
}

TEST_F(CaptureTest, WhatCannotBeReplayedIsRefusedByName) {
  nn::Linear layer(10, 10);
  const Tensors inputs{at::randn({7, 10})};
  auto with = [&](auto&& change) {
    return [&layer, change](const Tensors& in) mutable {
      at::Tensor loss = change(layer->forward(in[0])).sum();
      loss.backward();
      return loss;
    };
  };
  EXPECT_PRED2(contains,
               refusal(with([](at::Tensor y) { return y * y.max().item<float>(); }), inputs),
               "reads a number that is not whole out of a tensor");
  EXPECT_PRED2(contains,
               refusal(with([&](at::Tensor y) {
                         at::NoGradGuard no_grad;
                         layer->weight.mul_(0.5);
                         return y;
                       }),
                       inputs),
               "parameter");
  EXPECT_PRED2(contains,
               refusal(
                   [&](const Tensors& in) {
                     in[0].mul_(1);
                     at::Tensor loss = layer->forward(in[0]).sum();
                     loss.backward();
                     return loss;
                   },
                   inputs),
               "input 0");
  int count = 0;
  EXPECT_PRED2(contains, refusal(with([&](at::Tensor y) { return y * (1.0 / ++count); }), inputs),
               "changes from run to run");
  EXPECT_PRED2(
      contains,
      refusal(with([&](at::Tensor y) { return ++count % 2 ? y.sin() : y.cos().exp(); }), inputs),
      "does not do the same work twice");
  EXPECT_PRED2(contains,
               refusal(with([](at::Tensor y) { return y.to_sparse().to_dense(); }), inputs),
               "cannot be captured");
  // The refused steps leave nothing behind.
  EXPECT_FALSE(layer->weight.grad().defined());
}

TEST_F(CaptureTest, OtherCircumstancesAreRefusedOrCapturedAgain) {
  const Case work = convolutions();
  CapturedStep step = captured(work);
  const Tensors larger{at::randn({6, 8, 12, 12}), longs({0, 1, 2, 3, 4, 0})};
  auto message = [&](const Tensors& inputs) {
    try {
      step.run(inputs);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("ran");
  };
  EXPECT_PRED2(contains, message(larger), "input 0 is Float[6, 8, 12, 12]");
  EXPECT_PRED2(contains, message({work.inputs[0]}), "1 inputs instead of 2");
  EXPECT_PRED2(contains, message({work.inputs[0].to(at::kDouble), work.inputs[1]}), "Double");
  work.module->eval();
  EXPECT_PRED2(contains, message(work.inputs), "evaluation mode");
  work.module->train();
  {
    at::NoGradGuard no_grad;
    EXPECT_PRED2(contains, message(work.inputs), "gradients are switched off");
  }
  // Another number of threads may add in another order, and so may other kernels.
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  EXPECT_PRED2(contains, message(work.inputs),
               fmt::format("threads of an operation: {} instead of {}", threads + 1, threads));
  at::set_num_threads(threads);
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_PRED2(contains, message(work.inputs), "oneDNN");
  at::globalContext().setUserEnabledMkldnn(true);

  CapturedStep flexible = captured(work, OnMiss::kRecapture);
  const std::vector<Stage> stages = as_stages(work);
  const at::Tensor loss = eager(work, larger);
  const Bits expected = bits_now(stages, {}, loss);
  drop_gradients(stages, {});
  EXPECT_EQ(difference(expected, bits_now(stages, {}, flexible.run(larger))), "");
}

TEST_F(CaptureTest, ABudgetThatIsTooSmallIsRefusedWithTheSmallestPeak) {
  const Case work = convolutions();
  CapturedStep step = captured(work);
  try {
    step.plan({.budget = Bytes(1000)});
    FAIL() << "planned";
  } catch (const BudgetError& error) {
    EXPECT_PRED2(contains, error.what(), "The smallest budget with a plan found is");
    EXPECT_GT(error.requested(), 1000);
  }
}

TEST_F(CaptureTest, AfterARefusedBudgetThePlanBeforeStays) {
  const Case work = convolutions();
  CapturedStep step = captured(work);
  step.plan({.budget = "100%"});
  const Bytes budget = step.planned().budget;
  EXPECT_THROW(step.plan({.budget = Bytes(1000)}), BudgetError);
  step.run(work.inputs);
  EXPECT_EQ(step.last_step().budget, budget);
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
}

// Other memory may come, such as optimizer state. The step uses what the budget leaves to the last
// byte. Beyond that, the step is planned again, or refused before it changes anything, and it runs
// again when there is room.
TEST_F(CaptureTest, OtherMemoryThatComesIsPartOfTheBudget) {
  const Case work = in_place();
  const std::vector<Stage> stages = as_stages(work);
  CapturedStep step = captured(work);
  const int64_t plain = baseline(step.graph()).peak.count();
  step.plan({.budget = Bytes(plain + 4096), .time_limit = Nanos(300'000'000)});
  auto runs_right = [&] {
    drop_gradients(stages, {});
    step.run(work.inputs);
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
    EXPECT_LE(step.last_step().measured_peak, step.last_step().budget);
  };
  for (int n = 0; n < 2; ++n) runs_right();
  const int64_t left = step.last_step().budget.count() - step.last_step().measured_peak.count();
  ASSERT_GT(left, 0);
  {
    const at::Tensor other = at::empty({left}, at::kByte);
    for (int n = 0; n < 3; ++n) runs_right();
    EXPECT_EQ(step.last_step().measured_peak, step.last_step().budget);
    const at::Tensor more = at::empty({plain}, at::kByte);
    drop_gradients(stages, {});
    const Bits before = bits_now(stages, {});
    EXPECT_THROW(step.run(work.inputs), BudgetError);
    EXPECT_EQ(difference(before, bits_now(stages, {})), "");
  }
  for (int n = 0; n < 2; ++n) runs_right();
}

// Every allocation of a step is refused in turn. Then nothing has changed, and the next step is
// right.
TEST_F(CaptureTest, AStepThatFailsLeavesEverythingAsItWas) {
  const Case work = shared_norm();
  const std::vector<Stage> stages = as_stages(work);
  const StepState state(stages, work.inputs);
  // The step is captured without modules, because a step with modules allows no other buffers.
  CapturedStep step = capture([&](const Tensors& in) { return eager(work, in); }, work.inputs,
                              {.measure = quick()});
  const Bits expected = [&] {
    const at::Tensor loss = eager(work, work.inputs);
    return bits_now(stages, {}, loss);
  }();
  state.restore();
  const int64_t plain = baseline(step.graph()).peak.count();
  step.plan({.budget = Bytes((plain + smallest_peak(step.graph())) / 2), .time_limit = Nanos(300'000'000)});
  step.run(work.inputs);
  const int64_t peak = step.last_step().measured_peak.count();
  EXPECT_EQ(peak, step.last_step().predicted_peak.count());
  state.restore();
  // Raises the limit until there is room, and returns the limit that was enough.
  const auto fail_at_each_request = [&] {
    const Bits before = bits_now(stages, {});
    const int64_t level = live();
    for (int64_t limit = level;; limit += 64) {
      SCOPED_TRACE(limit);
      try {
        const MemoryLimitGuard guard(limit);
        step.run(work.inputs);
        EXPECT_GT(limit, level + 640);
        return limit;
      } catch (const BudgetError&) {
        EXPECT_EQ(difference(before, bits_now(stages, {})), "");
        EXPECT_EQ(live(), level);
      }
    }
  };
  EXPECT_EQ(fail_at_each_request(), peak);
  state.restore();
  drop_gradients(stages, {});
  EXPECT_EQ(difference(expected, bits_now(stages, {}, step.run(work.inputs))), "");
  // A failed step puts back the buffers of now, not those of the capture.
  drop_gradients(stages, {});
  for (const Stage& stage : stages) {
    for (at::Tensor& buffer : stage.module->buffers()) buffer.set_data(buffer + 1);
  }
  fail_at_each_request();
}

TEST_F(CaptureTest, OperationsSayWhichModuleTheyBelongTo) {
  nn::Sequential block(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)), nn::BatchNorm2d(4), nn::ReLU(),
                       nn::Conv2d(nn::Conv2dOptions(4, 4, 1)));
  nn::Linear head(4 * 14 * 14, 5);
  const auto model = std::make_shared<nn::Module>();
  model->register_module("block", block.ptr());
  model->register_module("head", head.ptr());
  auto step = [&](const Tensors& in) {
    at::Tensor loss = head->forward(block->forward(in[0]).flatten(1)).square().mean();
    loss.backward();
    return loss;
  };
  auto ids = [&](std::vector<std::shared_ptr<nn::Module>> modules) {
    std::vector<std::string> names;
    const CapturedStep captured =
        capture(step, {images_}, {.modules = std::move(modules), .measure = quick()});
    for (const Op& op : captured.graph().ops) {
      const bool has_owner = !op.owner.empty();
      EXPECT_EQ(contains(op.id, "@"), has_owner) << op.id;
      names.push_back(op.id.substr(op.id.find(':') + 1));
      EXPECT_TRUE(!has_owner || names.back().ends_with("@" + op.owner)) << op.id;
    }
    return names;
  };
  const std::vector<std::string> named = ids({model});
  for (const char* expected :
       {"convolution@block.0", "native_batch_norm@block.1", "relu@block", "convolution@block.3",
        "addmm@head", "convolution_backward@block.3", "threshold_backward@block",
        "native_batch_norm_backward@block.1", "convolution_backward@block.0"}) {
    EXPECT_NE(std::find(named.begin(), named.end(), expected), named.end())
        << expected << " of " << fmt::format("{}", fmt::join(named, ", "));
  }
  const std::vector<std::string> of_two = ids({block.ptr(), head.ptr()});
  EXPECT_NE(std::find(of_two.begin(), of_two.end(), "relu@0"), of_two.end());
  EXPECT_NE(std::find(of_two.begin(), of_two.end(), "native_batch_norm@0.1"), of_two.end());
  EXPECT_NE(std::find(of_two.begin(), of_two.end(), "addmm@1"), of_two.end());
  for (const std::string& id : ids({})) EXPECT_FALSE(contains(id, "@")) << id;
}

}  // namespace
}  // namespace reprise::runtime::testing
