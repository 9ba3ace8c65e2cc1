// DenseNet-121, MobileNetV2 and a U-Net with attention.
//
// DenseNet: Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks",
// CVPR 2017, table 1. MobileNetV2: Sandler et al., "MobileNetV2: inverted residuals and linear
// bottlenecks", CVPR 2018, table 2. U-Net: Ronneberger, Fischer, Brox, MICCAI 2015, with the
// residual units, group normalisation and attention that diffusion models gave it (Ho, Jain,
// Abbeel, NeurIPS 2020).
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

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
using torch::nn::ConvTranspose2d;
using torch::nn::GroupNorm;
using torch::nn::GroupNormImpl;
using torch::nn::Linear;
using torch::nn::LinearImpl;

Tensor relu6_(Tensor x) { return at::hardtanh_(x, 0, 6); }

Stage norm_relu6(std::string name, int64_t channels) {
  return stage(std::move(name), BatchNorm2d(channels),
               [](BatchNorm2dImpl& norm, const Tensor& x) { return relu6_(norm.forward(x)); });
}

// A DenseLayer is one layer of a dense block. The concatenation of everything that the block has
// made so far travels along the chain; the layer appends `growth` channels to it.
class DenseLayer : public torch::nn::Module {
 public:
  DenseLayer(int64_t in, int64_t growth)
      : norm1_(register_module("norm1", BatchNorm2d(in))),
        norm2_(register_module("norm2", BatchNorm2d(4 * growth))),
        conv1_(register_module("conv1", conv(in, 4 * growth, 1))),
        conv2_(register_module("conv2", conv(4 * growth, growth, 3))) {}

  Tensor forward(const Tensor& x) {
    const Tensor bottleneck = conv1_->forward(norm1_->forward(x).relu_());
    return at::cat({x, conv2_->forward(norm2_->forward(bottleneck).relu_())}, 1);
  }

 private:
  BatchNorm2d norm1_, norm2_;
  Conv2d conv1_, conv2_;
};

// An InvertedResidual adds its input to its result. Blocks without this addition are chains, see
// inverted_chain().
class InvertedResidual : public torch::nn::Module {
 public:
  InvertedResidual(int64_t channels, int64_t hidden) {
    auto parts = register_module("conv", std::make_shared<torch::nn::Module>());
    auto expand = parts->register_module("0", std::make_shared<torch::nn::Module>());
    expand_ = expand->register_module("0", conv(channels, hidden, 1));
    expand_norm_ = expand->register_module("1", BatchNorm2d(hidden));
    auto depthwise = parts->register_module("1", std::make_shared<torch::nn::Module>());
    depthwise_ = depthwise->register_module("0", conv(hidden, hidden, 3, 1, hidden));
    depthwise_norm_ = depthwise->register_module("1", BatchNorm2d(hidden));
    project_ = parts->register_module("2", conv(hidden, channels, 1));
    project_norm_ = parts->register_module("3", BatchNorm2d(channels));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = relu6_(expand_norm_->forward(expand_->forward(x)));
    y = relu6_(depthwise_norm_->forward(depthwise_->forward(y)));
    return x + project_norm_->forward(project_->forward(y));
  }

 private:
  Conv2d expand_{nullptr}, depthwise_{nullptr}, project_{nullptr};
  BatchNorm2d expand_norm_{nullptr}, depthwise_norm_{nullptr}, project_norm_{nullptr};
};

// Adds the inverted residual block without the addition, stage by stage.
void inverted_chain(std::vector<Stage>& stages, const std::string& name, int64_t in, int64_t out,
                    int64_t expansion, int64_t stride) {
  const int64_t hidden = in * expansion;
  int64_t part = 0;
  const auto part_name = [&] { return name + ".conv." + std::to_string(part); };
  if (expansion != 1) {
    stages.push_back(stage(part_name() + ".0", conv(in, hidden, 1)));
    stages.push_back(norm_relu6(part_name() + ".1", hidden));
    ++part;
  }
  stages.push_back(stage(part_name() + ".0", conv(hidden, hidden, 3, stride, hidden)));
  stages.push_back(norm_relu6(part_name() + ".1", hidden));
  ++part;
  stages.push_back(stage(part_name(), conv(hidden, out, 1)));
  ++part;
  stages.push_back(stage(part_name(), BatchNorm2d(out)));
}

