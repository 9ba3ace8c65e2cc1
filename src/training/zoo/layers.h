// Several families of image models have these layers.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <string>

#include "training/zoo/build.h"

namespace reprise::training::zoo {

// The padding keeps the size of an image if the stride is 1.
inline torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
                              int64_t groups = 1, bool bias = false) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                               .stride(stride)
                               .padding((kernel - 1) / 2)
                               .groups(groups)
                               .bias(bias));
}

inline runtime::Stage norm_relu(std::string name, int64_t channels) {
  return stage(std::move(name), torch::nn::BatchNorm2d(channels),
               [](torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x) {
                 return norm.forward(x).relu_();
               });
}

}  // namespace reprise::training::zoo
