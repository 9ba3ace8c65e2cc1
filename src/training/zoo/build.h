// The files of the model zoo share this header: one builder a family, and the checks of shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "training/zoo.h"

namespace reprise::training::zoo {

// Builders get a complete configuration: shapes are positive and of the right rank, and options are
// in their ranges. Builders check the conditions that depend on the network.
std::vector<runtime::Stage> build_mlp(const ModelConfig& config);
std::vector<runtime::Stage> build_resnet(const ModelConfig& config);
std::vector<runtime::Stage> build_vgg16_bn(const ModelConfig& config);
std::vector<runtime::Stage> build_densenet121(const ModelConfig& config);
std::vector<runtime::Stage> build_mobilenet_v2(const ModelConfig& config);
std::vector<runtime::Stage> build_unet(const ModelConfig& config);
std::vector<runtime::Stage> build_gpt(const ModelConfig& config);
std::vector<runtime::Stage> build_lstm(const ModelConfig& config);

// A Window is a convolution or a pooling, as far as the size of its output goes.
struct Window {
  int64_t kernel, stride, padding;
};

// Returns the side of an image after all windows, or 0 if one of them does not fit.
int64_t side_after(int64_t side, std::span<const Window> windows);

// Checks that the image of `config` keeps at least one pixel through `windows`, and that the
// smallest batch normalisation sees more than one value a channel. Throws InputError otherwise.
void check_image(const ModelConfig& config, std::span<const Window> windows);

// Makes a stage of one tensor to one tensor: `function(module, x)`.
template <class Holder, class Function>
runtime::Stage stage(std::string name, const Holder& module, Function function) {
  auto shared = module.ptr();
  return {std::move(name), shared,
          [shared, function](const runtime::Tensors& in) -> runtime::Tensors {
            return {function(*shared, in.at(0))};
          }};
}

// Makes a stage that only calls `module->forward`.
template <class Holder>
runtime::Stage stage(std::string name, const Holder& module) {
  return stage(std::move(name), module, [](auto& m, const at::Tensor& x) { return m.forward(x); });
}

// Makes the same stage from a bare shared pointer to a module that has `forward`.
template <class Impl>
runtime::Stage stage_of(std::string name, std::shared_ptr<Impl> module) {
  return {std::move(name), module, [module](const runtime::Tensors& in) -> runtime::Tensors {
            return {module->forward(in.at(0))};
          }};
}

// Makes a stage without parameters.
template <class Function>
runtime::Stage stage_of_function(std::string name, Function function) {
  return {std::move(name), nullptr, [function](const runtime::Tensors& in) -> runtime::Tensors {
            return {function(in.at(0))};
          }};
}

}  // namespace reprise::training::zoo
