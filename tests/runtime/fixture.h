// The runtime's tests share these models, and the fixture that they run in.
#pragma once

#include <random>

#include "tight_step.h"

namespace reprise::runtime::testing {

namespace nn = torch::nn;

using Random = std::mt19937_64;

inline int64_t between(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline nn::Conv2d conv(int64_t from, int64_t to = 8) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1));
}

// Makes linear stages with an activation function each.
inline Stage dense(const std::string& name, nn::Linear linear) {
  return {name, linear.ptr(),
          [linear](const Tensors& x) mutable { return Tensors{linear->forward(x.at(0)).tanh()}; }};
}

inline std::vector<Stage> dense_stages(int count, int64_t width = 64) {
  std::vector<Stage> stages;
  for (int i = 0; i < count; ++i) {
    stages.push_back(dense(fmt::format("dense{}", i), nn::Linear(width, width)));
  }
  return stages;
}

// Makes stages with what training code has: convolutions, batch norm, dropout, in-place
// activations, pooling, a view.
inline std::vector<Stage> conv_stages() {
  return {layer("conv1", conv(3, 8)),
          layer("bn1", nn::BatchNorm2d(8)),
          layer("relu1", nn::ReLU(nn::ReLUOptions(true))),
          layer("drop1", nn::Dropout(0.3)),
          layer("conv2", conv(8, 8)),
          layer("bn2", nn::BatchNorm2d(8)),
          layer("relu2", nn::ReLU(nn::ReLUOptions(true))),
          layer("drop2", nn::Dropout(0.3)),
          layer("pool", nn::MaxPool2d(2)),
          layer("flatten", nn::Flatten()),
          layer("linear", nn::Linear(8 * 8 * 8, 10))};
}

class RuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    at::manual_seed(11);
    rows_ = at::randn({256, 64});
    images_ = at::randn({8, 3, 16, 16});
  }
  void TearDown() override { EXPECT_EQ(memory_limit(), std::nullopt) << "a limit was left behind"; }

  at::Tensor rows_, images_;
};

}  // namespace reprise::runtime::testing
