// Tests pipelines that run in C++: two processes with Gloo, and all parts in one process.
#include <algorithm>
#include <stdexcept>

#include "fixture.h"
#include "reprise/check/pipeline.h"
#include "reprise/plan/pipeline.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/pipeline.h"
#include "two_processes.h"

namespace reprise::runtime::testing {
namespace {

constexpr int64_t kMicro = 4, kRows = 1024, kWidth = 64;

at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return (outputs.at(0) - targets.at(0)).square().sum() / kRows;
}

// A mask goes over the boundary beside a tensor with a gradient.
Stage with_mask(const std::string& name) {
  return {name, nullptr, [](const Tensors& x) { return Tensors{x.at(0), x.at(0) > 0}; }};
}

Stage masked(const std::string& name, nn::Linear linear) {
  return {name, linear.ptr(), [linear](const Tensors& x) mutable {
            return Tensors{linear->forward(at::where(x.at(1), x.at(0), 0.1 * x.at(0)))};
          }};
}

// A stage that saves much more than it hands over.
Stage wide(const std::string& name) {
  const nn::Sequential block(nn::Linear(kWidth, 4 * kWidth), nn::GELU(),
                             nn::Linear(4 * kWidth, kWidth));
  return {name, block.ptr(), [block](const Tensors& x) mutable {
            return Tensors{nn::Sequential(block)->forward(x.at(0))};
          }};
}

// Makes four stages before the cut and four behind it.
std::vector<Stage> network() {
  at::manual_seed(3);
  std::vector<Stage> stages{wide("0"),
                            wide("1"),
                            wide("2"),
                            with_mask("mask"),
                            masked("masked", nn::Linear(kWidth, kWidth)),
                            wide("5"),
                            wide("6"),
                            wide("7")};
  return stages;
}

std::vector<at::Tensor> parameters_in(const std::vector<Stage>& stages) {
  std::vector<at::Tensor> all;
  for (const Stage& stage : stages) {
    if (!stage.module) continue;
    for (const at::Tensor& parameter : stage.module->parameters()) all.push_back(parameter);
  }
  return all;
}

std::vector<Stage> half(const std::vector<Stage>& stages, int rank) {
  return {stages.begin() + 4 * rank, stages.begin() + 4 * rank + 4};
}

// A Twin is the same training in one process.
struct Twin {
  std::vector<at::Tensor> losses;  // of the micro-batches
  std::vector<at::Tensor> gradients;
};

Twin accumulate(const std::vector<Stage>& stages, const at::Tensor& x, const at::Tensor& y) {
  Twin twin;
  const auto inputs = x.chunk(kMicro), targets = y.chunk(kMicro);
  for (size_t b = 0; b < inputs.size(); ++b) {
    Tensors passed{inputs[b]};
    for (const Stage& stage : stages) passed = stage.forward(passed);
    const at::Tensor loss = loss_of(passed, {targets[b]});
    loss.backward();
    twin.losses.push_back(loss.detach());
  }
  for (const at::Tensor& parameter : parameters_in(stages)) {
    twin.gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return twin;
}

std::ptrdiff_t count_of(const PipelinedStep& step, PipelineActionKind kind) {
  std::ptrdiff_t count = 0;
  for (const DevicePlan& device : step.plan().devices) {
    count += std::count_if(device.order.begin(), device.order.end(),
                           [&](const PipelineAction& a) { return a.kind == kind; });
  }
  return count;
}

// Returns the number of runs of stages beyond the first ones.
size_t runs_again(const PipelinedStep& step) {
  size_t again = 0;
  for (const reprise::PipelinePart& part : step.plan().parts) {
    for (const PartPlan& one : part.plans) {
      std::vector<std::string> ops;
      for (const PartRun& run : one.forward) ops.push_back(name_of(run));
      for (const PartRun& run : one.backward) ops.push_back(name_of(run));
      std::sort(ops.begin(), ops.end());
      again += static_cast<size_t>(ops.end() - std::unique(ops.begin(), ops.end()));
    }
  }
  return again;
}

class PipelinedStepTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    rows_ = at::randn({kRows, kWidth});
    targets_ = at::randn({kRows, kWidth});
  }

