// Lays out the values of what one device of a pipeline does.
#pragma once

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

// DeviceValues gives the values of a device their positions. The weight gradients of its stages
// stand first. Behind them each micro-batch has a block of the same form: the values of the chain's
// graph that touch a stage of the device, and then what the weight parts of its stages keep.
class DeviceValues {
 public:
  // Adds the values, their sizes and the results to `graph`. `chain_graph` is the lowered chain.
  DeviceValues(const Pipeline& pipeline, const PipelinePlan& plan, size_t device,
               const Graph& chain_graph, Graph& graph);

  // Returns the position of a value of the chain's graph for a micro-batch.
  ValueIndex position(int64_t micro_batch, ValueIndex of_chain) const {
    return in_block(micro_batch, own_[of_chain]);
  }
  // Returns the position of what the weight part of a stage keeps for a micro-batch.
  ValueIndex kept(int64_t micro_batch, size_t stage) const {
    return in_block(micro_batch, kept_[stage]);
  }
  ValueIndex weight_gradient(size_t stage) const { return weight_[stage]; }

 private:
  void add_weight_gradients(const Pipeline& pipeline, Graph& graph);
  void lay_out_block(const Pipeline& pipeline);
  void add_blocks(const Pipeline& pipeline, const Graph& chain_graph, Graph& graph);
  ValueIndex in_block(int64_t micro_batch, ValueIndex offset) const {
    return static_cast<ValueIndex>(first_value_ + block_ * static_cast<size_t>(micro_batch) +
                                   static_cast<size_t>(offset));
  }

  ChainIndex index_;
  std::vector<char> mine_;          // by stage: whether the device has it
  std::vector<char> touched_;       // by boundary: whether a stage of the device is beside it
  std::vector<ValueIndex> weight_;  // by stage: its weight gradient, or -1
  std::vector<ValueIndex> own_;     // by value of the chain's graph: its place in a block, or -1
  std::vector<ValueIndex> kept_;    // by stage: the place of what its weight part keeps, or -1
  std::vector<ValueIndex> taken_;   // by place in a block: the value of the chain's graph
  size_t first_value_ = 0, block_ = 0;
};

}  // namespace reprise::internal
