// Makes every model of the zoo at a size whose steps take milliseconds.
#pragma once

#include <map>
#include <string>

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

}  // namespace reprise::runtime::testing
