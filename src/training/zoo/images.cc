// This file builds MLP, ResNets and VGG.
//
// ResNets: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, table 1,
// in torchvision's form (a bottleneck's stride is in its 3x3 convolution). ResNet-20: section 4.2 of
// the same paper, for small images, with a convolution in the two shortcuts that change the shape.
// VGG: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
// configuration D, with batch normalisation, convolutions without bias, and the mean over space
// plus one linear layer instead of three (the original head alone has 123 of its 138 million
// parameters, and fits one image size).
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>

#include "training/zoo/build.h"
#include "training/zoo/layers.h"

namespace reprise::training::zoo {

using runtime::Stage;

namespace {

using at::Tensor;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm2dImpl;
using torch::nn::Conv2d;
using torch::nn::Linear;
using torch::nn::LinearImpl;

// Makes the mean over space and a linear layer. The flattening is a view, so it cannot be a stage.
Stage mean_linear(std::string name, int64_t channels, int64_t classes) {
  return stage(std::move(name), Linear(channels, classes), [](LinearImpl& fc, const Tensor& x) {
    return fc.forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  });
}

// A ResidualBlock is the basic block (two 3x3 convolutions) or the bottleneck (1x1, 3x3, 1x1) of a
// ResNet.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(int64_t in, int64_t planes, int64_t stride, bool bottleneck) {
    const int64_t out = bottleneck ? 4 * planes : planes;
    if (bottleneck) {
      add(conv(in, planes, 1), planes);
      add(conv(planes, planes, 3, stride), planes);
      add(conv(planes, out, 1), out);
    } else {
      add(conv(in, planes, 3, stride), planes);
      add(conv(planes, planes, 3), planes);
    }
    if (stride == 1 && in == out) return;
    auto downsample = register_module("downsample", std::make_shared<torch::nn::Module>());
    shortcut_ = downsample->register_module("0", conv(in, out, 1, stride));
    shortcut_norm_ = downsample->register_module("1", BatchNorm2d(out));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      y = norms_[i]->forward(convs_[i]->forward(y));
      if (i + 1 < convs_.size()) y.relu_();
    }
    y.add_(shortcut_.is_empty() ? x : shortcut_norm_->forward(shortcut_->forward(x)));
    return y.relu_();
  }

 private:
  void add(Conv2d convolution, int64_t channels) {
    const std::string number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number, std::move(convolution)));
    norms_.push_back(register_module("bn" + number, BatchNorm2d(channels)));
  }

  std::vector<Conv2d> convs_;
  std::vector<BatchNorm2d> norms_;
  Conv2d shortcut_{nullptr};
  BatchNorm2d shortcut_norm_{nullptr};
};

struct ResnetShape {
  std::vector<int64_t> blocks;  // of each layer
  bool bottleneck = false;
  bool small_images = false;  // the first convolution is 3x3, keeps the size; nothing is pooled
};

ResnetShape resnet_shape(const std::string& model) {
  if (model == "resnet20") return {{3, 3, 3}, false, true};
  if (model == "resnet18") return {{2, 2, 2, 2}, false};
  if (model == "resnet34") return {{3, 4, 6, 3}, false};
  if (model == "resnet50") return {{3, 4, 6, 3}, true};
  return {{3, 4, 23, 3}, true};  // resnet101
}

}  // namespace

std::vector<Stage> build_mlp(const ModelConfig& config) {
  int64_t features = config.input[1] * config.input[2] * config.input[3];
  std::vector<Stage> stages;
  for (int64_t i = 0; i < config.layers; ++i) {
    stages.push_back(stage(
        "hidden" + std::to_string(i), Linear(features, config.width),
        [](LinearImpl& linear, const Tensor& x) { return linear.forward(x.flatten(1)).relu_(); }));
    features = config.width;
  }
  stages.push_back(stage("head", Linear(features, config.classes)));
  return stages;
}

std::vector<Stage> build_resnet(const ModelConfig& config) {
  const ResnetShape shape = resnet_shape(config.model);
  const Window half{3, 2, 1};
  std::vector<Window> windows(shape.blocks.size() - 1, half);
  if (!shape.small_images) windows.insert(windows.begin(), {Window{7, 2, 3}, half});
  check_image(config, windows);
  int64_t channels = config.width;
  std::vector<Stage> stages;
  stages.push_back(stage("conv1", shape.small_images ? conv(config.input[1], channels, 3)
                                                     : conv(config.input[1], channels, 7, 2)));
  stages.push_back(norm_relu("bn1", channels));
  if (!shape.small_images) {
    stages.push_back(
        stage_of_function("maxpool", [](const Tensor& x) { return at::max_pool2d(x, 3, 2, 1); }));
  }
  for (size_t layer = 0; layer < shape.blocks.size(); ++layer) {
    const int64_t planes = config.width << layer;
    for (int64_t block = 0; block < shape.blocks[layer]; ++block) {
      const int64_t stride = layer > 0 && block == 0 ? 2 : 1;
      stages.push_back(
          stage_of("layer" + std::to_string(layer + 1) + "." + std::to_string(block),
                   std::make_shared<ResidualBlock>(channels, planes, stride, shape.bottleneck)));
      channels = shape.bottleneck ? 4 * planes : planes;
    }
  }
  stages.push_back(mean_linear("fc", channels, config.classes));
  return stages;
}

std::vector<Stage> build_vgg16_bn(const ModelConfig& config) {
  check_image(config, std::vector<Window>(5, Window{2, 2, 0}));
  constexpr int64_t kPool = 0;
  constexpr int64_t kLayers[] = {64,    64,  kPool, 128, 128,   kPool, 256, 256, 256,
                                 kPool, 512, 512,   512, kPool, 512,   512, 512, kPool};
  std::vector<Stage> stages;
  int64_t channels = config.input[1];
  int64_t index = 0;  // torchvision's numbers: convolution, norm, ReLU, pool
  const auto name = [&](int64_t offset) { return "features." + std::to_string(index + offset); };
  for (const int64_t width : kLayers) {
    if (width == kPool) {
      stages.push_back(
          stage_of_function(name(0), [](const Tensor& x) { return at::max_pool2d(x, 2, 2); }));
      index += 1;
      continue;
    }
    stages.push_back(stage(name(0), conv(channels, width, 3)));
    stages.push_back(norm_relu(name(1), width));
    channels = width;
    index += 3;
  }
  stages.push_back(mean_linear("classifier", channels, config.classes));
  return stages;
}

}  // namespace reprise::training::zoo
