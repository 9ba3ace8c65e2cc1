// Checks promises of the model zoo (training/zoo.h): the published number of parameters, the right
// output, and stages that neither change nor alias their input and remember nothing. A configuration that does not fit is refused with an InputError.
#include "training/zoo.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "reprise/model/errors.h"
#include "small_models.h"

namespace reprise::runtime::testing {

using training::make_model;
using training::Model;
using training::ModelConfig;

namespace {

using at::Tensor;

// Counts every parameter once, however many stages share it.
std::vector<Tensor> parameters(const Model& model) {
  std::vector<Tensor> list;
  std::set<const c10::TensorImpl*> seen;
  for (const Stage& stage : model.stages) {
    if (!stage.module) continue;
    for (const Tensor& p : stage.module->parameters()) {
      if (seen.insert(p.unsafeGetTensorImpl()).second) list.push_back(p);
    }
  }
  return list;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const Tensor& p : parameters(make_model(config))) count += p.numel();
  return count;
}

Tensors run(const Model& model, Tensors values) {
  for (const Stage& stage : model.stages) values = stage.forward(values);
  return values;
}

Tensor run(const Model& model, const Tensor& input) { return run(model, Tensors{input}).at(0); }

class Zoo : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    torch::manual_seed(7);
    model = make_model(small_config(GetParam()));
    input = model.sample_input();
    target = model.sample_target();
  }
  Model model;
  Tensor input, target;
};

TEST_P(Zoo, OutputHasOneScoreForEveryClass) {
  const Tensor output = run(model, input);
  const ModelConfig& c = model.config;
  std::vector<int64_t> expected = {c.input[0], c.classes};
  if (model.task == "text") expected = {c.input[0], c.input[1], c.vocabulary};
  if (model.task == "segmentation") expected = {c.input[0], c.classes, c.input[2], c.input[3]};
  EXPECT_EQ(output.sizes(), at::IntArrayRef(expected));
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_EQ(model.loss(output, target).dim(), 0);
}

TEST_P(Zoo, StagesNeitherChangeNorAliasTheirInput) {
  for (const bool training : {true, false}) {
    Tensors values = {input};
    for (const Stage& stage : model.stages) {
      if (stage.module) stage.module->train(training);
      std::vector<int64_t> versions;
      Tensors copies;
      for (const Tensor& t : values) {
        versions.push_back(t._version());
        copies.push_back(t.detach().clone());
      }
      const Tensors outputs = stage.forward(values);
      std::set<const void*> storages;
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i]._version(), versions[i]) << stage.name;
        EXPECT_TRUE(torch::equal(values[i], copies[i])) << stage.name;
        storages.insert(values[i].storage().data());
      }
      for (const Tensor& t : outputs) {
        EXPECT_TRUE(storages.insert(t.storage().data()).second) << stage.name;
        EXPECT_EQ(t.storage().nbytes(), static_cast<size_t>(t.numel()) * t.itemsize())
            << stage.name;
      }
      values = outputs;
    }
  }
}

TEST_P(Zoo, StagesRememberNothing) {
  // Two batches run in turns, and every stage runs twice. The second run of the first batch gives
  // the same bits as the first.
  Tensors a = {input}, b = {model.sample_input()};
  for (const Stage& stage : model.stages) {
    torch::manual_seed(11);
    const Tensors first = stage.forward(a);
    b = stage.forward(b);
    torch::manual_seed(11);
    const Tensors second = stage.forward(a);
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(torch::equal(first[i], second[i])) << stage.name;
    }
    a = second;
  }
}

TEST_P(Zoo, EveryParameterGetsAGradient) {
  model.loss(run(model, input), target).backward();
  for (const Stage& stage : model.stages) {
    if (!stage.module) continue;
    for (const auto& p : stage.module->named_parameters()) {
      EXPECT_TRUE(p.value().is_leaf() && p.value().grad().defined())
          << stage.name << "." << p.key();
    }
  }
}

TEST_P(Zoo, IsAFunctionOfTheRandomState) {
  torch::manual_seed(7);
  const std::vector<Tensor> expected = parameters(model);
  const std::vector<Tensor> again = parameters(make_model(small_config(GetParam())));
  ASSERT_EQ(expected.size(), again.size());
  for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], again[i]));
}

