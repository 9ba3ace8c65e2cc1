// Tests sections, and the parts that a packing problem falls into.
#include <gtest/gtest.h>

#include <vector>

#include "pack/sections.h"
#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/pack/plan_blocks.h"
#include "support/build_graph.h"

namespace reprise::testing {
namespace {

using internal::packing::Item;
using internal::packing::Part;
using internal::packing::Partition;
using internal::packing::partition;

TEST(PackSections, NothingHasNoParts) {
  const Partition cut = partition({});
  EXPECT_TRUE(cut.parts.empty());
  EXPECT_EQ(cut.height, 0);
}

// The blocks are live in 0-4, 1-3, 3-6 and 5-8. The largest sets that are live at once are {0, 1},
// {0, 2} and {2, 3}.
TEST(PackSections, AreTheMaximalSetsThatAreLiveAtOnce) {
  const Partition cut = partition({{10, 0, 4}, {20, 1, 3}, {30, 3, 6}, {40, 5, 8}});
  ASSERT_EQ(cut.parts.size(), 1u);
  const Part& part = cut.parts[0];
  EXPECT_EQ(part.sections, 3);
  EXPECT_EQ(part.base, 0);
  EXPECT_EQ(part.items, (std::vector<Item>{{10, 0, 1}, {20, 0, 0}, {30, 1, 2}, {40, 2, 2}}));
  EXPECT_EQ(part.blocks, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(part.live(), 70);
}

TEST(PackSections, WhatSpansAPartIsItsBottom) {
  // Block 0 spans everything. Without it two parts are left: {1, 2}, and the path 3, 4, 5, 6.
  const Partition cut = partition(
      {{5, 0, 100}, {1, 10, 20}, {2, 15, 25}, {3, 30, 40}, {4, 35, 50}, {5, 45, 60}, {6, 55, 70}});
  ASSERT_EQ(cut.parts.size(), 1u);
  EXPECT_EQ(cut.parts[0].base, 5);
  EXPECT_EQ(cut.parts[0].blocks, (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(cut.offsets[0], 0);
  EXPECT_EQ(cut.offsets[1], 5);
  EXPECT_EQ(cut.offsets[2], 6);
  EXPECT_EQ(cut.height, 8);
}

TEST(PackSections, BlocksThatMeetInAPointDoNotTouch) {
  const Partition cut = partition({{5, 0, 1}, {7, 1, 2}, {6, 2, 3}});
  EXPECT_TRUE(cut.parts.empty());
  EXPECT_EQ(cut.height, 7);
}

TEST(PlanBlocks, AreValuesAndWorkspaces) {
  const std::vector<Block> blocks = plan_blocks(two_op_graph(), {run("a"), run("b"), release("y")});
  EXPECT_EQ(blocks, (std::vector<Block>{{Bytes(10), 0, 6},    // x, the input
                                        {Bytes(20), 0, 4},    // y
                                        {Bytes(5), 0, 1},     // workspace of a
                                        {Bytes(30), 2, 6},    // z, the result
                                        {Bytes(7), 2, 3}}));  // workspace of b
}

TEST(PlanBlocks, ATakenOverBlockGoesOn) {
  Graph graph = two_op_graph();
  graph.values[2].bytes = Bytes(20);
  graph.ops[1].variants[0].reuses = {{2, 1}};
  const std::vector<Block> blocks = plan_blocks(graph, {run("a"), run("b")});
  EXPECT_EQ(blocks[1], (Block{Bytes(20), 0, 4}));  // y, then z
  EXPECT_EQ(blocks.size(), 4u);
}

// The copy that was there stays, and the new one goes with the memory that it took over.
TEST(PlanBlocks, AReuseForWhatIsLiveIsASecondCopy) {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 8, ValueKind::kInput);
  const ValueIndex y = add_value(graph, "y", 8), z = add_value(graph, "z", 8);
  add_op(graph, "f", {make_variant(1, {x}, {y})});
  Variant reusing = make_variant(1, {y}, {z});
  reusing.reuses = {{z, y}};
  add_op(graph, "g", {reusing});
  const std::vector<Action> actions = {run("f"), run("g"), run("f"), run("g"), run("f")};
  EXPECT_EQ(live_bytes(plan_blocks(graph, actions), Bytes(1)), simulate(graph, actions).peak);
  EXPECT_EQ(plan_blocks(graph, actions)[4], (Block{Bytes(8), 4, 7}));
}

TEST(BlockOwners, SayWhatEachBlockIs) {
  const Graph graph = two_op_graph();
  const std::vector<Action> actions = {run("a"), run("b"), release("y")};
  EXPECT_EQ(block_owners(graph, actions),
            (std::vector<BlockOwner>{{0, -1, false},    // x, the input
                                     {1, 0, false},     // y, by a
                                     {-1, 0, true},     // workspace of a
                                     {2, 1, false},     // z, by b
                                     {-1, 1, true}}));  // workspace of b
  // y is written a second time while the first copy is there.
  const std::vector<BlockOwner> again = block_owners(graph, {run("a"), run("a"), run("b")});
  EXPECT_EQ(again[3], (BlockOwner{1, 0, true}));
  EXPECT_EQ(again.size(), plan_blocks(graph, {run("a"), run("a"), run("b")}).size());
}

TEST(PlanBlocks, AConsumedBlockEndsWhenTheOperationStarts) {
  Graph graph = two_op_graph();
  graph.ops[1].variants[0].consumes = {1};
  EXPECT_EQ(plan_blocks(graph, {run("a"), run("b")})[1], (Block{Bytes(20), 0, 2}));
}

}  // namespace
}  // namespace reprise::testing
