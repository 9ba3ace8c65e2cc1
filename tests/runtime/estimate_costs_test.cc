// Costs of a step on new shapes are on the lines through those on two other shapes.
#include "runtime/graph/estimate_costs.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace reprise::runtime {

using internal::graph::estimate_costs;
using internal::graph::KnownCosts;
using internal::graph::WorkCosts;
using internal::step::Argument;
using internal::step::ArgumentKind;
using internal::step::Memory;
using internal::step::TensorRef;
using internal::step::Work;
using internal::step::Works;

namespace {

// A step of two works, of which the first reads so many elements of four bytes.
Works works_on(int64_t elements, const std::string& second = "mean") {
  Works works;
  for (const std::string& name : {std::string("mm"), second}) {
    Work work;
    work.name = name;
    TensorRef ref{Memory::kValue, 0, {.sizes = {name == "mm" ? elements : 1}, .strides = {1}}};
    work.arguments = {Argument{.kind = ArgumentKind::kTensor, .tensors = {ref}}};
    works.all.push_back(work);
  }
  return works;
}

WorkCosts costs(int64_t time, int64_t workspace) {
  WorkCosts all;
  all.by_work = {{Nanos(time), Bytes(workspace)}, {Nanos(70), Bytes(64)}};
  return all;
}

TEST(EstimateCosts, AreOnTheLineThroughTwoKnownShapes) {
  const Works small = works_on(100), large = works_on(300), between = works_on(200);
  const WorkCosts of_small = costs(1000, 640), of_large = costs(3000, 1920);
  const std::optional<WorkCosts> found =
      estimate_costs(between, {{&small, &of_small}, {&large, &of_large}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->by_work[0].time, Nanos(2000));
  EXPECT_EQ(found->by_work[0].workspace, Bytes(1280));
  EXPECT_EQ(found->by_work[1].time, Nanos(70));
}

TEST(EstimateCosts, AreNeverNegativeAndWorkspaceIsWholeBlocks) {
  const Works small = works_on(100), large = works_on(300), tiny = works_on(1);
  const WorkCosts of_small = costs(100, 100), of_large = costs(3000, 3000);
  const std::optional<WorkCosts> found =
      estimate_costs(tiny, {{&small, &of_small}, {&large, &of_large}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->by_work[0].time, Nanos(0));
  EXPECT_EQ(found->by_work[0].workspace.count() % 64, 0);
}

TEST(EstimateCosts, TheNearestShapesCount) {
  const Works a = works_on(100), b = works_on(200), c = works_on(1000), now = works_on(150);
  const WorkCosts of_a = costs(1000, 64), of_b = costs(2000, 128), of_c = costs(1, 1);
  const std::optional<WorkCosts> found =
      estimate_costs(now, {{&c, &of_c}, {&a, &of_a}, {&b, &of_b}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->by_work[0].time, Nanos(1500));
}

TEST(EstimateCosts, NeedTwoStepsThatDoTheSame) {
  const Works small = works_on(100), large = works_on(300), other = works_on(300, "sum");
  const WorkCosts known = costs(1000, 640);
  EXPECT_FALSE(estimate_costs(large, {{&small, &known}}));
  EXPECT_FALSE(estimate_costs(other, {{&small, &known}, {&large, &known}}));
  EXPECT_TRUE(estimate_costs(large, {{&small, &known}, {&large, &known}, {&other, &known}}));
}

}  // namespace
}  // namespace reprise::runtime
