// The devices are installed once a process, before anything else uses LibTorch.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "accelerator/accelerator.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(death_test_style, "fast");
  at::set_num_threads(1);
  sim::install({.capacity = size_t{256} << 20, .pinned_capacity = size_t{64} << 20});
  return RUN_ALL_TESTS();
}
