#include "reprise/model/graph.h"

#include <gtest/gtest.h>

#include "support/build_graph.h"

namespace reprise::testing {
namespace {

TEST(GraphModel, AWellFormedGraphIsAccepted) { EXPECT_NO_THROW(validate(two_op_graph())); }

TEST(GraphModel, AnEmptyGraphIsAccepted) { EXPECT_NO_THROW(validate(Graph{})); }

TEST(GraphModel, OpsAndValuesHaveSeparateNames) {
  Graph graph = two_op_graph();
  graph.values[1].id = "a";
  EXPECT_NO_THROW(validate(graph));
}

TEST(GraphModel, AValueMayHaveAMakerInEachRealization) {
  Graph graph = two_op_graph();
  add_op(graph, "b2", {make_variant(1, {1}, {2})});
  graph.choices = {{"which", {{"", {1}}, {"", {2}}}}};
  EXPECT_NO_THROW(validate(graph));
}

TEST(GraphModel, AnOpIsFoundByItsId) {
  const Graph graph = two_op_graph();
  EXPECT_EQ(find_op(graph, "b"), 1);
  EXPECT_EQ(find_op(graph, "y"), -1);  // There is a value of this id, but no op.
}

TEST(GraphModel, AnInputMayBeAResult) {
  Graph graph = two_op_graph();
  graph.results = {0, 2};
  EXPECT_NO_THROW(validate(graph));
}

TEST(GraphModel, ConsumingAndReusingInOneVariantIsAccepted) {
  Graph graph = two_op_graph();
  const ValueIndex other = add_value(graph, "other", 30);
  graph.ops[0].variants[0].writes.push_back(other);
  graph.ops[1].variants[0].reads.push_back(other);
  graph.ops[1].variants[0].reuses = {{2, other}};
  graph.ops[1].variants[0].consumes = {1};
  EXPECT_NO_THROW(validate(graph));
}

TEST(GraphModel, NamesArePrintedAsInFiles) {
  EXPECT_STREQ(to_string(ValueKind::kInput), "input");
  EXPECT_STREQ(to_string(ValueKind::kActivation), "activation");
  EXPECT_STREQ(to_string(ValueKind::kSaved), "saved");
  EXPECT_STREQ(to_string(ValueKind::kGradient), "gradient");
  EXPECT_STREQ(to_string(ValueKind::kState), "state");
  EXPECT_STREQ(to_string(Phase::kForward), "forward");
  EXPECT_STREQ(to_string(Phase::kLoss), "loss");
  EXPECT_STREQ(to_string(Phase::kBackward), "backward");
  EXPECT_STREQ(to_string(Role::kAny), "any");
  EXPECT_STREQ(to_string(Role::kFirst), "first");
  EXPECT_STREQ(to_string(Role::kReplay), "replay");
}

}  // namespace
}  // namespace reprise::testing
