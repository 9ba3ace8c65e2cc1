#include "reprise/model/lower.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "support/example_chain.h"

namespace reprise::testing {
namespace {

std::vector<std::string> names(const Graph& graph, const std::vector<ValueIndex>& values) {
  std::vector<std::string> result;
  for (const ValueIndex value : values) result.push_back(graph.values[value].id);
  return result;
}
using Names = std::vector<std::string>;

TEST(Lower, ValuesAndOpsHaveTheNamesAndOrderOfTheDesign) {
  const Graph graph = lower(example_chain());
  Names values, ops;
  for (const Value& value : graph.values) values.push_back(value.id);
  for (const Op& op : graph.ops) ops.push_back(op.id);
  EXPECT_EQ(values, (Names{"x0", "x1", "x2", "g0", "g1", "g2", "w0", "w1", "s0.keep", "s0.lean",
                           "s1.keep"}));
  EXPECT_EQ(ops, (Names{"F0", "F1", "loss", "B1", "B0"}));
  EXPECT_EQ(names(graph, graph.results), (Names{"w0", "w1", "g0"}));
  EXPECT_EQ(graph.name, "example");
  EXPECT_EQ(graph.fixed, Bytes(100));
  EXPECT_TRUE(graph.choices.empty());
  EXPECT_NO_THROW(validate(graph));
}

TEST(Lower, TheIndexSaysWhichStageAnOpBelongsTo) {
  const Graph graph = lower(example_chain());
  const ChainIndex index{2};
  std::vector<int> stages;
  for (OpIndex op = -1; op <= static_cast<OpIndex>(graph.ops.size()); ++op) {
    const std::optional<size_t> stage = index.stage_of(op);
    stages.push_back(stage ? static_cast<int>(*stage) : -1);
  }
  EXPECT_EQ(stages, (std::vector<int>{-1, 0, 1, -1, 1, 0, -1}));
}

TEST(Lower, ValuesHaveTheSizesAndKindsOfTheChain) {
  const Graph graph = lower(example_chain());
  const std::vector<int64_t> sizes = {10, 20, 30, 5, 20, 30, 1, 2, 7, 3, 9};
  for (size_t v = 0; v < sizes.size(); ++v) EXPECT_EQ(graph.values[v].bytes, Bytes(sizes[v])) << v;
  EXPECT_EQ(graph.values[0].kind, ValueKind::kInput);
  EXPECT_EQ(graph.values[2].kind, ValueKind::kActivation);
  EXPECT_EQ(graph.values[3].kind, ValueKind::kGradient);
  EXPECT_EQ(graph.values[7].kind, ValueKind::kGradient);
  EXPECT_EQ(graph.values[8].kind, ValueKind::kSaved);
}

TEST(Lower, ForwardHasAFastVariantAndOneForEachOption) {
  Chain chain = example_chain();
  chain.stages[0].random = true;
  chain.stages[0].options[1].exactness = Exactness::kRounding;
  const Graph graph = lower(chain);
  const Op& op = graph.ops[0];
  ASSERT_EQ(op.variants.size(), 3u);
  EXPECT_TRUE(op.random);
  EXPECT_EQ(op.phase, Phase::kForward);
  EXPECT_EQ(op.variants[0].name, "fast");
  EXPECT_EQ(op.variants[0].time, Nanos(10));
  EXPECT_EQ(names(graph, op.variants[0].reads), Names{"x0"});
  EXPECT_EQ(names(graph, op.variants[0].writes), Names{"x1"});
  EXPECT_EQ(op.variants[2].name, "lean");
  EXPECT_EQ(op.variants[2].time, Nanos(12));
  EXPECT_EQ(names(graph, op.variants[2].writes), (Names{"x1", "s0.lean"}));
  EXPECT_EQ(op.variants[2].exactness, Exactness::kRounding);
  EXPECT_EQ(op.variants[0].exactness, Exactness::kBitwise);
}

TEST(Lower, BackwardReadsWhatItsOptionSays) {
  const Graph graph = lower(example_chain());
  const Op& op = graph.ops[4];
  ASSERT_EQ(op.variants.size(), 2u);
  EXPECT_EQ(op.phase, Phase::kBackward);
  EXPECT_EQ(names(graph, op.variants[0].reads), (Names{"g1", "s0.keep", "x1", "x0"}));
  EXPECT_EQ(names(graph, op.variants[1].reads), (Names{"g1", "s0.lean", "x0"}));
  EXPECT_EQ(names(graph, op.variants[1].writes), (Names{"g0", "w0"}));
  EXPECT_TRUE(op.variants[0].consumes.empty());
  EXPECT_EQ(graph.ops[3].variants[0].workspace, Bytes(4));
}

TEST(Lower, AConsumingBackwardGivesBackAllButTheStagesInput) {
  Chain chain = example_chain();
  for (StageOption& option : chain.stages[0].options) option.consumes = true;
  chain.stages[1].options[0].consumes = true;
  const Graph graph = lower(chain);
  EXPECT_EQ(names(graph, graph.ops[4].variants[0].consumes), (Names{"g1", "s0.keep", "x1"}));
  EXPECT_EQ(names(graph, graph.ops[4].variants[1].consumes), (Names{"g1", "s0.lean"}));
  EXPECT_EQ(names(graph, graph.ops[3].variants[0].consumes), (Names{"g2", "s1.keep", "x2"}));
  EXPECT_NO_THROW(validate(graph));
}

TEST(Lower, ABackwardThatGivesBackItsStagesInputConsumesIt) {
  Chain chain = example_chain();
  for (StageOption& option : chain.stages[0].options) option.reads_output = false;
  StageOption& option = chain.stages[1].options[0];
  option.consumes_input = true;
  EXPECT_EQ(names(lower(chain), lower(chain).ops[3].variants[0].consumes), Names{"x1"});
  option.consumes = true;
  const Graph graph = lower(chain);
  EXPECT_EQ(names(graph, graph.ops[3].variants[0].consumes), (Names{"g2", "s1.keep", "x2", "x1"}));
  EXPECT_TRUE(graph.ops[1].variants[1].consumes.empty());
  EXPECT_NO_THROW(validate(graph));
}

TEST(Lower, AnInputThatTheBackwardDoesNotReadIsConsumedByTheForwardThatKeeps) {
  Chain chain = example_chain();
  for (StageOption& option : chain.stages[0].options) option.reads_output = false;
  StageOption& option = chain.stages[1].options[0];
  option.consumes_input = true;
  option.reads_input = false;
  const Graph graph = lower(chain);
  EXPECT_TRUE(graph.ops[1].variants[0].consumes.empty());  // "fast": a sweep may come again
  EXPECT_EQ(names(graph, graph.ops[1].variants[1].consumes), Names{"x1"});
  EXPECT_TRUE(graph.ops[3].variants[0].consumes.empty());
  EXPECT_NO_THROW(validate(graph));
}

TEST(Lower, ARunThatStopsEarlyIsAVariantOfReRunsThatWritesNoOutput) {
  Chain chain = example_chain();
  for (StageOption& option : chain.stages[0].options) {
    option.reads_output = false;
    EXPECT_EQ(stopped_variant(chain.stages[0], 0), 1);
  }
  StageOption& lean = chain.stages[0].options[1];
  lean.stopped = Cost{lean.forward.time, Bytes(1)};
  const Graph graph = lower(chain);
  ASSERT_EQ(graph.ops[0].variants.size(), 4u);
  const Variant& stopped = graph.ops[0].variants[3];
  EXPECT_EQ(stopped.name, "lean+stop");
  EXPECT_EQ(stopped.role, Role::kReplay);
  EXPECT_EQ(names(graph, stopped.writes), Names{"s0.lean"});
  EXPECT_EQ(stopped.workspace, Bytes(1));
  EXPECT_EQ(stopped_variant(chain.stages[0], 0), 1);  // no such run: the whole one
  EXPECT_EQ(stopped_variant(chain.stages[0], 1), 3);
  EXPECT_EQ(forward_run(chain.stages[0], 0), ForwardRun{});
  EXPECT_EQ(forward_run(chain.stages[0], 2), (ForwardRun{.option = 1, .stops = false}));
  EXPECT_EQ(forward_run(chain.stages[0], 3), (ForwardRun{.option = 1, .stops = true}));
  EXPECT_NO_THROW(validate(graph));
}

TEST(Lower, AConsumingLossGivesBackTheLastOutput) {
  Chain chain = example_chain();
  chain.stages[1].options[0].reads_output = false;
  chain.loss.consumes = true;
  chain.loss.cost.workspace = Bytes(8);
  const Graph graph = lower(chain);
  const Variant& loss = graph.ops[2].variants.at(0);
  EXPECT_EQ(graph.ops[2].phase, Phase::kLoss);
  EXPECT_EQ(names(graph, loss.reads), Names{"x2"});
  EXPECT_EQ(names(graph, loss.consumes), Names{"x2"});
  EXPECT_EQ(names(graph, loss.writes), Names{"g2"});
  EXPECT_EQ(loss.workspace, Bytes(8));
}

TEST(Lower, TheIndexFindsEverythingByPosition) {
  const Graph graph = lower(example_chain());
  const ChainIndex index{2};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(graph.ops[index.forward(i)].id, "F" + std::to_string(i));
    EXPECT_EQ(graph.ops[index.backward(i)].id, "B" + std::to_string(i));
    EXPECT_EQ(graph.values[index.weight_gradient(i)].id, "w" + std::to_string(i));
  }
  for (size_t k = 0; k <= 2; ++k) {
    EXPECT_EQ(graph.values[index.activation(k)].id, "x" + std::to_string(k));
    EXPECT_EQ(graph.values[index.gradient(k)].id, "g" + std::to_string(k));
  }
  EXPECT_EQ(graph.ops[index.loss()].id, "loss");
}

}  // namespace
}  // namespace reprise::testing
