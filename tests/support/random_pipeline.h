// Makes random small pipelines for property and oracle tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "reprise/model/pipeline.h"
#include "support/random_chain.h"

namespace reprise::testing {

struct RandomPipelineOptions {
  RandomChainOptions chain = {.min_stages = 1, .max_stages = 7};
  int min_devices = 1;
  int max_devices = 4;
  int max_micro_batches = 6;
  bool speeds = true;        // devices that are slower or faster than the chain's
  bool messages = true;      // links that take time; else none does
  bool weight_parts = true;  // stages whose weight gradients can run later
  bool split_costs = false;  // weight parts with all facts, of some options
  bool memories = false;     // devices that have a memory
};

// Makes a pipeline, which is always valid; any two devices have links. The same seed and options
// give the same pipeline.
Pipeline random_pipeline(std::mt19937_64& random, const RandomPipelineOptions& options = {});

// Makes equal stages on as many devices as there are stages, with free links: forward, input
// gradient and weight gradient take these times. Activations have no bytes, and each stage saves
// 10; a weight part keeps 2.
Pipeline equal_stages(int devices, int64_t micro_batches, Nanos forward, Nanos input, Nanos weight,
                      int stages_per_device = 1);

}  // namespace reprise::testing
