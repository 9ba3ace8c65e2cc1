// Compares the joint choice of cuts and recomputation with every row, with all cuts, and with its
// bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oracle/pipeline_laws.h"
#include "reprise/check/pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/pipeline.h"
#include "support/random_pipeline.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

RandomPipelineOptions heterogeneous() {
  RandomPipelineOptions options;
  options.chain.min_stages = 3;
  options.chain.max_stages = 8;
  options.chain.max_options = 2;
  options.min_devices = 2;
  return options;
}

std::optional<int64_t> time_of_row(const Pipeline& pipeline, const char* row, const Budget& budget,
                                   const std::vector<int64_t>& cuts = {}) {
  try {
    const PipelineResult result = plan(pipeline, {.budget = budget, .planner = row, .cuts = cuts});
    if (result.plan) return result.plan->time.count();
  } catch (const InputError&) {
    // zb_h1 refuses chains in which nothing can be split.
  }
  return std::nullopt;
}

TEST(JointPipelines, AreNeverWorseThanAnyRow) {
  std::mt19937_64 random(200);
  int questions = 0, better = 0, alone = 0, best_of_rows = 0;
  double gap = 0;
  for (int number = 0; number < test_scale(200); ++number) {
    const Pipeline pipeline = random_pipeline(random, heterogeneous());
    SCOPED_TRACE("number " + std::to_string(number) + ": " + to_json(pipeline));
    const Budget budget(std::to_string(60 + 10 * (number % 5)) + "%");
    const PipelineResult joint =
        plan(pipeline, {.budget = budget, .planner = "pipeline", .threads = 1});
    std::optional<int64_t> rows;
    for (const char* row :
         {"1f1b", "gpipe", "interleaved", "zb_h1", "adapipe", "cheapest_stages"}) {
      const auto time = time_of_row(pipeline, row, budget);
      if (!time) continue;
      ASSERT_TRUE(joint.plan.has_value()) << row;
      ASSERT_LE(joint.plan->time.count(), *time) << row;
      if (!rows || *time < *rows) rows = time;
    }
    if (!joint.plan) continue;
    ++questions;
    expect_accounts_agree(pipeline, *joint.plan);
    if (HasFatalFailure()) return;
    for (size_t d = 0; d < joint.budgets.size(); ++d) {
      ASSERT_LE(joint.plan->devices[d].peak, joint.budgets[d]);
    }
    ASSERT_LE(joint.lower_bound, joint.plan->time);
    gap += static_cast<double>(joint.plan->time.count()) /
           static_cast<double>(std::max<int64_t>(1, joint.lower_bound.count()));
    alone += !rows;
    better += rows && joint.plan->time.count() < *rows;
    best_of_rows += rows && joint.plan->time.count() == *rows;
  }
  std::cout << questions << " plans: " << better << " faster than every row, " << best_of_rows
            << " as fast as the best one, " << alone
            << " where no row has one; mean of time over bound " << gap / questions << "\n";
  EXPECT_GT(better, questions / 10);
  EXPECT_GT(alone, 0);
}

Nanos forward_time(const Chain& chain) {
  Nanos time(0);
  for (const Stage& stage : chain.stages) time += stage.forward.time;
  return time;
}

// The comparison is with every choice of cuts, each with the best ways of its parts. In every other
// question the links are so slow that messages last longer than the work of a stage.
TEST(JointPipelines, AreWithinFivePercentOfAllCuts) {
  std::mt19937_64 random(5);
  int questions = 0, equal = 0;
  double worst = 1;
  for (int number = 0; number < test_scale(40); ++number) {
    Pipeline pipeline = random_pipeline(random, heterogeneous());
    if (number % 2 == 1) {
      for (Link& link : pipeline.links) link.latency += forward_time(pipeline.chain);
    }
    SCOPED_TRACE("number " + std::to_string(number) + ": " + to_json(pipeline));
    const Budget budget(std::to_string(50 + 10 * (number % 5)) + "%");
    const auto stages = static_cast<int64_t>(pipeline.chain.stages.size());
    const size_t parts = std::min(pipeline.devices.size(), pipeline.chain.stages.size());
    std::optional<int64_t> least;
    std::vector<char> cut(static_cast<size_t>(stages - 1), 0);
    std::fill(cut.begin(), cut.begin() + static_cast<int64_t>(parts - 1), 1);
    do {
      std::vector<int64_t> cuts;
      for (int64_t i = 1; i < stages; ++i) {
        if (cut[static_cast<size_t>(i - 1)]) cuts.push_back(i);
      }
      const auto time = time_of_row(pipeline, "pipeline", budget, cuts);
      if (time && (!least || *time < *least)) least = time;
    } while (std::prev_permutation(cut.begin(), cut.end()));
    const auto joint = time_of_row(pipeline, "pipeline", budget);
    if (!least) continue;
    ASSERT_TRUE(joint.has_value());
    ++questions;
    equal += *joint <= *least;
    worst = std::max(
        worst, static_cast<double>(*joint) / static_cast<double>(std::max<int64_t>(1, *least)));

    const double allowed =
        number % 2 == 1 ? 1.1 : 1.05;  // The orders weigh more where links are slow.
    EXPECT_LE(static_cast<double>(*joint), allowed * static_cast<double>(*least));
  }
  std::cout << questions << " questions: " << equal << " as good as all cuts, worst ratio " << worst
            << "\n";
  EXPECT_GT(questions, 0);
}

