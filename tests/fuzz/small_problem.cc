#include "fuzz/small_problem.h"

#include <algorithm>

namespace reprise::fuzz {
namespace {

Cost some_cost(Dice& dice) { return {Nanos(dice.size()), Bytes(dice.coin() ? dice.size() : 0)}; }

Exactness some_exactness(Dice& dice) {
  return dice.below(8) == 7 ? Exactness::kRounding : Exactness::kBitwise;
}

StageOption some_option(Dice& dice, int64_t number) {
  StageOption option;
  option.name = "o" + std::to_string(number);
  option.saved = Bytes(dice.size());
  option.reads_input = dice.coin();
  option.reads_output = dice.coin();
  option.consumes = dice.coin();
  option.consumes_input = dice.below(4) == 3;
  option.forward = some_cost(dice);
  option.backward = some_cost(dice);
  if (number > 0) option.exactness = some_exactness(dice);
  return option;
}

// Returns at most `most` different values among the first `count`.
std::vector<ValueIndex> some_values(Dice& dice, int64_t count, int64_t most) {
  std::vector<ValueIndex> values;
  for (int64_t k = dice.below(most + 1); k > 0 && count > 0; --k) {
    const auto value = static_cast<ValueIndex>(dice.below(count));
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

Variant some_variant(Dice& dice, int64_t number, ValueIndex written) {
  Variant variant;
  variant.name = "v" + std::to_string(number);
  variant.time = Nanos(dice.size());
  variant.workspace = Bytes(dice.coin() ? dice.size() : 0);
  variant.reads = some_values(dice, written, 3);
  variant.writes = {written};
  if (!variant.reads.empty() && dice.below(4) == 3) variant.consumes = {variant.reads[0]};
  if (!variant.reads.empty() && dice.below(4) == 3) {
    variant.reuses = {{written, variant.reads.back()}};
  }
  variant.role = static_cast<Role>(dice.below(8) < 6 ? 0 : dice.below(3));
  variant.exactness = some_exactness(dice);
  return variant;
}

}  // namespace

int64_t Dice::below(int64_t count) {
  if (bytes_.empty()) return 0;
  const auto byte = static_cast<unsigned char>(bytes_.front());
  bytes_.remove_prefix(1);
  return byte % count;
}

int64_t Dice::size() {
  const int64_t shape = below(256);
  if (shape < 240) return shape % 20;
  if (shape < 250) return int64_t{1} << (4 * (shape - 240));
  return (int64_t{1} << 57) + below(256);
}

Chain small_chain(Dice& dice) {
  Chain chain;
  chain.name = "fuzz";
  chain.fixed = Bytes(dice.below(20));
  chain.input = {Bytes(dice.size()), Bytes(dice.size())};
  for (int64_t stages = 1 + dice.below(4); stages > 0; --stages) {
    Stage stage;
    stage.output = Bytes(dice.size());
    if (dice.coin()) stage.output_gradient = Bytes(dice.size());
    stage.weight_gradient = Bytes(dice.below(20));
    stage.random = dice.coin();
    stage.forward = some_cost(dice);
    const int64_t options = 1 + dice.below(3);
    for (int64_t o = 0; o < options; ++o) stage.options.push_back(some_option(dice, o));
    chain.stages.push_back(stage);
  }
  chain.loss.cost = some_cost(dice);
  chain.loss.consumes = dice.below(4) == 3;
  return chain;
}

// Operation k writes value k + 1. Value 0 is the input.
Graph small_graph(Dice& dice) {
  Graph graph;
  graph.name = "fuzz";
  graph.fixed = Bytes(dice.below(20));
  const int64_t ops = 1 + dice.below(6);
  for (int64_t v = 0; v <= ops; ++v) {
    graph.values.push_back({"y" + std::to_string(v), Bytes(dice.size()),
                            v == 0 ? ValueKind::kInput : ValueKind::kActivation});
  }
  const int64_t forward = dice.below(ops + 1);
  for (int64_t o = 0; o < ops; ++o) {
    Op op;
    op.id = "f" + std::to_string(o);
    op.phase = o < forward ? Phase::kForward : o == forward ? Phase::kLoss : Phase::kBackward;
    op.once = dice.below(8) == 7;
    op.random = dice.below(8) == 7;
    const int64_t variants = 1 + dice.below(3);
    for (int64_t k = 0; k < variants; ++k) {
      op.variants.push_back(some_variant(dice, k, static_cast<ValueIndex>(o + 1)));
    }
    graph.ops.push_back(op);
  }
  if (dice.below(4) == 3 && ops > 1) {
    graph.choices.push_back({"c",
                             {{"", {static_cast<OpIndex>(dice.below(ops))}},
                              {"b", {static_cast<OpIndex>(dice.below(ops))}}}});
  }
  graph.results = some_values(dice, ops + 1, 3);
  return graph;
}

std::vector<Block> small_blocks(Dice& dice) {
  std::vector<Block> blocks(dice.below(13));
  for (Block& block : blocks) {
    block.bytes = Bytes(dice.coin() ? dice.below(256) : dice.size());
    block.begin = dice.below(32);
    block.end = block.begin + dice.below(16) - (dice.below(64) == 63 ? 8 : 0);
  }
  return blocks;
}

}  // namespace reprise::fuzz
