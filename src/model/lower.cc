#include "reprise/model/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reprise {
namespace {

void add_values(const Chain& chain, Graph& graph) {
  const size_t boundaries = chain.stages.size() + 1;
  size_t options = 0;
  for (const Stage& stage : chain.stages) options += stage.options.size();
  graph.values.reserve(2 * boundaries + chain.stages.size() + options);
  for (size_t k = 0; k < boundaries; ++k) {
    graph.values.push_back({fmt::format("x{}", k), boundary_bytes(chain, k),
                            k == 0 ? ValueKind::kInput : ValueKind::kActivation});
  }
  for (size_t k = 0; k < boundaries; ++k) {
    graph.values.push_back(
        {fmt::format("g{}", k), boundary_gradient_bytes(chain, k), ValueKind::kGradient});
  }
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    graph.values.push_back(
        {fmt::format("w{}", i), chain.stages[i].weight_gradient, ValueKind::kGradient});
  }
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    for (const StageOption& option : chain.stages[i].options) {
      graph.values.push_back(
          {fmt::format("s{}.{}", i, option.name), option.saved, ValueKind::kSaved});
    }
  }
}

// The stage's first option keeps its saved bytes in the value `saved`; the other options follow it.
Op forward_op(const Stage& stage, size_t i, const ChainIndex& index, ValueIndex saved) {
  Op op;
  op.id = fmt::format("F{}", i);
  op.random = stage.random;
  Variant fast;
  fast.name = "fast";
  fast.time = stage.forward.time;
  fast.workspace = stage.forward.workspace;
  fast.reads = {index.activation(i)};
  fast.writes = {index.activation(i + 1)};
  op.variants.reserve(1 + stage.options.size());
  op.variants.push_back(fast);
  for (const StageOption& option : stage.options) {
    Variant variant = fast;
    variant.name = option.name;
    variant.time = option.forward.time;
    variant.workspace = option.forward.workspace;
    variant.writes.push_back(saved++);
    if (option.consumes_input && !option.reads_input) variant.consumes = variant.reads;
    variant.exactness = option.exactness;
    op.variants.push_back(std::move(variant));
  }
  for (size_t o = 0; o < stage.options.size(); ++o) {
    const StageOption& option = stage.options[o];
    if (!option.stopped) continue;
    Variant variant = op.variants[1 + o];
    variant.name = stopped_name(option);
    variant.time = option.stopped->time;
    variant.workspace = option.stopped->workspace;
    variant.writes = {variant.writes.back()};
    variant.role = Role::kReplay;
    op.variants.push_back(std::move(variant));
  }
  return op;
}

Op loss_op(const Chain& chain, const ChainIndex& index) {
  Variant variant;
  variant.time = chain.loss.cost.time;
  variant.workspace = chain.loss.cost.workspace;
  variant.reads = {index.activation(index.stages)};
  variant.writes = {index.gradient(index.stages)};
  if (chain.loss.consumes) variant.consumes = variant.reads;
  return {.id = "loss", .phase = Phase::kLoss, .variants = {std::move(variant)}};
}

Op backward_op(const Stage& stage, size_t i, const ChainIndex& index, ValueIndex saved) {
  Op op;
  op.id = fmt::format("B{}", i);
  op.phase = Phase::kBackward;
  op.variants.reserve(stage.options.size());
  for (const StageOption& option : stage.options) {
    Variant variant;
    variant.name = option.name;
    variant.time = option.backward.time;
    variant.workspace = option.backward.workspace;
    variant.reads = {index.gradient(i + 1), saved++};
    if (option.reads_output) variant.reads.push_back(index.activation(i + 1));
    if (option.consumes) variant.consumes = variant.reads;
    if (option.reads_input) {
      variant.reads.push_back(index.activation(i));
      if (option.consumes_input) variant.consumes.push_back(index.activation(i));
    }
    variant.writes = {index.gradient(i), index.weight_gradient(i)};
    variant.exactness = option.exactness;
    op.variants.push_back(std::move(variant));
  }
  return op;
}

}  // namespace

ForwardRun forward_run(const Stage& stage, int32_t variant) {
  if (variant == 0) return {};
  size_t option = static_cast<size_t>(variant) - 1;
  if (option < stage.options.size()) return {.option = option, .stops = false};
  size_t left = option - stage.options.size();  // options that stop early and come before
  for (option = 0; !stage.options.at(option).stopped || left-- > 0;) ++option;
  return {.option = option, .stops = true};
}

int32_t stopped_variant(const Stage& stage, size_t option) {
  if (!stage.options[option].stopped) return static_cast<int32_t>(option) + 1;
  const auto before = std::count_if(
      stage.options.begin(), stage.options.begin() + static_cast<std::ptrdiff_t>(option),
      [](const StageOption& other) { return other.stopped.has_value(); });
  return static_cast<int32_t>(1 + stage.options.size()) + static_cast<int32_t>(before);
}

Graph lower(const Chain& chain) {
  validate(chain);
  const ChainIndex index{chain.stages.size()};
  Graph graph;
  graph.name = chain.name;
  graph.fixed = chain.fixed;
  add_values(chain, graph);
  std::vector<ValueIndex> saved;  // by stage: the saved value of its first option
  auto next = static_cast<ValueIndex>(2 * (index.stages + 1) + index.stages);
  for (const Stage& stage : chain.stages) {
    saved.push_back(next);
    next += static_cast<ValueIndex>(stage.options.size());
  }
  graph.ops.reserve(2 * index.stages + 1);
  for (size_t i = 0; i < index.stages; ++i) {
    graph.ops.push_back(forward_op(chain.stages[i], i, index, saved[i]));
  }
  graph.ops.push_back(loss_op(chain, index));
  for (size_t i = index.stages; i-- > 0;) {
    graph.ops.push_back(backward_op(chain.stages[i], i, index, saved[i]));
  }
  for (size_t i = 0; i < index.stages; ++i) graph.results.push_back(index.weight_gradient(i));
  graph.results.push_back(index.gradient(0));
  return graph;
}

}  // namespace reprise
