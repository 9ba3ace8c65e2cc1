// This file has the list of models, and the work that is common to building all of them.
#include <ATen/ATen.h>

#include <array>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/modules/stage_modules.h"
#include "training/zoo/build.h"

namespace reprise::training {

using runtime::Stage;
using runtime::internal::modules::register_stages;

namespace {

// An Entry holds a model's defaults. The model does not have an option whose default is 0 (or a
// negative dropout).
struct Entry {
  ModelInfo info;
  ModelConfig defaults;
  std::vector<Stage> (*build)(const ModelConfig&);
};

// Returns the configuration of the image models without options.
ModelConfig ten_classes() { return {.classes = 10}; }

ModelConfig resnet(int64_t width) { return {.classes = 10, .width = width}; }

const std::vector<Entry>& entries() {
  using namespace zoo;  // NOLINT: the builders only
  static const std::vector<Entry> rows = {
      {{"mlp", "linear layers with ReLU", {256, 1, 28, 28}, "image"},
       {.classes = 10, .width = 512, .layers = 4},
       build_mlp},
      {{"resnet20", "ResNet for small images, 20 layers", {128, 1, 28, 28}, "image"},
       resnet(16),
       build_resnet},
      {{"resnet18", "ResNet, 18 layers", {64, 1, 28, 28}, "image"}, resnet(64), build_resnet},
      {{"resnet34", "ResNet, 34 layers", {64, 1, 28, 28}, "image"}, resnet(64), build_resnet},
      {{"resnet50", "ResNet, 50 layers", {32, 1, 28, 28}, "image"}, resnet(64), build_resnet},
      {{"resnet101", "ResNet, 101 layers", {32, 1, 28, 28}, "image"}, resnet(64), build_resnet},
      {{"vgg16_bn", "VGG-16 with batch normalisation", {32, 1, 32, 32}, "image"},
       ten_classes(),
       build_vgg16_bn},
      {{"densenet121", "DenseNet, 121 layers", {32, 1, 32, 32}, "image"},
       ten_classes(),
       build_densenet121},
      {{"mobilenet_v2", "MobileNetV2", {64, 1, 28, 28}, "image"},
       {.classes = 10, .dropout = 0.2},
       build_mobilenet_v2},
      {{"unet", "residual U-Net with attention", {8, 1, 64, 64}, "segmentation"},
       {.classes = 16, .width = 32},
       build_unet},
      {{"gpt", "decoder-only transformer, tied embedding", {4, 256}, "text"},
       {.width = 256, .layers = 12, .heads = 4, .vocabulary = 256, .dropout = 0.1},
       build_gpt},
      {{"lstm", "LSTM, a stage for every time step", {64, 28, 28}, "sequence"},
       {.classes = 10, .width = 256, .layers = 1},
       build_lstm},
  };
  return rows;
}

const Entry& find(const std::string& name) {
  std::string known;
  for (const Entry& entry : entries()) {
    if (name == entry.info.name) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.info.name);
  }
  throw InputError("unknown model \"" + name + "\"; there are " + known);
}

void fill_option(const std::string& model, const char* what, int64_t& given, int64_t standard,
                 int64_t largest) {
  if (given == 0) {
    given = standard;
  } else if (standard == 0) {
    throw InputError(model + " has no option \"" + what + "\"");
  } else if (given < 1 || given > largest) {
    throw InputError(model + ": " + what + " must be from 1 to " + std::to_string(largest) +
                     ", not " + std::to_string(given));
  }
}

void fill_dropout(const std::string& model, double& given, double standard) {
  if (given < 0) {
    given = standard;
  } else if (standard < 0) {
    throw InputError(model + " has no option \"dropout\"");
  } else if (!(given < 1)) {
    throw InputError(model + ": dropout must be at least 0 and less than 1");
  }
}

void check_input(const ModelInfo& info, const std::vector<int64_t>& input) {
  const std::string name = info.name;
  if (input.size() != info.default_input.size()) {
    const char* form = info.default_input.size() == 4   ? "batch x channels x height x width"
                       : info.default_input.size() == 3 ? "batch x time x features"
                                                        : "batch x time";
    throw InputError(name + " takes an input of " + std::to_string(info.default_input.size()) +
                     " dimensions, " + form + ", not of " + std::to_string(input.size()));
  }
  // One tensor of the input's size must be addressable with a wide margin. Whether the model fits
  // into the memory is the planner's business.
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  int64_t elements = 1;
  for (const int64_t extent : input) {
    if (extent < 1) throw InputError(name + ": every dimension of the input must be at least 1");
    if (extent > kMaxElements / elements) throw InputError(name + ": the input is too large");
    elements *= extent;
  }
}

ModelConfig complete(ModelConfig config, const Entry& entry) {
  const std::string& name = config.model;
  const ModelConfig& defaults = entry.defaults;
  if (config.input.empty()) config.input = entry.info.default_input;
  check_input(entry.info, config.input);
  fill_option(name, "classes", config.classes, defaults.classes, 1'000'000);
  fill_option(name, "width", config.width, defaults.width, 65'536);
  fill_option(name, "layers", config.layers, defaults.layers, 10'000);
  fill_option(name, "heads", config.heads, defaults.heads, 65'536);
  fill_option(name, "vocabulary", config.vocabulary, defaults.vocabulary, 1'000'000);
  fill_dropout(name, config.dropout, defaults.dropout);
  return config;
}

}  // namespace

namespace zoo {

int64_t side_after(int64_t side, std::span<const Window> windows) {
  for (const Window& window : windows) {
    const int64_t room = side + 2 * window.padding - window.kernel;
    if (room < 0) return 0;
    side = room / window.stride + 1;
  }
  return side;
}

void check_image(const ModelConfig& config, std::span<const Window> windows) {
  const int64_t height = side_after(config.input[2], windows);
  const int64_t width = side_after(config.input[3], windows);
  if (height == 0 || width == 0) {
    int64_t smallest = 1;
    while (side_after(smallest, windows) == 0) ++smallest;
    const std::string side = std::to_string(smallest);
    throw InputError(config.model + ": an input of " + std::to_string(config.input[2]) + "x" +
                     std::to_string(config.input[3]) +
                     " pixels shrinks to nothing; the smallest that works is " + side + "x" + side);
  }
  if (config.input[0] * height * width == 1) {
    throw InputError(config.model +
                     ": batch normalisation needs more than one value per channel, and its last "
                     "ones see a single pixel of a single image; use a batch of at least 2");
  }
}

}  // namespace zoo

std::span<const ModelInfo> models() {
  static const std::vector<ModelInfo> infos = [] {
    std::vector<ModelInfo> list;
    for (const Entry& entry : entries()) list.push_back(entry.info);
    return list;
  }();
  return infos;
}

Model make_model(const ModelConfig& config) {
  const Entry& entry = find(config.model);
  Model model;
  model.config = complete(config, entry);
  model.task = entry.info.task;
  model.stages = entry.build(model.config);
  if (model.task == "text") {
    model.loss = [](const at::Tensor& output, const at::Tensor& target) {
      return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
    };
  } else {
    model.loss = [](const at::Tensor& output, const at::Tensor& target) {
      return at::cross_entropy_loss(output, target);
    };
  }
  return model;
}

Model make_model(std::string_view name) { return make_model({.model = std::string(name)}); }

at::Tensor Model::sample_input() const {
  return task == "text" ? at::randint(config.vocabulary, config.input, at::kLong)
                        : at::randn(config.input);
}

at::Tensor Model::sample_target() const {
  if (task == "text") return at::randint(config.vocabulary, config.input, at::kLong);
  std::vector<int64_t> shape = {config.input[0]};
  if (task == "segmentation") shape = {config.input[0], config.input[2], config.input[3]};
  return at::randint(config.classes, shape, at::kLong);
}

std::shared_ptr<torch::nn::Module> Model::module() const {
  auto all = std::make_shared<torch::nn::Module>(config.model);
  register_stages(*all, stages);
  return all;
}

}  // namespace reprise::training