TEST_P(Zoo, RefusesShapesOfAnotherRankAndEmptyOnes) {
  ModelConfig config = small_config(GetParam());
  config.input.push_back(3);
  EXPECT_THROW(make_model(config), InputError);
  config.input = {4};
  EXPECT_THROW(make_model(config), InputError);
  config = small_config(GetParam());
  config.input[1] = 0;
  EXPECT_THROW(make_model(config), InputError);
  config.input[1] = int64_t{1} << 62;
  EXPECT_THROW(make_model(config), InputError);
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, ::testing::ValuesIn(tested_models()),
                         [](const auto& instance) { return instance.param; });

TEST(ZooCounts, AreThePublishedOnes) {
  const std::map<std::string, int64_t> published = {
      {"resnet18", 11'689'512},  {"resnet34", 21'797'672},   {"resnet50", 25'557'032},
      {"resnet101", 44'549'160}, {"densenet121", 7'978'856}, {"mobilenet_v2", 3'504'872}};
  for (const auto& [name, count] : published) {
    EXPECT_EQ(parameter_count({.model = name, .input = {2, 3, 64, 64}, .classes = 1000}), count)
        << name;
  }
  // Table 6 says 0.27M. The convolutions of the two shortcuts have 512 and 2048 parameters, their
  // batch norms 64 and 128.
  EXPECT_EQ(parameter_count({.model = "resnet20", .input = {2, 3, 32, 32}}), 272'474);
}

TEST(ZooCounts, GoWithTheWidthOfAResnet) {
  const auto without_last_bias = [](int64_t width) {
    return parameter_count({.model = "resnet18", .input = {2, 3, 64, 64}, .width = width}) - 10;
  };
  EXPECT_EQ(parameter_count({.model = "resnet18", .input = {2, 3, 64, 64}}),
            without_last_bias(64) + 10);
  // Convolutions grow with the square of the width, all else with the width.
  const int64_t linear = (4 * without_last_bias(32) - without_last_bias(64)) / 64;
  const int64_t square = (without_last_bias(64) - 64 * linear) / (64 * 64);
  EXPECT_GT(linear, 0);
  EXPECT_GT(square, 0);
  EXPECT_EQ(without_last_bias(16), 16 * 16 * square + 16 * linear);
}

TEST(ZooCounts, OfTheModelsWithOwnHeads) {
  int64_t vgg = 512 * 1000 + 1000, in = 3;
  for (const int64_t out : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    vgg += 9 * in * out + 2 * out;
    in = out;
  }
  EXPECT_EQ(parameter_count({.model = "vgg16_bn", .input = {2, 3, 64, 64}, .classes = 1000}), vgg);
  const int64_t d = 256, block = 12 * d * d + 13 * d;
  EXPECT_EQ(parameter_count({.model = "gpt"}), 256 * d + 256 * d + 12 * block + 2 * d);
  EXPECT_EQ(parameter_count({.model = "lstm"}), 4 * 256 * (28 + 256 + 2) + 256 * 10 + 10);
  EXPECT_EQ(parameter_count({.model = "mlp"}),
            784 * 512 + 512 + 3 * (512 * 512 + 512) + 512 * 10 + 10);
}

TEST(ZooNames, AreThoseOfTorchvision) {
  const auto keys = [](const char* name) {
    std::set<std::string> set;
    for (const Stage& stage : make_model(small_config(name)).stages) {
      if (!stage.module) continue;
      for (const auto& p : stage.module->named_parameters()) set.insert(stage.name + "." + p.key());
    }
    return set;
  };
  for (const char* key : {"conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "fc.bias",
                          "layer2.0.downsample.0.weight", "layer4.1.bn2.weight"}) {
    EXPECT_TRUE(keys("resnet18").contains(key)) << key;
  }
  for (const char* key :
       {"features.conv0.weight", "features.denseblock4.denselayer16.conv2.weight",
        "features.transition3.norm.bias", "features.norm5.weight", "classifier.weight"}) {
    EXPECT_TRUE(keys("densenet121").contains(key)) << key;
  }
  for (const char* key :
       {"features.0.1.weight", "features.1.conv.0.0.weight", "features.1.conv.2.bias",
        "features.2.conv.3.weight", "features.3.conv.1.0.weight", "features.17.conv.3.bias",
        "features.18.0.weight", "classifier.1.weight"}) {
    EXPECT_TRUE(keys("mobilenet_v2").contains(key)) << key;
  }
}

TEST(ZooGpt, TiesTheHeadToTheEmbedding) {
  const Model model = make_model(small_config("gpt"));
  const Tensor tokens = model.stages.front().module->named_parameters()["tokens"];
  const Tensor head = model.stages.back().module->named_parameters()["weight"];
  EXPECT_TRUE(tokens.is_same(head));
}

TEST(ZooGpt, SeesNoLaterToken) {
  ModelConfig config = small_config("gpt");
  config.dropout = 0;
  const Model model = make_model(config);
  const Tensor input = model.sample_input();
  Tensor other = input.clone();
  other.narrow(1, 4, 2).add_(1).remainder_(config.vocabulary);
  const Tensor a = run(model, input), b = run(model, other);
  EXPECT_TRUE(torch::allclose(a.narrow(1, 0, 4), b.narrow(1, 0, 4), 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(a.narrow(1, 4, 2), b.narrow(1, 4, 2), 1e-5, 1e-6));
}

TEST(ZooLstm, ComputesWhatTorchsLstmDoes) {
  const Model model = make_model(small_config("lstm"));
  const ModelConfig& c = model.config;
  torch::nn::LSTM reference(
      torch::nn::LSTMOptions(c.input[2], c.width).num_layers(c.layers).batch_first(true));
  const auto cells = model.stages[0].module->named_parameters();
  {
    torch::NoGradGuard guard;
    for (auto& p : reference->named_parameters()) {  // weight_ih_l0 -> cell0.weight_ih
      const std::string& key = p.key();
      const size_t cut = key.rfind("_l");
      p.value().copy_(cells["cell" + key.substr(cut + 2) + "." + key.substr(0, cut)]);
    }
  }
  const Tensor input = model.sample_input();
  const Tensor last = std::get<0>(reference->forward(input)).select(1, c.input[1] - 1);
  Tensors values = {input};
  for (int64_t i = 0; i < c.input[1]; ++i) {
    EXPECT_EQ(model.stages[i].module, model.stages[0].module);
    values = model.stages[i].forward(values);
  }
  ASSERT_EQ(values.size(), 1u);
  EXPECT_TRUE(torch::allclose(values[0], last, 1e-5, 1e-6));
}

std::string refusal(const ModelConfig& config) {
  try {
    make_model(config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ZooErrors, SayWhatWouldWork) {
  const auto says = [](const ModelConfig& config, const std::string& part) {
    EXPECT_NE(refusal(config).find(part), std::string::npos) << refusal(config);
  };
  says({.model = "alexnet"}, "resnet18");
  says({.model = "vgg16_bn", .input = {2, 1, 28, 28}}, "32x32");
  says({.model = "densenet121", .input = {2, 1, 28, 64}}, "29x29");
  says({.model = "resnet18", .input = {1, 1, 28, 28}}, "batch of at least 2");
  says({.model = "unet", .input = {2, 1, 28, 28}}, "multiples of 8");
  says({.model = "unet", .width = 12}, "multiple of 8");
  says({.model = "gpt", .width = 30}, "heads");
  says({.model = "gpt", .classes = 3}, "no option \"classes\"");
  says({.model = "resnet18", .heads = 3}, "no option \"heads\"");
  says({.model = "resnet18", .dropout = 0.5}, "no option \"dropout\"");
  says({.model = "gpt", .dropout = 1}, "less than 1");
  says({.model = "mlp", .layers = -2}, "from 1 to");
  says({.model = "mlp", .width = 1 << 20}, "from 1 to");
}

TEST(ZooErrors, TheSmallestSizesDoWork) {
  for (const auto& [name, side] : std::map<std::string, int64_t>{{"vgg16_bn", 32},
                                                                 {"densenet121", 29},
                                                                 {"resnet20", 1},
                                                                 {"resnet18", 1},
                                                                 {"mobilenet_v2", 1},
                                                                 {"unet", 8}}) {
    const Model model = make_model({.model = name, .input = {2, 1, side, side}});
    EXPECT_NO_THROW(run(model, model.sample_input())) << name;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
