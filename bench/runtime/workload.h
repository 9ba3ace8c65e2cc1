// A model, one batch, and plain steps on it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reprise/runtime/measure.h"
#include "training/zoo.h"

namespace reprise::bench {

// What a step leaves behind, or starts from, in host memory that the allocator does not count.
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
  std::vector<at::Tensor> parameters, buffers;  // each once
  int64_t level = 0;  // live bytes with nothing but these: parameters, buffers, batch

  // Installs the counting allocator. The seed is always the same.
  explicit Workload(const training::ModelConfig& config);

  runtime::Loss loss() const;
  at::Tensor plain_loss() const;  // forward and loss, as plain training runs them
  void drop_gradients() const;

  // The last argument may be undefined.
  Snapshot snapshot(const at::Tensor& loss = {}) const;
  // Buffers and random state; drops all gradients.
  void restore(const Snapshot& state) const;
};

// Parts of two snapshots that differ in a bit ("gradient 3; "), at most a few; empty when none does.
std::string difference(const Snapshot& a, const Snapshot& b);
// Largest difference of an element over the largest element of all (float32); infinite if one is no number.
double largest_error(const std::vector<std::vector<char>>& a,
                     const std::vector<std::vector<char>>& b);

// From now on malloc keeps freed pages mapped, so that no step pays for faulting them in again: what an
// arena does anyway, and a favour to plain training.
void keep_freed_pages();

}  // namespace reprise::bench
