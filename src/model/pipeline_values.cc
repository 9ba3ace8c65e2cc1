#include "model/pipeline_values.h"

#include <fmt/format.h>

namespace reprise::internal {

DeviceValues::DeviceValues(const Pipeline& pipeline, const PipelinePlan& plan, size_t device,
                           const Graph& chain_graph, Graph& graph)
    : index_{pipeline.chain.stages.size()},
      mine_(index_.stages, 0),
      touched_(index_.stages + 1, 0),
      weight_(index_.stages, -1),
      own_(chain_graph.values.size(), -1),
      kept_(index_.stages, -1) {
  for (const PipelinePart& part : plan.parts) {
    if (part.device != static_cast<int32_t>(device)) continue;
    for (size_t i = begin_of(part); i < end_of(part); ++i) {
      mine_[i] = touched_[i] = touched_[i + 1] = 1;
      graph.fixed += stage_fixed(pipeline, i);
    }
  }
  add_weight_gradients(pipeline, graph);
  lay_out_block(pipeline);
  add_blocks(pipeline, chain_graph, graph);
}

void DeviceValues::add_weight_gradients(const Pipeline& pipeline, Graph& graph) {
  for (size_t i = 0; i < index_.stages; ++i) {
    if (!mine_[i]) continue;
    weight_[i] = static_cast<ValueIndex>(graph.values.size());
    graph.results.push_back(weight_[i]);
    graph.values.push_back(
        {fmt::format("w{}", i), pipeline.chain.stages[i].weight_gradient, ValueKind::kGradient});
  }
  first_value_ = graph.values.size();
}

void DeviceValues::lay_out_block(const Pipeline& pipeline) {
  const auto take = [&](ValueIndex value) {
    own_[value] = static_cast<ValueIndex>(taken_.size());
    taken_.push_back(value);
  };
  for (size_t k = 0; k <= index_.stages; ++k) {
    if (!touched_[k]) continue;
    take(index_.activation(k));
    take(index_.gradient(k));
  }
  auto saved = static_cast<ValueIndex>(2 * (index_.stages + 1) + index_.stages);
  for (size_t i = 0; i < index_.stages; ++i) {
    for (size_t o = 0; o < pipeline.chain.stages[i].options.size(); ++o, ++saved) {
      if (mine_[i]) take(saved);
    }
  }
  block_ = taken_.size();
  for (size_t i = 0; i < index_.stages; ++i) {
    if (mine_[i] && weight_part(pipeline, i) != nullptr) {
      kept_[i] = static_cast<ValueIndex>(block_++);
    }
  }
}

void DeviceValues::add_blocks(const Pipeline& pipeline, const Graph& chain_graph, Graph& graph) {
  graph.values.reserve(first_value_ + block_ * static_cast<size_t>(pipeline.micro_batches));
  for (int64_t m = 0; m < pipeline.micro_batches; ++m) {
    for (const ValueIndex value : taken_) {
      const Value& original = chain_graph.values[value];
      graph.values.push_back(
          {fmt::format("m{}/{}", m, original.id), original.bytes, original.kind});
    }
    for (size_t i = 0; i < index_.stages; ++i) {
      if (kept_[i] < 0) continue;
      graph.values.push_back(
          {fmt::format("m{}/k{}", m, i), weight_part(pipeline, i)->kept, ValueKind::kSaved});
    }
    if (touched_[0]) graph.results.push_back(position(m, index_.gradient(0)));
  }
}

}  // namespace reprise::internal
