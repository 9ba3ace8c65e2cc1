// These functions write the result of `reprise train`, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "training/train.h"

namespace reprise::cli {

// The labels say what the user asked for, as far as a report names it.
struct TrainLabels {
  std::string model;
  bool has_budget = false;
  bool consumes_gradients = false;
};

// Returns a table that says what training in less memory gained and cost. The report must be that of
// a training.
std::string train_report_text(const training::TrainReport& report, const TrainLabels& labels);

// Returns the same figures in bytes and nanoseconds.
nlohmann::ordered_json train_report_json(const training::TrainReport& report,
                                         const TrainLabels& labels);

// Returns one line about a step.
std::string step_text(const training::TrainStep& step);

}  // namespace reprise::cli
