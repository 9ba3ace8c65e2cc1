// Steps overlap, are dropped, or follow others: of one model or of two, with other inputs or other
// memory.
#include <torch/optim/adam.h>

#include "fixture.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::testing {

using internal::device::storage_bytes;
namespace {

using SeveralSteps = RuntimeTest;

TEST_F(SeveralSteps, TwoForwardPassesBeforeTheirBackwardPassesInEitherOrder) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  const Tensors first{images_}, second{at::randn({8, 3, 16, 16})};
  const StepState state(plain, first);
  auto two = [&](const std::function<Tensors(const Tensors&)>& forward, bool swapped) {
    drop_gradients(plain, {});
    at::Tensor a = mean_square(forward(first));
    at::Tensor b = mean_square(forward(second));
    (swapped ? b : a).backward();
    Bits bits;
    for (auto& [name, bytes] : bits_now(plain, first)) bits["between " + name] = bytes;
    (swapped ? a : b).backward();
    bits.merge(bits_now(plain, first, a + b));
    return bits;
  };
  auto remat = reprise::runtime::remat(counted.stages, first,
                                       {.loss = mean_square, .measure = without_options()});
  // With this budget, the first step may keep everything, and the second one just fits beside it.
  const int64_t level = (remat->chain().fixed + remat->chain().input.bytes).count();
  const int64_t gradients = storage_bytes(parameters_of(plain)) + 256;  // and two losses
  remat->set_budget(
      Bytes(largest_budget(*remat).count() + smallest_budget(*remat).count() - level + gradients));
  for (bool swapped : {false, true}) {
    SCOPED_TRACE(swapped);
    state.restore();
    const Bits expected =
        two([&](const Tensors& x) { return run_plain(plain, x); }, swapped);
    state.restore();
    counted.reset();
    const Bits planned = two([&](const Tensors& x) { return remat->forward(x); }, swapped);
    EXPECT_EQ(difference(expected, planned), "");
    EXPECT_GT(counted.total(), 2 * static_cast<int>(plain.size()));
    EXPECT_EQ(memory_limit(), std::nullopt);
  }
}

TEST_F(SeveralSteps, AForwardPassThatIsDroppedGivesEverythingBack) {
  const std::vector<Stage> stages = conv_stages();
  const StepState state(stages, {images_});
  plain_steps(stages, {images_}, mean_square, 1);
  state.restore();
  const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
  state.restore();
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  const int64_t before = live();
  {
    const at::Tensor output = remat->forward(images_);
    EXPECT_NE(memory_limit(), std::nullopt);
    EXPECT_GT(live(), before);
  }
  EXPECT_EQ(memory_limit(), std::nullopt);
  EXPECT_EQ(live(), before);
  state.restore();
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
}

TEST_F(SeveralSteps, AnotherBatchSizePlansAgainOnce) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  const Tensors half{at::randn({4, 3, 16, 16})};
  const StepState state(plain, {images_});
  auto remat =
      reprise::runtime::remat(counted.stages, {images_}, {.loss = mean_square, .measure = quick()});
  EXPECT_EQ(remat->last_step().plans, 1);
  int64_t plans = 0;
  const Bytes budget = smallest_budget(*remat) + Bytes(8192);  // what a second plan keeps
  remat->set_budget(budget);
  for (const Tensors& inputs : {Tensors{images_}, half, Tensors{images_}, half}) {
    state.restore();
    const Bits expected = plain_steps(plain, inputs, mean_square, 1)[0];
    state.restore();
    counted.reset();
    EXPECT_EQ(difference(expected, planned_step(*remat, plain, inputs, mean_square)), "");
    EXPECT_LE(remat->last_step().measured_peak, budget);
    // Measuring a new kind of input also runs the stages; the third step is the first without it.
    if (remat->last_step().steps > 2) {
      EXPECT_EQ(counted.calls(), planned_runs(*remat));
    }
    if (remat->last_step().steps <= 3) plans = remat->last_step().plans;
  }
  EXPECT_GE(plans, 3);
  EXPECT_EQ(remat->last_step().plans, plans) << "planned again for a known kind of input";
  EXPECT_EQ(remat->last_step().steps, 4);
}

