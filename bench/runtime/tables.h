// Writes results as Markdown for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "bench_model.h"
#include "common/run_info.h"

namespace reprise::bench {

struct StepRunInfo {
  RunInfo run = {};
  BenchOptions options = {};
};

std::string markdown(const StepRunInfo& info, const std::vector<ModelResult>& results);
std::string json(const StepRunInfo& info, const std::vector<ModelResult>& results);

// Returns a text such as "resnet18, 64x3x64x64, width 32".
std::string describe(const training::ModelConfig& config);

}  // namespace reprise::bench
