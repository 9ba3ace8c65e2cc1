// Tests the time of a step in which replicas of a pipeline add up their gradients.
#include "reprise/check/replicas.h"

#include <gtest/gtest.h>

#include <random>

#include "reprise/check/pipeline.h"
#include "reprise/model/errors.h"
#include "reprise/plan/pipeline.h"
#include "support/random_pipeline.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

// A ring over two replicas carries 1,000 bytes in 10 ns.
constexpr Replicas kTwo{.count = 2, .bytes_per_second = 100'000'000'000, .bucket = Bytes(1)};

Pipeline with_gradients(Pipeline pipeline) {
  for (Stage& stage : pipeline.chain.stages) stage.weight_gradient = Bytes(1000);
  return pipeline;
}

PipelinePlan plan_of(const Pipeline& pipeline, const char* planner) {
  return *plan(pipeline, {.planner = planner}).plan;
}

TEST(Replicas, AddUpWhatTheLastMicroBatchCompletes) {
  const Pipeline pipeline = with_gradients(equal_stages(2, 3, Nanos(10), Nanos(12), Nanos(8)));
  // The first device is done last, and its sum stands behind its backward, or its weight gradient.
  for (const char* planner : {"1f1b", "zb_h1"}) {
    const PipelinePlan plan = plan_of(pipeline, planner);
    const Nanos alone = simulate(pipeline, plan).time;
    const ReplicaTimes times = simulate(pipeline, plan, kTwo);
    EXPECT_EQ(times.pipeline, alone);
    EXPECT_EQ(times.time, alone + Nanos(10));
    EXPECT_EQ(times.busy, Nanos(10));
  }
}

TEST(Replicas, SumsOfOneDeviceRunBesideItsBackward) {
  Pipeline pipeline = with_gradients(equal_stages(3, 2, Nanos(10), Nanos(12), Nanos(8)));
  pipeline.devices.resize(1);
  pipeline.links.clear();
  const PipelinePlan plan = plan_of(pipeline, "1f1b");
  const Nanos alone = simulate(pipeline, plan).time;
  Replicas replicas = kTwo;
  // A backward of a stage takes 20, so that two of three sums are hidden.
  EXPECT_EQ(simulate(pipeline, plan, replicas).time, alone + Nanos(10));
  EXPECT_EQ(simulate(pipeline, plan, replicas).busy, Nanos(30));
  // The first bucket has two stages, and the second one what is left.
  replicas.bucket = Bytes(1500);
  EXPECT_EQ(simulate(pipeline, plan, replicas).time, alone + Nanos(10));
  replicas.bucket = Bytes(9999);
  EXPECT_EQ(simulate(pipeline, plan, replicas).time, alone + Nanos(30));
  // Each sum is late by the one before it.
  replicas.bucket = Bytes(1);
  replicas.latency = Nanos(15);
  EXPECT_EQ(simulate(pipeline, plan, replicas).busy, Nanos(120));
  EXPECT_EQ(simulate(pipeline, plan, replicas).time, alone - Nanos(40) + Nanos(120));
  replicas.count = 1;
  EXPECT_EQ(simulate(pipeline, plan, replicas).time, alone);
  EXPECT_EQ(simulate(pipeline, plan, replicas).busy, Nanos(0));
}

TEST(Replicas, WhatIsNoReplicaIsRefused) {
  const Pipeline pipeline = equal_stages(2, 2, Nanos(10), Nanos(12), Nanos(8));
  const PipelinePlan plan = plan_of(pipeline, "gpipe");
  const auto refused = [&](Replicas replicas) {
    EXPECT_THROW(simulate(pipeline, plan, replicas), InputError);
  };
  refused({.count = 0});
  refused({.count = 2, .bytes_per_second = 0});
  refused({.count = 2, .latency = Nanos(-1)});
  refused({.count = 2, .bucket = Bytes(0)});
  Pipeline heavy = with_gradients(pipeline);
  heavy.chain.stages[0].weight_gradient = Bytes(int64_t{1} << 50);
  EXPECT_THROW(simulate(heavy, plan_of(heavy, "gpipe"), {.count = 1000}), InputError);
}

// Smaller buckets and faster links never make the step slower than one sum behind everything.
TEST(Replicas, OverlapNeverCostsTimeOnRandomPipelines) {
  for (int number = 0; number < test_scale(40); ++number) {
    std::mt19937_64 random(static_cast<uint64_t>(number));
    const Pipeline pipeline = random_pipeline(random);
    const PipelineResult found = plan(pipeline, {.planner = "gpipe"});
    if (!found.plan) continue;
    const PipelineTimeline line = simulate(pipeline, *found.plan);
    Replicas replicas{.count = 4, .bytes_per_second = 2'000'000'000, .bucket = Bytes(1)};
    const ReplicaTimes times = simulate(pipeline, *found.plan, replicas);
    EXPECT_GE(times.time, line.time);
    EXPECT_GE(times.time, times.busy);
    EXPECT_LE(times.time, line.time + times.busy);
  }
}

}  // namespace
}  // namespace reprise::testing
