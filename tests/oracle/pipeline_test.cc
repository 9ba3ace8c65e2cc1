// Compares the schedules of pipelines with the accounts of any plan, with chains and with closed
// forms.
#include "reprise/check/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "oracle/pipeline_laws.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/pipeline.h"
#include "support/random_pipeline.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

class PipelineRow : public ::testing::TestWithParam<const char*> {};

TEST_P(PipelineRow, EveryAccountAgrees) {
  std::mt19937_64 random(39);
  RandomPipelineOptions options;
  options.chain.inexact_options = false;
  int plans = 0, recomputed = 0;
  for (int number = 0; number < test_scale(60); ++number) {
    options.split_costs = number % 2 == 1;
    const Pipeline pipeline = random_pipeline(random, options);
    const Baseline plain = baseline(pipeline);
    for (const int64_t percent : {100, 90, 80, 70}) {
      PipelineOptions question;
      question.planner = GetParam();
      question.budget = Budget(std::to_string(percent) + "%");
      SCOPED_TRACE("number " + std::to_string(number) + ": " + to_json(pipeline));
      PipelineResult result;
      try {
        result = plan(pipeline, question);
      } catch (const InputError&) {
        // zb_h1 refuses chains in which nothing can be split.
        ASSERT_STREQ(GetParam(), "zb_h1");
        continue;
      }
      if (!result.plan) {
        EXPECT_EQ(result.termination, Termination::kInfeasible);
        EXPECT_FALSE(result.blocking_device.empty());
        continue;
      }
      ++plans;
      expect_accounts_agree(pipeline, *result.plan);
      EXPECT_LE(result.lower_bound, result.plan->time);
      for (const DevicePlan& device : result.plan->devices) {
        EXPECT_LE(device.peak, Budget(question.budget).resolve(plain.peak));
      }
      for (const PipelinePart& part : result.plan->parts) {
        recomputed += part.plans.front().backward.size() >
                      static_cast<size_t>(part.stages) + (&part == &result.plan->parts.back());
      }
      if (HasFailure()) return;
    }
  }
  std::cout << plans << " plans, " << recomputed << " parts recomputed\n";
  EXPECT_GT(plans, test_scale(60) / 2);
  EXPECT_GT(recomputed, 0);
}

// Returns what a part's plan does as runs of the chain's graph.
std::vector<reprise::Run> runs_of(const Graph& graph, size_t stages, const PartPlan& plan) {
  const ChainIndex index{stages};
  std::vector<reprise::Run> runs;
  for (const auto* list : {&plan.forward, &plan.backward}) {
    for (const PartRun& run : *list) {
      const auto stage = static_cast<size_t>(run.stage);
      const OpIndex op = run.phase == Phase::kLoss      ? index.loss()
                         : run.phase == Phase::kForward ? index.forward(stage)
                                                        : index.backward(stage);
      const std::vector<Variant>& all = graph.ops[static_cast<size_t>(op)].variants;
      const auto found = std::ranges::find(all, run.variant, &Variant::name);
      runs.push_back({op, static_cast<int32_t>(found - all.begin())});
    }
  }
  return runs;
}

// One micro-batch on one device is a step of the chain.
TEST(Pipelines, OfOneDeviceAndOneMicroBatchAreChains) {
  std::mt19937_64 random(44);
  int again = 0;
  for (int number = 0; number < test_scale(60); ++number) {
    Pipeline pipeline = random_pipeline(
        random, {.max_devices = 1, .max_micro_batches = 1, .speeds = false, .weight_parts = false});
    for (const int64_t percent : {100, 80}) {
      const PipelineResult result =
          plan(pipeline, {.budget = Budget(std::to_string(percent) + "%"), .planner = "pipeline"});
      if (!result.plan) continue;
      SCOPED_TRACE(to_json(pipeline));
      const PartPlan& part = result.plan->parts[0].plans[0];
      again += part.backward.size() > pipeline.chain.stages.size() + 1;
      const Graph graph = lower(pipeline.chain);
      const Timeline chain =
          simulate(graph, with_frees(graph, runs_of(graph, pipeline.chain.stages.size(), part)));
      Bytes fixed;
      for (const PipelineStage& stage : pipeline.stages) fixed += stage.fixed;
      ASSERT_EQ(result.plan->time, chain.time);
      ASSERT_EQ(result.plan->devices[0].peak, chain.peak + fixed);
    }
  }
  EXPECT_GT(again, 0);
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineRow,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "zb_h1"),
                         [](const auto& row) { return std::string("row_") + row.param; });

int64_t time_of(const Pipeline& pipeline, const char* planner, int64_t parts = 1) {
  const PipelineResult result = plan(pipeline, {.planner = planner, .parts_per_device = parts});
  return result.plan->time.count();
}

// p equal parts and m micro-batches take (m + p - 1) (F + B) in the orders of GPipe and 1F1B.
TEST(PipelineSchedules, HaveTheClosedFormsOfEqualParts) {
  for (const int p : {1, 2, 3, 4, 6}) {
    for (const int64_t m : {1, 2, 4, 8, 11}) {
      SCOPED_TRACE(std::to_string(p) + " parts, " + std::to_string(m) + " micro-batches");
      const Pipeline pipeline = equal_stages(p, m, Nanos(10), Nanos(20), Nanos(0));
      EXPECT_EQ(time_of(pipeline, "gpipe"), (m + p - 1) * 30);
      EXPECT_EQ(time_of(pipeline, "1f1b"), (m + p - 1) * 30);
    }
  }
}