// The number of actions of a kind on a device.
int64_t count_of(const DevicePlan& device, PipelineActionKind kind) {
  return std::ranges::count_if(device.order,
                               [&](const PipelineAction& action) { return action.kind == kind; });
}

Pipeline without_weight_parts(Pipeline pipeline) {
  for (PipelineStage& stage : pipeline.stages) stage.weight_part.reset();
  return pipeline;
}

// Expects that each device runs every backward in two, and that all accounts find the same time and
// the same bytes.
void expect_split(const Pipeline& pipeline, const PipelinePlan& plan) {
  for (const DevicePlan& device : plan.devices) {
    SCOPED_TRACE(device.name);
    EXPECT_EQ(count_of(device, PipelineActionKind::kBackward), 0);
    EXPECT_EQ(count_of(device, PipelineActionKind::kInputGradient), pipeline.micro_batches);
    EXPECT_EQ(count_of(device, PipelineActionKind::kWeightGradient), pipeline.micro_batches);
  }
  expect_accounts_agree(pipeline, plan);
}

// If everything fits in memory, equal parts take the time of ZB-H1: 30 m + 10 (p - 1) for each stage
// of a part. No plan that splits nothing is as fast.
TEST(JointPipelines, SplitTheBackwardsOfEqualParts) {
  for (const int devices : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(devices) + " devices");
    const int64_t m = 2 * devices;
    const Pipeline pipeline = equal_stages(devices, m, Nanos(10), Nanos(10), Nanos(10), 3);
    const PipelineResult joint = plan(pipeline, {.planner = "pipeline"});
    ASSERT_TRUE(joint.plan.has_value());
    expect_split(pipeline, *joint.plan);
    EXPECT_EQ(joint.plan->time.count(), 3 * (30 * m + 10 * (devices - 1)));
    const auto whole = time_of_row(without_weight_parts(pipeline), "pipeline", Budget());
    ASSERT_TRUE(whole.has_value());
    EXPECT_LT(joint.plan->time.count(), *whole);
  }
}

// Where parts do not fit, the plan makes some stages of a part again and splits the backwards, too.
// No other planner does both: zb_h1 makes whole parts again, and adapipe splits nothing.
TEST(JointPipelines, SplitBackwardsBesideRecomputation) {
  const Pipeline pipeline = equal_stages(3, 6, Nanos(10), Nanos(10), Nanos(10), 3);
  const Budget budget = Bytes(80);  // The first part needs 90 for its three micro-batches.
  const PipelineResult joint = plan(pipeline, {.budget = budget, .planner = "pipeline"});
  ASSERT_TRUE(joint.plan.has_value());
  expect_split(pipeline, *joint.plan);
  const PipelinePart& first = joint.plan->parts.front();
  const size_t again = first.plans.front().backward.size() - static_cast<size_t>(first.stages);
  EXPECT_GT(again, 0u);
  EXPECT_LT(again, static_cast<size_t>(first.stages));
  for (const char* row : {"1f1b", "gpipe", "zb_h1", "adapipe", "cheapest_stages"}) {
    const auto time = time_of_row(pipeline, row, budget);
    EXPECT_TRUE(!time || joint.plan->time.count() < *time) << row;
  }
}

}  // namespace
}  // namespace reprise::testing
