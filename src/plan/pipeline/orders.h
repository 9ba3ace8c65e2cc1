// These are the orders in which devices compute, as the schedules of the literature have them. They
// have no messages yet; add_messages() puts them in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/pipeline/layout.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::pipeline {

using Orders = std::vector<std::vector<PipelineAction>>;  // by device

// Returns all forwards, then all backwards (Huang et al., "GPipe", NeurIPS 2019). Backwards come in
// the order of the micro-batches, so that sums of gradients are those of one device.
Orders gpipe_order(const Pipeline& pipeline, const Layout& layout);

// In this order a part runs as many forwards as there are parts from it to the end, and then a
// backward and a forward in turn (Narayanan et al., "PipeDream", SOSP 2019; "memory-efficient
// pipeline-parallel DNN training", ICML 2021). It is for one part on each device. `less` takes as
// many micro-batches from those in flight at each part, as far as one is left.
Orders one_f_one_b_order(const Pipeline& pipeline, const Layout& layout, int64_t less = 0);

// Returns the same order with several parts on each device, in turn for groups of as many
// micro-batches as there are devices (Narayanan et al., "Efficient large-scale language model
// training on GPU clusters using Megatron-LM", SC 2021). `extra` forwards more run before the first
// backward.
Orders interleaved_order(const Pipeline& pipeline, const Layout& layout, int64_t extra = 0);

// PartTimes are the times of a part on its device, for one micro-batch.
struct PartTimes {
  Nanos forward;
  Nanos backward;        // as one action
  Nanos input_gradient;  // the same, in two actions
  Nanos weight_gradient;
};

// Returns the order of ZB-H1 in the paper (Qi et al., "Zero bubble pipeline parallelism", ICLR
// 2024). It is 1F1B, but the weight gradients of a micro-batch come as much later as `in_flight`
// has more micro-batches than 1F1B has. The paper has as many in flight at each part as there are
// parts. It is for one part on each device.
Orders delayed_weights_order(const Pipeline& pipeline, const Layout& layout,
                             const std::vector<int64_t>& in_flight);

// Returns an order by the rule of ZB-H1, with the given times in place of equal ones. Input
// gradients come first, then forwards as long as fewer than `in_flight` micro-batches are between
// their forward and their weight gradients, then weight gradients. It is for one part on each
// device.
Orders zero_bubble_order(const Pipeline& pipeline, const Layout& layout,
                         const std::vector<PartTimes>& times,
                         const std::vector<int64_t>& in_flight);

}  // namespace reprise::internal::pipeline
