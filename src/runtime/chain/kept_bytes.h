// Measures the bytes that a kept run of a stage holds until its backward.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "reprise/model/chain.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/stage_runner.h"

namespace reprise::runtime::internal::chain {

// A Reading has the memory before, after and during one run.
struct Reading {
  int64_t before = 0, after = 0, peak = 0;  // bytes
};

template <class Work>
Reading read_memory(c10::Device device, Work&& work) {
  const int64_t before = memory_count(device).live;
  reset_peak(device);
  work();
  const MemoryCount after = memory_count(device);
  return {before, after.live, after.peak};
}

// Sets the bytes of `option` and the output of `row` by a kept run on `x`. Also finds out which
// boundaries the backward needs: their memory does not come back when nobody else holds them. Clears
// `x`. `input_needed`: something else needs `x` after the backward. Returns the bytes that the run
// holds in storages which may move.
int64_t measure_kept_bytes(const std::function<std::pair<Tensors, Kept>()>& run, c10::Device device,
                           bool input_needed, Tensors& x, reprise::Stage& row, StageOption& option);

}  // namespace reprise::runtime::internal::chain
