// Measures plain training, periodic recomputation and Reprise on one model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "training/zoo.h"

namespace reprise::bench {

struct BenchOptions {
  int rounds = 7;
  int pairs = 21;  // pairs of neighbouring samples, for two settings that are timed side by side
  double sample_seconds = 0.1;  // plain training of one sample (a mean over steps) takes this long
  bool quick = false;           // stages are measured once
  bool all_segments = false;    // every segment count, not only a dozen
  std::function<void(const std::string&)> progress = {};
};

enum class Kind { kPlain, kPeriodic, kReprise };

// This is one way to run a step. Bytes are live bytes of the device. Times are milliseconds, one
// for each round.
struct Setting {
  Kind kind = Kind::kPlain;
  int64_t segments = 0;           // for kPeriodic
  int64_t budget = 0;             // for kReprise: the smallest budget that led to this plan
  int64_t peak = 0;               // measured, all live bytes included
  int64_t above = 0;              // peak - live bytes before the step
  double gradient_error = 0;      // largest difference over the largest gradient; 0: same bits
  bool bitwise = true;            // whether the gradients are plain training's bits
  double predicted_overhead = 0;  // for kReprise: of the plan over the plain plan
  int64_t recomputed = 0;         // for kReprise: forward runs beyond one for each stage
  std::vector<double> times = {};

  bool operator==(const Setting&) const = default;
};

// This is one budget that Reprise is asked to plan for.
struct Request {
  std::optional<double> share = {};     // share of plain's measured peak, or
  std::optional<size_t> periodic = {};  // index of the setting whose peak it is
  int64_t budget = 0;
  std::optional<size_t> setting = {};  // index in settings; absent: infeasible

  bool operator==(const Request&) const = default;
};

struct Floor {
  int64_t budget = 0;  // smallest feasible, total bytes
  std::string op, stage;
  std::vector<std::pair<std::string, int64_t>> holders = {};  // at its peak, largest first

  bool operator==(const Floor&) const = default;
};

struct ExecutorCost {
  training::ModelConfig config = {};
  double plain_median = 0, plain_min = 0, reprise_median = 0, reprise_min = 0;  // ms
  std::vector<double> ratios = {};  // reprise / plain, one for each pair

  bool operator==(const ExecutorCost&) const = default;
};

// These are the times of a plan beside those of a periodic setting, sample by sample.
struct PairedRun {
  size_t periodic = 0, reprise = 0;  // indices in settings
  std::vector<double> ratios = {};   // reprise / periodic, one for each pair

  bool operator==(const PairedRun&) const = default;
};

struct ModelResult {
  training::ModelConfig config = {};
  std::string failure = {};  // if not empty, nothing else is valid
  int64_t stages = 0;
  int64_t level = 0;                   // bytes of parameters, buffers and batch
  int64_t held = 0;                    // bytes that Reprise holds between steps, on top of these
  int64_t steps = 1;                   // steps in a sample
  std::vector<Setting> settings = {};  // plain, then periodic, then Reprise's
  std::vector<Request> requests = {};
  std::vector<PairedRun> pairs = {};  // where the rounds do not show Reprise faster
  std::optional<Floor> floor = {};    // of the chain, as the planner says it
  double planning = 0;                // seconds of the plan that took longest
  std::vector<ExecutorCost> executor = {};

  bool operator==(const ModelResult&) const = default;
};

double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

// Returns a[r] / b[r] for each round r.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

// Verifies, then times. Throws std::runtime_error for each of three faults: a Reprise step differs
// from plain training in one bit of loss, gradients, buffers or random state; a predicted peak is
// not the measured one; a periodic step has wrong gradients.
ModelResult bench_model(const training::ModelConfig& config, const BenchOptions& options);
ExecutorCost executor_cost(const training::ModelConfig& config, const BenchOptions& options);

}  // namespace reprise::bench