GroupNorm group_norm(int64_t channels) {
  return GroupNorm(torch::nn::GroupNormOptions(8, channels));
}

// A ResidualUnit is group norm, SiLU and 3x3 convolution, twice, beside a shortcut. The shortcut is
// a 1x1 convolution if the number of channels changes.
class ResidualUnit : public torch::nn::Module {
 public:
  ResidualUnit(int64_t in, int64_t out)
      : norm1_(register_module("norm1", group_norm(in))),
        norm2_(register_module("norm2", group_norm(out))),
        conv1_(register_module("conv1", conv(in, out, 3, 1, 1, true))),
        conv2_(register_module("conv2", conv(out, out, 3, 1, 1, true))) {
    if (in != out) shortcut_ = register_module("shortcut", conv(in, out, 1, 1, 1, true));
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = conv1_->forward(at::silu(norm1_->forward(x)));
    const Tensor z = conv2_->forward(at::silu(norm2_->forward(y)));
    return z + (shortcut_.is_empty() ? x : shortcut_->forward(x));
  }

 private:
  GroupNorm norm1_, norm2_;
  Conv2d conv1_, conv2_, shortcut_{nullptr};
};

// PixelAttention is single-head attention over all pixels, added to its input.
class PixelAttention : public torch::nn::Module {
 public:
  explicit PixelAttention(int64_t channels)
      : norm_(register_module("norm", group_norm(channels))),
        qkv_(register_module("qkv", conv(channels, 3 * channels, 1, 1, 1, true))),
        out_(register_module("out", conv(channels, channels, 1, 1, 1, true))) {}

  Tensor forward(const Tensor& x) {
    // {batch, 3, 1 head, pixels, channels}, a view of the convolution's result.
    const Tensor qkv = qkv_->forward(norm_->forward(x))
                           .view({x.size(0), 3, 1, x.size(1), x.size(2) * x.size(3)})
                           .transpose(3, 4);
    const Tensor mixed =
        at::scaled_dot_product_attention(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2));
    return x + out_->forward(mixed.transpose(2, 3).reshape(x.sizes()));
  }

 private:
  GroupNorm norm_;
  Conv2d qkv_, out_;
};

// UnetCore has everything from the start of one level's skip to its concatenation: down, the levels
// below, up. No single tensor separates these operations while the skip is open, so they are one
// stage of the chain.
class UnetCore : public torch::nn::Module {
 public:
  UnetCore(std::span<const int64_t> channels)
      : up_(register_module(
            "up", ConvTranspose2d(
                      torch::nn::ConvTranspose2dOptions(channels[1], channels[0], 2).stride(2)))) {
    const int64_t above = channels[0], here = channels[1];
    down_ = register_module("down", std::make_shared<ResidualUnit>(above, here));
    if (channels.size() > 2) {
      below_ = register_module("below", std::make_shared<UnetCore>(channels.subspan(1)));
      after_ = register_module("after", std::make_shared<ResidualUnit>(2 * here, here));
    } else {
      attention1_ = register_module("attention1", std::make_shared<PixelAttention>(here));
      after_ = register_module("after", std::make_shared<ResidualUnit>(here, here));
      attention2_ = register_module("attention2", std::make_shared<PixelAttention>(here));
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor y = down_->forward(at::avg_pool2d(x, 2));
    y = below_ ? below_->forward(y) : attention1_->forward(y);
    y = after_->forward(y);
    if (attention2_) y = attention2_->forward(y);
    return at::cat({x, up_->forward(y)}, 1);
  }

 private:
  ConvTranspose2d up_;
  std::shared_ptr<ResidualUnit> down_, after_;
  std::shared_ptr<UnetCore> below_;
  std::shared_ptr<PixelAttention> attention1_, attention2_;
};

}  // namespace

