// The devices stand in front of the CPU's allocator, so Reprise's comes first.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "reprise/runtime/allocator.h"
#include "simulated_heap.h"
#include "support/accelerator/accelerator.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  reprise::runtime::install_cpu_allocator();
  sim::install({.capacity = size_t{512} << 20});
  reprise::runtime::testing::install_simulated_heap();
  return RUN_ALL_TESTS();
}
