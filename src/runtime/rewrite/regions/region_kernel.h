// Runs compiled regions: functions of shared objects that need no Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reprise/runtime/region_compiler.h"
#include "runtime/rewrite/regions/region_text.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::rewrite {

// A RegionKernel is a region that is compiled and loaded.
struct RegionKernel {
  using Function = void (*)(char** inputs, char** outputs, char** scratch);

  Function run = nullptr;
  std::vector<int64_t> scratch = {};  // the bytes of each buffer
  std::string refusal = {};           // if not empty: why there is none
};

// Returns the kernels of the texts. Each different text is compiled once.
std::vector<RegionKernel> compile_regions(const std::vector<RegionText>& texts);

// Runs the kernel. Each output is written to memory of its own, or over the input `over[output]` if
// that is not negative. Returns the outputs. What it asks memory for is outputs and scratch
// buffers.
std::vector<at::Tensor> run_region(const RegionText& region, const RegionKernel& kernel,
                                   const std::vector<int64_t>& over,
                                   const std::vector<at::Tensor>& inputs);

// Returns the work that does so in a replay, as `name`.
step::Work work_of(const RegionText& region, const RegionKernel& kernel,
                   const std::vector<int64_t>& over, const std::string& name);

}  // namespace reprise::runtime::internal::rewrite
