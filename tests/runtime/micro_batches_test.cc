// Checks promises of steps in parts (runtime/micro_batches.h): the bits of accumulation by hand,
// the bytes of the plan, and the number of parts that is the fastest within the budget.
#include "reprise/runtime/micro_batches.h"

#include <torch/optim/sgd.h>

#include "fixture.h"
#include "reprise/check/simulate.h"

namespace reprise::runtime::testing {
namespace {

class MicroBatchesTest : public RuntimeTest {
 protected:
  // The model has dropout and batch norms, which must run in the order of the parts. The mask is no
  // part of the batch.
  MicroBatchesTest() : stages_(conv_stages()) {
    for (int64_t k = 0; k < 10; ++k) mask_[k] = k % 3 == 0 ? 0.0 : 1.0;
  }

  at::Tensor loss_of(const Tensors& in) const {
    Tensors x{in[0]};
    for (const Stage& stage : stages_) x = stage.forward(x);
    return at::cross_entropy_loss(x[0] * in[2], in[1]);
  }
  PartFunction part() const {
    return [this](const Tensors& in, double share) {
      at::Tensor loss = loss_of(in);
      if (share != 1) loss = loss * share;
      loss.backward();
      return Tensors{loss};
    };
  }
  MicroBatchOptions options(std::vector<int64_t> parts, Budget budget) const {
    MicroBatchOptions all{.parts = std::move(parts)};
    all.infeasible_is_an_answer = true;
    for (const Stage& stage : stages_) {
      if (stage.module) all.capture.modules.push_back(stage.module);
    }
    all.capture.measure = quick();
    all.plan.budget = budget;
    all.plan.time_limit = Nanos(200'000'000);
    return all;
  }
  // Runs steps in a row from the state, at the budget that was asked for and near the smallest one.
  void expect_steps(MicroBatches& found, const StepState& state,
                    const std::vector<Bits>& expected) const {
    const Graph& graph = found.step.graph();
    const PlanResult least =
        plan(graph, {.budget = graph.fixed, .time_limit = Nanos(300'000'000)});
    const Bytes floor = *least.smallest_budget;
    // Some bytes above what one search reached, so that another one reaches it, too.
    const Bytes budgets[] = {found.chosen.result.budget,
                             floor + Bytes((found.chosen.result.budget - floor).count() / 8)};
    for (const Bytes budget : budgets) {
      SCOPED_TRACE(budget.count());
      found.step.plan({.budget = budget, .time_limit = Nanos(300'000'000)});
      state.restore();
      for (const Bits& bits : expected) {
        drop_gradients(stages_, {});
        const at::Tensor loss = found.step.run(inputs_);
        EXPECT_EQ(difference(bits, bits_now(stages_, {}, loss)), "");
        const CapturedStepReport report = found.step.last_step();
        EXPECT_EQ(report.measured_peak, report.predicted_peak);
        EXPECT_LE(report.measured_peak, budget);
        EXPECT_EQ(report.fallbacks, 0);
      }
    }
  }

