// Makes every model of the zoo at a size whose steps take milliseconds. Says which of them the tests
// of the zoo take.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/scale.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

using training::ModelConfig;

inline ModelConfig small_config(const std::string& model) {
  static const std::map<std::string, ModelConfig> configs = {
      {"mlp", {.input = {256, 1, 5, 4}, .width = 32, .layers = 4}},
      {"resnet20", {.input = {2, 1, 12, 12}}},
      {"resnet18", {.input = {4, 1, 28, 28}}},
      {"resnet34", {.input = {2, 3, 33, 33}, .classes = 7}},
      {"resnet50", {.input = {2, 1, 28, 28}}},
      {"resnet101", {.input = {2, 1, 40, 40}}},
      {"vgg16_bn", {.input = {2, 1, 32, 32}}},
      {"densenet121", {.input = {2, 1, 29, 29}}},
      {"mobilenet_v2", {.input = {2, 1, 28, 28}}},
      {"unet", {.input = {2, 2, 16, 24}, .classes = 5, .width = 8}},
      {"gpt", {.input = {2, 16}, .width = 16, .layers = 2, .heads = 2, .vocabulary = 11}},
      {"lstm", {.input = {3, 4, 5}, .classes = 6, .width = 8, .layers = 2}},
  };
  ModelConfig config = configs.at(model);
  config.model = model;
  return config;
}

// Returns the models that tests of the zoo take: one of each structure, and all of them in the slow
// tier. A model that another one stands for has the same kinds of layers and of connections.
inline std::vector<std::string> tested_models() {
  if (!reprise::testing::full_tests()) return {"resnet18", "densenet121", "unet", "gpt", "lstm"};
  std::vector<std::string> all;
  for (const training::ModelInfo& info : training::models()) all.push_back(info.name);
  return all;
}

}  // namespace reprise::runtime::testing