// The bubble is a v-th if each device has v parts and the micro-batches come in whole groups.
TEST(PipelineSchedules, InterleavedPartsDivideTheBubble) {
  for (const int p : {2, 3, 4}) {
    for (const int v : {2, 3}) {
      for (const int64_t groups : {1, 2, 3}) {
        SCOPED_TRACE(std::to_string(p) + " devices, " + std::to_string(v) + " parts, " +
                     std::to_string(groups) + " groups");
        const int64_t m = groups * p;
        const Pipeline pipeline = equal_stages(p, m, Nanos(10), Nanos(20), Nanos(0), v);
        EXPECT_EQ(time_of(pipeline, "interleaved", v), m * v * 30 + (p - 1) * 30);
        EXPECT_EQ(time_of(pipeline, "1f1b"), (m + p - 1) * v * 30);
      }
    }
  }
}

// Qi et al., Table 2: if F, B and W take equal time, the bubble of ZB-H1 is (p - 1)(F + B - W).
// This is a third of the bubble of 1F1B, with as much memory.
TEST(PipelineSchedules, ZeroBubbleHasAThirdOfTheBubble) {
  for (const int p : {2, 3, 4, 6}) {
    for (const int64_t m : {1 * p, 2 * p, 3 * p, 4 * p + 1}) {
      SCOPED_TRACE(std::to_string(p) + " parts, " + std::to_string(m) + " micro-batches");
      const Pipeline pipeline = equal_stages(p, m, Nanos(10), Nanos(10), Nanos(10));
      EXPECT_EQ(time_of(pipeline, "zb_h1"), 30 * m + (p - 1) * 10);
    }
  }
}

TEST(PipelineSchedules, HaveTheMicroBatchesInFlightOfTheirPapers) {
  const Pipeline pipeline = equal_stages(4, 8, Nanos(10), Nanos(20), Nanos(0));
  const auto flight = [&](const char* planner) {
    const PipelineResult result = plan(pipeline, {.planner = planner});
    const PipelineTimeline timeline = simulate(pipeline, *result.plan);
    std::vector<int64_t> most;
    for (size_t q = 0; q < 4; ++q) most.push_back(timeline.devices[q].in_flight[q]);
    return most;
  };
  EXPECT_EQ(flight("gpipe"), (std::vector<int64_t>{8, 8, 8, 8}));
  EXPECT_EQ(flight("1f1b"), (std::vector<int64_t>{4, 3, 2, 1}));
}

// Device d runs (v - 1) p + 2 (p - 1 - d) + 1 forwards before its first backward (Narayanan et al.).
TEST(PipelineSchedules, InterleavedPartsBeginWithTheForwardsOfTheirPaper) {
  const Pipeline pipeline = equal_stages(4, 8, Nanos(10), Nanos(20), Nanos(0), 2);
  const PipelineResult result = plan(pipeline, {.planner = "interleaved", .parts_per_device = 2});
  std::vector<int64_t> first;
  for (const DevicePlan& device : result.plan->devices) {
    int64_t forwards = 0;
    for (const PipelineAction& action : device.order) {
      if (action.kind == PipelineActionKind::kBackward) break;
      forwards += action.kind == PipelineActionKind::kForward;
    }
    first.push_back(forwards);
  }
  EXPECT_EQ(first, (std::vector<int64_t>{11, 9, 7, 5}));
}

// In 1F1B, part 0 has a micro-batch in flight for each part, and each later part has one fewer.
// Each micro-batch in flight takes 10 bytes. GPipe has all 8 in flight.
TEST(PipelineSchedules, HaveTheBytesOfTheirMicroBatches) {
  const Pipeline pipeline = equal_stages(4, 8, Nanos(10), Nanos(20), Nanos(0));
  const PipelineResult gpipe = plan(pipeline, {.planner = "gpipe"});
  const PipelineResult alternating = plan(pipeline, {.planner = "1f1b"});
  for (int64_t d = 0; d < 4; ++d) {
    EXPECT_EQ(gpipe.plan->devices[static_cast<size_t>(d)].peak, Bytes(80));
    EXPECT_EQ(alternating.plan->devices[static_cast<size_t>(d)].peak, Bytes(10 * (4 - d)));
  }
}

// A part that recomputes itself keeps its input alone, which has no bytes here, and runs its forward
// again, except the last one.
TEST(PipelineSchedules, RecomputeWherePartsDoNotFit) {
  const Pipeline pipeline = equal_stages(4, 8, Nanos(10), Nanos(20), Nanos(0));
  const PipelineResult result = plan(pipeline, {.budget = Bytes(30), .planner = "1f1b"});
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_EQ(result.plan->devices[0].peak, Bytes(10));
  EXPECT_EQ(result.plan->devices[1].peak, Bytes(30));
  const PipelineResult refused = plan(pipeline, {.budget = Bytes(9), .planner = "1f1b"});
  EXPECT_EQ(refused.termination, Termination::kInfeasible);
  EXPECT_EQ(refused.needed, Bytes(10));
}

}  // namespace
}  // namespace reprise::testing
