// Makes random small chains for property and oracle tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "reprise/model/chain.h"

namespace reprise::testing {

// By default, chains have everything that the model can say, and are small enough for exhaustive
// search.
struct RandomChainOptions {
  int min_stages = 1;
  int max_stages = 5;
  int64_t max_size = 10;  // bytes of every value and workspace: 0..max_size
  int64_t max_time = 20;  // ns of every forward, backward and the loss: 0..max_time
  int max_options = 3;    // of a stage: 1..max_options

  bool free_reads = true;        // reads_input, reads_output random; else both true
  bool consumes = true;          // options and the loss that give back what they read
  bool workspaces = true;        // else all 0
  bool weight_gradients = true;  // else all 0
  bool own_gradients = true;  // gradient sizes apart from activations; else equal (and g_0 = x_0)
  bool fixed = true;          // else 0
  bool random_stages = true;  // Stage::random
  bool cheap_options = true;  // options whose forward may be faster than "fast"; else never
  bool early_stops = false;   // options whose re-run may stop early
  bool inexact_options = false;      // options after the first may be kRounding or kApproximate
  bool dominant_workspaces = false;  // workspaces up to 4 * max_size, so that they decide

  // This is the model of the founding paper: one option that reads input and output, gradients as
  // large as activations, no weight gradients, nothing consumed. It overrides the switches above.
  bool founding_model = false;
};

// Makes a chain, which is always valid. The same seed and options give the same chain.
Chain random_chain(std::mt19937_64& random, const RandomChainOptions& options = {});

// Writes a chain as compact JSON, for failure messages.
std::string describe(const Chain& chain);

}  // namespace reprise::testing
