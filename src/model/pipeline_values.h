// Lays out the values of a pipeline.
#pragma once

#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/lower.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal {

// The stages of a part are those from `begin_of` to before `end_of`.
inline size_t begin_of(const PipelinePart& part) { return static_cast<size_t>(part.first_stage); }
inline size_t end_of(const PipelinePart& part) {
  return static_cast<size_t>(part.first_stage) + static_cast<size_t>(part.stages);
}

// Returns how a home and a variant name the memory of a device: the first one has no name there.
inline std::string home_name(const Pipeline& pipeline, int32_t device) {
  return device == 0 ? std::string() : pipeline.devices[device].name;
}

// Returns what stands before the ids of a micro-batch.
inline std::string prefix_of(int64_t micro_batch) {
  return "m" + std::to_string(micro_batch) + "/";
}

// PipelineValues gives the values of a pipeline their positions. First stands what each device holds
// during the whole step, and then the weight gradients of the stages. Behind them each micro-batch has
// a block of the same form: the values of the chain's graph, and then what the weight parts keep.
class PipelineValues {
 public:
  // Adds the values, their sizes and the results to `graph`. `device_of` is by stage.
  PipelineValues(const Pipeline& pipeline, const std::vector<int32_t>& device_of,
                 const Graph& chain_graph, Graph& graph);

  // Returns the position of a value of the chain's graph for a micro-batch; of no weight gradient.
  ValueIndex position(int64_t micro_batch, ValueIndex of_chain) const {
    const auto boundaries = static_cast<ValueIndex>(2 * (index_.stages + 1));
    return in_block(micro_batch, of_chain < boundaries
                                     ? of_chain
                                     : of_chain - static_cast<ValueIndex>(index_.stages));
  }
  // Returns the position of what the weight part of a stage keeps for a micro-batch.
  ValueIndex kept(int64_t micro_batch, size_t stage) const {
    return in_block(micro_batch, kept_[stage]);
  }
  ValueIndex weight_gradient(size_t stage) const {
    return static_cast<ValueIndex>(devices_ + stage);
  }

 private:
  ValueIndex in_block(int64_t micro_batch, ValueIndex offset) const {
    const size_t first = devices_ + index_.stages;
    return static_cast<ValueIndex>(first + block_ * static_cast<size_t>(micro_batch) +
                                   static_cast<size_t>(offset));
  }

  ChainIndex index_;
  size_t devices_;
  size_t block_;                  // the number of values of a micro-batch
  std::vector<ValueIndex> kept_;  // by stage: the place of what its weight part keeps, or -1
};

}  // namespace reprise::internal