  // Returns the options of a rank of two.
  PipelinedStepOptions options_of(const ProcessGroup& group) const {
    PipelinedStepOptions options{
        .micro_batches = kMicro, .group = group.name(), .time_limit = Nanos(300'000'000)};
    if (group.rank() == 0) options.sample = {rows_.narrow(0, 0, kRows / kMicro)};
    if (group.rank() == 1) {
      options.loss = loss_of;
      options.target = {targets_.narrow(0, 0, kRows / kMicro)};
    }
    return options;
  }
  at::Tensor run(PipelinedStep& step, int rank) const {
    return rank == 0 ? step.run({rows_}) : step.run({}, {targets_});
  }
  // Takes two steps, and compares bits and bytes.
  void compare(PipelinedStep& step, const Twin& twin, const std::vector<Stage>& stages,
               int rank) const {
    const size_t first = rank == 0 ? 0 : parameters_in(half(stages, 0)).size();
    for (int number = 0; number < 2; ++number) {
      const at::Tensor losses = run(step, rank);
      EXPECT_EQ(losses.defined(), rank == 1);
      EXPECT_TRUE(!losses.defined() || at::equal(losses, at::stack(twin.losses)));
      const std::vector<at::Tensor> mine = parameters_in(half(stages, rank));
      for (size_t p = 0; p < mine.size(); ++p) {
        EXPECT_TRUE(at::equal(mine[p].grad(), twin.gradients[first + p])) << p;
        mine[p].mutable_grad().reset();
      }
      const PipelinedStepReport& report = step.last_step();
      EXPECT_EQ(report.predicted_peak, report.measured_peak);
      EXPECT_EQ(report.steps, number + 1);
      EXPECT_EQ(report.plans, 1);
      EXPECT_LE(report.measured_peak, report.budget.value_or(report.measured_peak));
    }
    EXPECT_TRUE(verify(step.problem(), step.plan()).empty());
  }

  at::Tensor targets_;
};

TEST_F(PipelinedStepTest, TwoProcessesHaveTheBitsOfOneWithWholeAndWithSplitBackwards) {
  run_ranks(2, [&](const ProcessGroup& group) {
    const std::vector<Stage> stages = network();
    const Twin twin = accumulate(stages, rows_, targets_);
    const int rank = group.rank();
    Bytes most;
    for (const char* planner : {"1f1b", "zb_h1"}) {
      PipelinedStepOptions options = options_of(group);
      options.planner = planner;
      PipelinedStep step = pipeline({half(stages, rank)}, options);
      compare(step, twin, stages, rank);
      const bool splits = std::string(planner) == "zb_h1";
      EXPECT_EQ(count_of(step, PipelineActionKind::kInputGradient), splits ? 2 * kMicro : 0);
      EXPECT_EQ(count_of(step, PipelineActionKind::kWeightGradient), splits ? 2 * kMicro : 0);
      EXPECT_EQ(count_of(step, PipelineActionKind::kBackward), splits ? 0 : 2 * kMicro);
      EXPECT_EQ(runs_again(step), 0U);
      EXPECT_EQ(step.not_split(), std::vector<std::string>{});
      for (const DevicePlan& device : step.plan().devices) most = std::max(most, device.peak);
    }
    // In less memory stages run again, and backwards still come in two.
    PipelinedStepOptions options = options_of(group);
    options.planner = "zb_h1";
    options.budget = Bytes(most.count() * 82 / 100);
    PipelinedStep step = pipeline({half(stages, rank)}, options);
    compare(step, twin, stages, rank);
    EXPECT_GT(runs_again(step), 0U);
    EXPECT_GT(count_of(step, PipelineActionKind::kWeightGradient), 0);
  });
}

TEST_F(PipelinedStepTest, ThePlannerThatChoosesHoldsAShareOnEachRank) {
  run_ranks(2, [&](const ProcessGroup& group) {
    const std::vector<Stage> stages = network();
    const Twin twin = accumulate(stages, rows_, targets_);
    PipelinedStepOptions options = options_of(group);
    options.budget = "95%";
    PipelinedStep step = pipeline({half(stages, group.rank())}, options);
    EXPECT_EQ(step.plan().planner, "pipeline");
    compare(step, twin, stages, group.rank());
    EXPECT_TRUE(step.last_step().budget.has_value());
  });
}

TEST_F(PipelinedStepTest, AllPartsInOneProcessHaveTheBitsOfAccumulation) {
  const std::vector<Stage> stages = network();
  const Twin twin = accumulate(stages, rows_, targets_);
  PipelinedStep step = pipeline({half(stages, 0), half(stages, 1)},
                                {.micro_batches = kMicro,
                                 .sample = {rows_.narrow(0, 0, kRows / kMicro)},
                                 .loss = loss_of,
                                 .target = {targets_.narrow(0, 0, kRows / kMicro)},
                                 .time_limit = Nanos(300'000'000)});
  EXPECT_THROW(step.last_step(), InputError);
  const at::Tensor losses = step.run({rows_}, {targets_});
  EXPECT_TRUE(at::equal(losses, at::stack(twin.losses)));
  const std::vector<at::Tensor> parameters = parameters_in(stages);
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(at::equal(parameters[p].grad(), twin.gradients[p])) << p;
  }
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  // The gradients are there still.
  EXPECT_THROW(step.run({rows_}, {targets_}), InputError);
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  EXPECT_THROW(step.run({}, {targets_}), InputError);
  EXPECT_THROW(step.run({rows_.narrow(0, 0, kRows - 1)}, {targets_}), InputError);
  EXPECT_THROW(step.run({rows_.narrow(0, 0, kRows / 2)}, {targets_}), InputError);
  // A process alone goes on after a mistake.
  EXPECT_TRUE(at::equal(step.run({rows_}, {targets_}), losses));
}

