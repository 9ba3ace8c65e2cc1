// A workload is a model, one batch, and plain steps on it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reprise/runtime/measure.h"
#include "training/zoo.h"

namespace reprise::bench {

// This is the state before or after a step, in host memory that the allocator does not count.
struct Snapshot {
  std::vector<char> loss;
  std::vector<std::vector<char>> gradients;  // empty where there is none
  std::vector<std::vector<char>> buffers;
  std::vector<char> random;

  bool operator==(const Snapshot&) const = default;
};

struct Workload {
  training::Model model;
  at::Tensor input, target;
  std::vector<at::Tensor> parameters, buffers;  // each tensor once
  int64_t level = 0;                            // live bytes of parameters, buffers and batch alone

  // Installs the counting allocator. The seed is always the same.
  explicit Workload(const training::ModelConfig& config);

  runtime::Loss loss() const;
  at::Tensor plain_loss() const;  // forward and loss, as plain training runs them
  void drop_gradients() const;

  // `loss` may be undefined.
  Snapshot snapshot(const at::Tensor& loss = {}) const;
  // Puts buffers and random state back, and drops all gradients.
  void restore(const Snapshot& state) const;
};

// Names the parts of two snapshots that differ in a bit ("gradient 3; "), but only a few of them.
// The text is empty if nothing differs.
std::string difference(const Snapshot& a, const Snapshot& b);
// Returns the largest difference of an element over the largest element of all (float32). The
// result is infinite if an element of either tensor is not finite.
double largest_error(const std::vector<std::vector<char>>& a,
                     const std::vector<std::vector<char>>& b);

// From now on malloc keeps freed pages mapped, so that no step pays for faulting them in again. An
// arena does so anyway; here it favours plain training.
void keep_freed_pages();

}  // namespace reprise::bench
