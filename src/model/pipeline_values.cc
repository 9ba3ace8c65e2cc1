#include "model/pipeline_values.h"

#include <fmt/format.h>

namespace reprise::internal {

PipelineValues::PipelineValues(const Pipeline& pipeline, const std::vector<int32_t>& device_of,
                               const Graph& chain_graph, Graph& graph)
    : index_{pipeline.chain.stages.size()},
      devices_(pipeline.devices.size()),
      block_(chain_graph.values.size() - index_.stages),
      kept_(index_.stages, -1) {
  for (size_t d = 0; d < devices_; ++d) {
    Value held{pipeline.devices[d].name + "/fixed", pipeline.chain.fixed, ValueKind::kInput};
    held.home = home_name(pipeline, static_cast<int32_t>(d));
    graph.values.push_back(std::move(held));
  }
  for (size_t i = 0; i < index_.stages; ++i) {
    graph.values[device_of[i]].bytes += stage_fixed(pipeline, i);
    graph.results.push_back(weight_gradient(i));
    graph.values.push_back({fmt::format("w{}", i), pipeline.chain.stages[i].weight_gradient,
                            ValueKind::kGradient, home_name(pipeline, device_of[i])});
    if (weight_part(pipeline, i) != nullptr) kept_[i] = static_cast<ValueIndex>(block_++);
  }
  graph.values.reserve(graph.values.size() + block_ * static_cast<size_t>(pipeline.micro_batches));
  const auto weights = static_cast<size_t>(index_.weight_gradient(0));
  for (int64_t m = 0; m < pipeline.micro_batches; ++m) {
    const std::string prefix = prefix_of(m);
    for (size_t v = 0; v < chain_graph.values.size(); ++v) {
      if (v >= weights && v < weights + index_.stages) continue;
      const Value& of_chain = chain_graph.values[v];
      graph.values.push_back({prefix + of_chain.id, of_chain.bytes, of_chain.kind});
    }
    for (size_t i = 0; i < index_.stages; ++i) {
      if (kept_[i] < 0) continue;
      graph.values.push_back(
          {prefix + "k" + std::to_string(i), weight_part(pipeline, i)->kept, ValueKind::kSaved});
    }
    graph.values[position(m, index_.activation(0))].home = home_name(pipeline, device_of[0]);
    const ValueIndex gradient = position(m, index_.gradient(0));
    graph.values[gradient].home = home_name(pipeline, device_of[0]);
    graph.results.push_back(gradient);
  }
}

}  // namespace reprise::internal