  std::vector<Stage> stages_;
  at::Tensor mask_ = at::ones({10});
  Tensors inputs_{at::randn({7, 3, 16, 16}), at::randint(0, 10, {7}, at::kLong), mask_};
};

TEST_F(MicroBatchesTest, HaveTheBitsOfAccumulationByHandInThePredictedBytes) {
  const StepState state(stages_, inputs_);
  for (const int64_t parts : {2, 3, 7}) {
    SCOPED_TRACE(parts);
    // This is accumulation as people write it. Seven rows in three parts are 2, 2 and 3.
    state.restore();
    std::vector<Bits> expected;
    for (int step = 0; step < 3; ++step) {
      drop_gradients(stages_, {});
      at::Tensor sum;
      for (int64_t p = 0, begin = 0; p < parts; ++p) {
        const int64_t end = 7 * (p + 1) / parts;
        at::Tensor loss =
            loss_of({inputs_[0].slice(0, begin, end), inputs_[1].slice(0, begin, end), mask_}) *
            (static_cast<double>(end - begin) / 7);
        loss.backward();
        sum = sum.defined() ? sum + loss.detach() : loss.detach();
        begin = end;
      }
      expected.push_back(bits_now(stages_, {}, sum));
    }
    state.restore();
    drop_gradients(stages_, {});
    MicroBatches found = micro_batches(part(), inputs_, options({parts}, "100%"));
    EXPECT_EQ(found.chosen.parts, parts);
    ASSERT_TRUE(found.chosen.result.plan);
    expect_steps(found, state, expected);
  }
  state.restore();
  drop_gradients(stages_, {});
}

TEST_F(MicroBatchesTest, TheFastestNumberWithinTheBudgetIsChosen) {
  const MicroBatches whole = micro_batches(part(), inputs_, options({1, 2, 4}, {}));
  EXPECT_EQ(whole.chosen.parts, 1) << "without a limit nothing is faster than plain training";
  EXPECT_EQ(whole.tried.size(), 1u);

  const MicroBatches none = micro_batches(part(), inputs_, options({1, 2, 4}, Bytes(1)));
  EXPECT_FALSE(none.chosen.result.plan);
  ASSERT_EQ(none.tried.size(), 3u);
  for (const PartsTried& tried : none.tried) {
    EXPECT_LE(*none.chosen.result.smallest_budget, *tried.result.smallest_budget);
  }

  // The budget is well below what one part can be planned in, and above what four can. Smallest
  // peaks are those that a search found in its time.
  const Bytes one = *none.tried[0].result.smallest_budget;
  const Bytes four = *none.tried[2].result.smallest_budget;
  const Bytes budget(four.count() * 11 / 10);
  ASSERT_LT(budget.count(), one.count() * 9 / 10);
  const MicroBatches found = micro_batches(part(), inputs_, options({1, 2, 4, 99}, budget));
  ASSERT_TRUE(found.chosen.result.plan);
  EXPECT_GT(found.chosen.parts, 1);
  for (const PartsTried& tried : found.tried) {
    EXPECT_LE(tried.parts, 4) << "there are seven rows";
    if (!tried.result.plan) continue;
    EXPECT_LE(tried.result.plan->peak, budget);
    EXPECT_LE(found.chosen.result.plan->time, tried.result.plan->time);
  }
}

TEST_F(MicroBatchesTest, WithoutAPlanForAnyNumberTheyAreRefused) {
  MicroBatchOptions all = options({1, 2}, Bytes(1));
  all.infeasible_is_an_answer = false;
  try {
    micro_batches(part(), inputs_, all);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.budget(), 1);
    EXPECT_GT(error.requested(), 1);
    EXPECT_NE(std::string(error.what()).find("closest is 2: infeasible"), std::string::npos)
        << error.what();
  }
}

TEST_F(MicroBatchesTest, TheyGoTogetherWithConsumedGradients) {
  const StepState state(stages_, inputs_);
  std::vector<at::Tensor> start;
  for (const at::Tensor& p : parameters_of(stages_)) start.push_back(p.detach().clone());
  auto course = [&](bool planned) {
    {
      at::NoGradGuard no_grad;
      state.restore();
      const std::vector<at::Tensor> parameters = parameters_of(stages_);
      for (size_t k = 0; k < start.size(); ++k) at::Tensor(parameters[k]).copy_(start[k]);
    }
    drop_gradients(stages_, {});
    torch::optim::SGD sgd(parameters_of(stages_), torch::optim::SGDOptions(0.1));
    std::optional<MicroBatches> found;
    if (planned) {
      MicroBatchOptions all = options({3}, "90%");
      all.capture.optimizer = per_parameter(sgd);
      found.emplace(micro_batches(part(), inputs_, all));
      EXPECT_TRUE(found->chosen.result.plan);
    }
    const StepFunction by_hand = in_parts(part(), 3);
    at::Tensor loss;
    for (int n = 0; n < 3; ++n) {
      if (planned) {
        loss = found->step.run(inputs_);
        continue;
      }
      loss = by_hand(inputs_)[0];
      sgd.step();
      sgd.zero_grad();
    }
    return bits_now(stages_, {}, loss);
  };
  EXPECT_EQ(difference(course(false), course(true)), "");
}

TEST_F(MicroBatchesTest, SharesOfTheBudgetAreOfTheFirstNumberOfParts) {
  const Bytes whole = baseline(micro_batches(part(), inputs_, options({1}, {})).step.graph()).peak;
  // More numbers are tried where the plan for one part is slower than plain training.
  for (const int64_t share : {60, 45, 30}) {
    const Budget budget(std::to_string(share) + "%");
    const MicroBatches found = micro_batches(part(), inputs_, options({1, 2, 4}, budget));
    for (const PartsTried& tried : found.tried) {
      EXPECT_EQ(tried.result.budget.count(), whole.count() * share / 100);
    }
    if (found.tried.size() > 1) return;
  }
  FAIL() << "one part was always as fast as plain training";
}

TEST_F(MicroBatchesTest, WhatCannotBeDividedIsRefused) {
  EXPECT_THROW(in_parts(part(), 0), InputError);
  EXPECT_THROW(in_parts(part(), 8)(inputs_), InputError);
  EXPECT_THROW(micro_batches(part(), inputs_, options({8}, {})), InputError);
  EXPECT_THROW(micro_batches(part(), inputs_, options({8, 9}, {})), InputError);
  EXPECT_THROW(micro_batches(part(), inputs_, options({}, {})), InputError);
  EXPECT_THROW(in_parts(part(), 2)({}), InputError);
  auto more = [results = Tensors()](const Tensors& in, double) mutable {
    results.push_back(in[0].sum());
    return results;
  };
  EXPECT_THROW(in_parts(more, 2)(inputs_), InputError);
  auto rows = [](const Tensors& in, double) { return Tensors{in[0].sum({1, 2, 3})}; };
  EXPECT_THROW(in_parts(rows, 2)(inputs_), InputError);
  bool first = true;
  auto sometimes = [&](const Tensors& in, double) {
    return Tensors{std::exchange(first, false) ? at::Tensor() : in[0].sum()};
  };
  EXPECT_THROW(in_parts(sometimes, 2)(inputs_), InputError);
  EXPECT_THROW(in_parts(part(), 2)({at::ones({})}), InputError);
}

// The body sees the whole batch, and so do its batch norms.
TEST_F(MicroBatchesTest, OfTheTailHaveTheBitsOfDoingItByHand) {
  const size_t last = stages_.size() - 1;
  const auto forward = [&](Tensors x, size_t from, size_t to) {
    for (size_t k = from; k < to; ++k) x = stages_[k].forward(x);
    return x[0];
  };
  const BodyFunction body = [&](const Tensors& in) {
    return Tensors{forward({in[0]}, 0, last), in[1], in[2]};
  };
  const auto tail_loss = [&](const Tensors& in) {
    return at::cross_entropy_loss(forward({in[0]}, last, stages_.size()) * in[2], in[1]);
  };
  const PartFunction part = [&](const Tensors& in, double share) {
    at::Tensor loss = tail_loss(in);
    if (share != 1) loss = loss * share;
    loss.backward();
    return Tensors{loss};
  };
  const StepState state(stages_, inputs_);
  for (const int64_t parts : {1, 2, 3}) {
    SCOPED_TRACE(parts);
    state.restore();
    std::vector<Bits> expected;
    for (int step = 0; step < 3; ++step) {
      drop_gradients(stages_, {});
      const at::Tensor whole = body(inputs_)[0];
      at::Tensor sum;
      std::vector<at::Tensor> gradients;
      for (int64_t p = 0, begin = 0; p < parts; ++p) {
        const int64_t end = 7 * (p + 1) / parts;
        const at::Tensor rows = whole.slice(0, begin, end).detach().requires_grad_();
        at::Tensor loss = tail_loss({rows, inputs_[1].slice(0, begin, end), mask_});
        if (parts > 1) loss = loss * (static_cast<double>(end - begin) / 7);
        loss.backward();
        gradients.push_back(rows.grad());
        sum = sum.defined() ? sum + loss.detach() : loss.detach();
        begin = end;
      }
      whole.backward(at::cat(gradients));
      expected.push_back(bits_now(stages_, {}, sum));
    }
    state.restore();
    drop_gradients(stages_, {});
    MicroBatchOptions all = options({parts}, "100%");
    all.body = body;
    MicroBatches found = micro_batches(part, inputs_, all);
    ASSERT_TRUE(found.chosen.result.plan);
    expect_steps(found, state, expected);
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
