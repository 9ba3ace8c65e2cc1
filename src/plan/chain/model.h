// A ChainModel is a chain as the exact recurrences see it: plain integers, one row a stage. Every
// sum that a test of the recurrence repeats is computed once. The table in chain.cc explains the
// symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/model/chain.h"

namespace reprise::internal::chain {

// A KeepOption is a stage that is kept with one of its options.
struct KeepOption {
  int64_t saved = 0;     // s
  int64_t forward = 0;   // bytes while the forward runs, beyond g_{l+1}: x_{i+1} + s + of
  int64_t backward = 0;  // bytes while the backward runs, beyond W(i+1,l)
  int64_t cost = 0;      // its f + b above the stage's smallest f + b
  // The same of a run that stops early; of the whole forward if the option has none.
  int64_t stopped_forward = 0, stopped_cost = 0;
  int32_t stopped_variant = 0;  // of F_i
  bool reads_input = true;
  bool reads_output = true;

  bool operator==(const KeepOption&) const = default;
};

// A SweepVariant is one way to run a stage in a sweep, which keeps nothing for the backward.
struct SweepVariant {
  int64_t memory = 0;   // bytes while it runs, beyond g_{l+1} and its own input
  int64_t cost = 0;     // cost of a run
  int32_t variant = 0;  // variant of F_i

  bool operator==(const SweepVariant&) const = default;
};

// Costs are lexicographic pairs (time, re-runs) in one integer, above the smallest time that any
// plan can have: (time / time_unit * time_weight + re-runs * rerun_weight) / cost_unit. The units
// divide every such number, so a chain of equal layers has small costs, and few different ones. If
// the numbers would not fit, rerun_weight is 0, and re-runs do not break ties in time.
struct ChainModel {
  size_t stages = 0;                             // L
  int64_t fixed = 0;                             //
  std::vector<int64_t> x;                        // x_0..x_L
  std::vector<int64_t> g;                        // g_0..g_L, and g_{L+1} = 0
  std::vector<int64_t> weight_gradients;         // [i] = w_0 + .. + w_{i-1}, i in 0..L+1 (w_L = 0)
  std::vector<std::vector<KeepOption>> options;  // options of stages 0..L-1
  // The sweep variants of stages 0..L-1: memory ascending, cost strictly descending. Usually a
  // stage has only "fast".
  std::vector<std::vector<SweepVariant>> sweeps;
  std::vector<int64_t> least_sweeps;  // [i] = the least cost of sweeping stages 0..i-1
  int64_t loss[2] = {0, 0};           // bytes at the loss, x_L unpinned and pinned
  int64_t least_time = 0;             // sum of min(f + b), and the loss
  int64_t time_unit = 1;
  int64_t time_weight = 1;
  int64_t rerun_weight = 0;
  int64_t cost_unit = 1;

  // Returns W(a, l): the bytes of the weight gradients of stages a..l.
  int64_t weights(size_t a, size_t l) const {
    return a > l ? 0 : weight_gradients[l + 1] - weight_gradients[a];
  }
  // Returns u: the bytes that keeping stage i with this option gives back after its forward.
  int64_t given_back(size_t i, const KeepOption& option, bool pinned) const {
    return pinned || option.reads_input ? 0 : x[i];
  }
  // Returns P: g_{l+1} and the bytes that a kept stage l holds until its backward, without its
  // input.
  int64_t package(size_t l, const KeepOption& option) const {
    return g[l + 1] + option.saved + (option.reads_output ? x[l + 1] : 0);
  }
  // Returns the least cost of sweeping from x_i to x_j.
  int64_t least_sweep(size_t i, size_t j) const { return least_sweeps[j] - least_sweeps[i]; }
  // Returns whether C(i,.,.,p) depends on p.
  bool depends_on_pin(size_t i) const;
  int64_t time_of(int64_t cost) const {
    return least_time + cost * cost_unit / time_weight * time_unit;
  }
};

// Says whether schedules have runs that stop early.
enum class Stops { kNone, kEarly };

// The chain must be valid. Throws InputError if the time of some schedule may not fit 64 bits.
ChainModel make_model(const Chain& chain, Stops stops = Stops::kNone);

}  // namespace reprise::internal::chain
