// The model zoo has standard networks, each as the finest chain of stages that its structure
// allows.
//
// Guarantees, for every model:
// - No stage changes its input, and no tensor that a stage returns shares memory with its input. So
//   a boundary of the chain holds exactly the bytes of its tensors. In-place operations stand where
//   the standard definition has them, always on a tensor that the same stage made.
// - Stages carry no state besides the parameters and buffers of their modules. They may be run
//   again, in any order, for any number of batches at once.
// - Stage name + "." + key in the stage's module is the parameter's key. For the ResNets, DenseNet
//   and MobileNetV2 these are the keys of torchvision's state dictionaries.
// - Initialisation is that of the torch modules (not torchvision's own), from the current random
//   state of the CPU generator. Only the embeddings of the GPT have a standard deviation of 0.02,
//   as in GPT-2, because their tied use as the head needs it.
//
// Not handled: other shapes than the one that the model was made for, if the definition depends on
// the shape (positions of the GPT, time steps of the LSTM, features of the MLP).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::training {

// The configuration of a model. 0, empty and negative values mean the model's own default. An
// option that the model does not have (`heads` of a ResNet) must be left at its default.
struct ModelConfig {
  std::string model = {};           // a name that models() lists
  std::vector<int64_t> input = {};  // {batch, channels, height, width}; gpt: {batch, time};
                                    // lstm: {batch, time, features}
  int64_t classes = 0;              // image: classes; unet: classes of a pixel
  int64_t width = 0;       // mlp, lstm: hidden units; gpt: d; unet: channels at full resolution;
                           // resnets: channels behind the first convolution
  int64_t layers = 0;      // mlp: hidden layers; gpt: blocks; lstm: stacked layers
  int64_t heads = 0;       // gpt
  int64_t vocabulary = 0;  // gpt; 256 is bytes
  double dropout = -1;     // gpt, mobilenet_v2: probability in [0, 1)

  bool operator==(const ModelConfig&) const = default;
};

struct Model {
  ModelConfig config;  // with every default filled in
  // The kind of the data: "image" (float batch of images, one class each), "sequence" (float
  // {batch, time, features}, one class each), "segmentation" (images, a class for every pixel),
  // "text" (int64 tokens and the tokens that follow them).
  std::string task;
  std::vector<runtime::Stage> stages;  // fresh modules, in training mode, on the CPU, float32
  // Returns the mean cross-entropy of the last stage's output.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;

  // These functions return a random batch of the right shape and type, from the current random
  // state.
  at::Tensor sample_input() const;
  at::Tensor sample_target() const;

  // Returns a module whose children are the modules of the stages, under the stages' names.
  std::shared_ptr<torch::nn::Module> module() const;
};

struct ModelInfo {
  const char* name;
  const char* summary;
  std::vector<int64_t> default_input;
  const char* task;
};

// Returns all models, in the order in which to list them.
std::span<const ModelInfo> models();

// Throws InputError for an unknown name (the message lists the known ones), an option that the
// model does not have, and a shape that does not fit (the message names the smallest that does).
// Time and memory are those of initialising the parameters.
Model make_model(const ModelConfig& config);
Model make_model(std::string_view name);

}  // namespace reprise::training