TEST_F(PipelinedStepTest, ARankThatFailsStopsTheOthersAndLeavesNoGradient) {
  run_ranks(2, [&](const ProcessGroup& group) {
    const std::vector<Stage> stages = network();
    const int rank = group.rank();
    PipelinedStepOptions options = options_of(group);
    options.planner = "zb_h1";
    bool fails = false;
    int calls = 0;
    if (rank == 1) {
      options.loss = [&](const Tensors& outputs, const Tensors& targets) {
        if (fails && ++calls == 3) throw std::runtime_error("no third loss");
        return loss_of(outputs, targets);
      };
    }
    PipelinedStep step = pipeline({half(stages, rank)}, options);
    fails = true;
    const int64_t level = memory_count(c10::Device(c10::kCPU)).live;
    try {
      run(step, rank);
      ADD_FAILURE() << "nothing failed on rank " << rank;
    } catch (const PeerError& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_NE(std::string(error.what()).find("no third loss"), std::string::npos) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(rank, 1);
      EXPECT_STREQ(error.what(), "no third loss");
    }
    for (const at::Tensor& parameter : parameters_in(half(stages, rank))) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    EXPECT_GE(memory_count(c10::Device(c10::kCPU)).live, level);
    EXPECT_THROW(run(step, rank), PeerError);
    EXPECT_EQ(memory_limit(), std::nullopt);
  });
}

TEST_F(PipelinedStepTest, WhatCannotBeAPipelineIsRefusedOnAllRanks) {
  const std::vector<Stage> stages = network();
  const PipelinedStepOptions alone{.micro_batches = kMicro,
                                   .sample = {rows_.narrow(0, 0, kRows / kMicro)},
                                   .loss = loss_of,
                                   .target = {targets_.narrow(0, 0, kRows / kMicro)}};
  const auto refused = [&](const std::vector<std::vector<Stage>>& parts, auto&& change,
                           const std::string& reason) {
    PipelinedStepOptions options = alone;
    change(options);
    try {
      pipeline(parts, options);
      ADD_FAILURE() << "nothing was refused: " << reason;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  using Options = PipelinedStepOptions;
  refused(
      {}, [](Options&) {}, "has at least one part");
  refused(
      {stages}, [](Options& o) { o.micro_batches = 0; }, "not 0");
  refused(
      {stages}, [](Options& o) { o.link_bytes_per_second = 0; }, "a link carries");
  refused(
      {stages}, [](Options& o) { o.sample.clear(); }, "needs the sample");
  refused(
      {stages}, [](Options& o) { o.loss = {}; }, "needs the loss");
  refused(
      {stages}, [](Options& o) { o.group = "nobody"; }, "\"nobody\"");
  refused(
      {stages}, [](Options& o) { o.planner = "chain"; }, "chain");
  run_ranks(2, [&](const ProcessGroup& group) {
    // A budget that no plan holds is found on rank 0, and all ranks hear the same.
    PipelinedStepOptions options = options_of(group);
    options.budget = Bytes(1000);
    try {
      pipeline({half(stages, group.rank())}, options);
      ADD_FAILURE() << "nothing was refused on rank " << group.rank();
    } catch (const BudgetError& error) {
      EXPECT_GT(error.requested(), 1000);
      EXPECT_NE(std::string(error.what()).find("no plan fits"), std::string::npos) << error.what();
    }
  });
}

TEST_F(PipelinedStepTest, AnotherPlanIsUsedIfAllRanksHaveItAndItIsValid) {
  run_ranks(2, [&](const ProcessGroup& group) {
    const std::vector<Stage> stages = network();
    const Twin twin = accumulate(stages, rows_, targets_);
    const int rank = group.rank();
    PipelinedStepOptions options = options_of(group);
    options.planner = "gpipe";
    PipelinedStep step = pipeline({half(stages, rank)}, options);
    const PipelinePlan before = step.plan();
    PipelinePlan other = plan(step.problem(), {.planner = "1f1b", .cuts = {4}}).plan.value();
    ASSERT_NE(other.devices, before.devices);
    PipelinePlan too_low = other;
    too_low.devices[0].peak -= Bytes(1);
    EXPECT_THROW(step.use(too_low), InputError);
    EXPECT_THROW(step.use(rank == 0 ? other : before), InputError);
    EXPECT_EQ(step.plan(), before);
    step.use(other);
    EXPECT_EQ(step.plan(), other);
    run(step, rank);
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  });
}

}  // namespace
}  // namespace reprise::runtime::testing