std::vector<Stage> build_densenet121(const ModelConfig& config) {
  const Window half{2, 2, 0};
  check_image(config, std::array<Window, 5>{Window{7, 2, 3}, Window{3, 2, 1}, half, half, half});
  constexpr int64_t kGrowth = 32;
  constexpr std::array<int64_t, 4> kLayers = {6, 12, 24, 16};
  std::vector<Stage> stages;
  stages.push_back(stage("features.conv0", conv(config.input[1], 64, 7, 2)));
  stages.push_back(norm_relu("features.norm0", 64));
  stages.push_back(stage_of_function("features.pool0",
                                     [](const Tensor& x) { return at::max_pool2d(x, 3, 2, 1); }));
  int64_t channels = 64;
  for (size_t block = 0; block < kLayers.size(); ++block) {
    const std::string number = std::to_string(block + 1);
    for (int64_t layer = 1; layer <= kLayers[block]; ++layer) {
      stages.push_back(
          stage_of("features.denseblock" + number + ".denselayer" + std::to_string(layer),
                   std::make_shared<DenseLayer>(channels, kGrowth)));
      channels += kGrowth;
    }
    if (block + 1 == kLayers.size()) break;
    const std::string transition = "features.transition" + number;
    stages.push_back(norm_relu(transition + ".norm", channels));
    stages.push_back(stage(transition + ".conv", conv(channels, channels / 2, 1)));
    stages.push_back(stage_of_function(transition + ".pool",
                                       [](const Tensor& x) { return at::avg_pool2d(x, 2); }));
    channels /= 2;
  }
  stages.push_back(norm_relu("features.norm5", channels));
  stages.push_back(
      stage("classifier", Linear(channels, config.classes), [](LinearImpl& fc, const Tensor& x) {
        return fc.forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
      }));
  return stages;
}

std::vector<Stage> build_mobilenet_v2(const ModelConfig& config) {
  check_image(config, std::vector<Window>(5, Window{3, 2, 1}));
  constexpr int64_t kBlocks[][4] = {// expansion, channels, repetitions, stride of the first
                                    {1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                    {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  std::vector<Stage> stages;
  stages.push_back(stage("features.0.0", conv(config.input[1], 32, 3, 2)));
  stages.push_back(norm_relu6("features.0.1", 32));
  int64_t channels = 32;
  int64_t index = 1;
  for (const auto& [expansion, out, repetitions, first_stride] : kBlocks) {
    for (int64_t i = 0; i < repetitions; ++i, ++index) {
      const std::string name = "features." + std::to_string(index);
      if (i > 0) {
        stages.push_back(stage_of(name, std::make_shared<InvertedResidual>(out, expansion * out)));
      } else {
        inverted_chain(stages, name, channels, out, expansion, first_stride);
      }
      channels = out;
    }
  }
  stages.push_back(stage("features.18.0", conv(channels, 1280, 1)));
  stages.push_back(norm_relu6("features.18.1", 1280));
  stages.push_back(stage("classifier.1", Linear(1280, config.classes),
                         [dropout = config.dropout](LinearImpl& fc, const Tensor& x) {
                           const Tensor features = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
                           return fc.forward(at::dropout(features, dropout, fc.is_training()));
                         }));
  return stages;
}

std::vector<Stage> build_unet(const ModelConfig& config) {
  const int64_t width = config.width;
  if (width % 8 != 0) {
    throw InputError("unet: the width (" + std::to_string(width) +
                     ") must be a multiple of 8, the number of its normalisation groups");
  }
  if (config.input[2] % 8 != 0 || config.input[3] % 8 != 0) {
    throw InputError("unet: height and width of the input (" + std::to_string(config.input[2]) +
                     "x" + std::to_string(config.input[3]) +
                     ") must be multiples of 8, because it halves them three times; the smallest "
                     "is 8x8");
  }
  const std::array<int64_t, 4> channels = {width, 2 * width, 4 * width, 6 * width};
  std::vector<Stage> stages;
  stages.push_back(stage("stem", conv(config.input[1], width, 3, 1, 1, true)));
  stages.push_back(stage_of("before", std::make_shared<ResidualUnit>(width, width)));
  stages.push_back(stage_of("core", std::make_shared<UnetCore>(channels)));
  stages.push_back(stage_of("after", std::make_shared<ResidualUnit>(2 * width, width)));
  stages.push_back(stage("norm", group_norm(width), [](GroupNormImpl& norm, const Tensor& x) {
    return at::silu(norm.forward(x));
  }));
  stages.push_back(stage("head", conv(width, config.classes, 1, 1, 1, true)));
  return stages;
}

}  // namespace reprise::training::zoo