TEST_F(SeveralSteps, OptimizerStateThatComesLaterPlansAgainOrIsRefusedBeforeAnythingRuns) {
  const std::vector<Stage> plain = dense_stages(6);
  CountedStages counted(plain);
  std::vector<at::Tensor> parameters = parameters_of(plain);
  const int64_t weights = 6 * (64 * 64 + 64) * 4;
  const StepState state(plain, {rows_});
  auto remat =
      reprise::runtime::remat(counted.stages, {rows_}, {.loss = mean_square, .measure = quick()});
  const Bytes smallest = smallest_budget(*remat);
  remat->set_budget(smallest);
  torch::optim::Adam optimizer(parameters);
  planned_step(*remat, plain, {rows_}, mean_square);
  optimizer.step();
  optimizer.zero_grad();
  const Bits before = bits_now(plain, {rows_});
  const int64_t level = live();
  for (int attempt = 0; attempt < 2; ++attempt) {
    counted.reset();
    EXPECT_THROW(remat->forward(rows_), BudgetError);
    EXPECT_EQ(counted.total(), 0) << "attempt " << attempt;
  }
  EXPECT_EQ(difference(before, bits_now(plain, {rows_})), "");
  EXPECT_EQ(live(), level);
  const int64_t plans = remat->last_step().plans;
  const Bytes enough =
      smallest + Bytes(2 * weights + 6 * 2 * 64);  // Adam's step counters are tensors
  remat->set_budget(enough);
  state.restore();
  const Bits expected = plain_steps(plain, {rows_}, mean_square, 1)[0];
  state.restore();
  EXPECT_EQ(difference(expected, planned_step(*remat, plain, {rows_}, mean_square)), "");
  EXPECT_GT(remat->last_step().plans, plans);
  EXPECT_LE(remat->last_step().measured_peak, enough);
}

TEST_F(SeveralSteps, TwoModelsWithTheirOwnBudgetsInterleaved) {
  const std::vector<Stage> one = conv_stages(), two = dense_stages(6);
  const StepState state_one(one, {images_}), state_two(two, {rows_});
  CountedStages counted_one(one), counted_two(two);
  auto a = reprise::runtime::remat(counted_one.stages, {images_},
                                   {.loss = mean_square, .measure = without_options()});
  auto b = reprise::runtime::remat(counted_two.stages, {rows_},
                                   {.loss = mean_square, .measure = without_options()});
  auto alternate = [&](auto&& run_one, auto&& run_two, bool nested) {
    Bits bits;
    drop_gradients(one, {});
    drop_gradients(two, {});
    at::Tensor first = mean_square(run_one());
    if (!nested) first.backward();
    at::Tensor second = mean_square(run_two());
    if (nested) first.backward();
    second.backward();
    for (auto& [name, bytes] : bits_now(one, {images_}, first)) bits["one " + name] = bytes;
    for (auto& [name, bytes] : bits_now(two, {rows_}, second)) bits["two " + name] = bytes;
    return bits;
  };
  for (bool nested : {false, true}) {
    SCOPED_TRACE(nested);
    const int64_t level = live();
    // A budget covers all live bytes, also those of the other model's step and gradients.
    const Bytes gradients(storage_bytes(parameters_of(one)));
    if (nested) {  // the first may keep everything beside which the second one just fits
      const Bytes room =
          smallest_budget(*b) - b->chain().fixed - b->chain().input.bytes + gradients;
      a->set_budget(largest_budget(*a) + room);
      b->set_budget(largest_budget(*a) + room);
    } else {
      a->set_budget(smallest_budget(*a));
      b->set_budget(smallest_budget(*b) + gradients + Bytes(64));
    }
    const Bits expected = [&] {
      state_one.restore();
      state_two.restore();
      return alternate([&] { return run_plain(one, {images_}); },
                       [&] { return run_plain(two, {rows_}); }, nested);
    }();
    state_one.restore();
    state_two.restore();
    counted_one.reset();
    counted_two.reset();
    const Bits planned = alternate([&] { return a->forward(Tensors{images_}); },
                                   [&] { return b->forward(Tensors{rows_}); }, nested);
    EXPECT_EQ(difference(expected, planned), "");
    EXPECT_EQ(memory_limit(), std::nullopt);
    EXPECT_GT(counted_one.total() + counted_two.total(), static_cast<int>(one.size() + two.size()));
    state_one.restore();
    state_two.restore();
    EXPECT_EQ(live(), level);
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
