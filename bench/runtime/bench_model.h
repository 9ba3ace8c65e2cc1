// Everything that is measured on one model: plain training, periodic recomputation, Reprise.
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
  int pairs = 21;  // of neighbouring samples, where two settings are timed side by side
  double sample_seconds = 0.1;  // a sample is the mean of so many steps that plain takes this long
  bool quick = false;           // stages are measured once
  bool all_segments = false;    // every segment count
  std::function<void(const std::string&)> progress = {};
};

enum class Kind { kPlain, kPeriodic, kReprise };

// One way to run a step. Bytes are live device bytes; times are milliseconds, one a round.
struct Setting {
  Kind kind = Kind::kPlain;
  int64_t segments = 0;           // periodic
  int64_t budget = 0;             // Reprise: the smallest budget that led to this plan
  int64_t peak = 0;               // measured, total
  int64_t above = 0;              // peak - live bytes before the step
  double gradient_error = 0;      // against plain, over the largest gradient; 0: the same bits
  bool bitwise = true;            // gradients
  double predicted_overhead = 0;  // Reprise: of the plan's time over the plain plan's
  int64_t recomputed = 0;         // Reprise: forward runs beyond one a stage
  std::vector<double> times = {};

  bool operator==(const Setting&) const = default;
};

// What Reprise was asked.
struct Request {
  std::optional<double> share = {};     // of plain's measured peak, or
  std::optional<size_t> periodic = {};  // the peak of settings[*periodic]
  int64_t budget = 0;
  std::optional<size_t> setting = {};  // in settings; absent: infeasible

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
  std::vector<double> ratios = {};  // reprise / plain, one a pair

  bool operator==(const ExecutorCost&) const = default;
};

// A plan beside a periodic setting, sample by sample.
struct PairedRun {
  size_t periodic = 0, reprise = 0;  // in settings
  std::vector<double> ratios = {};   // reprise / periodic, one a pair

  bool operator==(const PairedRun&) const = default;
};

struct ModelResult {
  training::ModelConfig config = {};
  std::string failure = {};  // not empty: nothing else is valid
  int64_t stages = 0;
  int64_t level = 0;                   // parameters, buffers, batch
  int64_t held = 0;                    // by Reprise between steps, on top of these
  int64_t steps = 1;                   // a sample
  std::vector<Setting> settings = {};  // plain, the periodic ones, Reprise's
  std::vector<Request> requests = {};
  std::vector<PairedRun> pairs = {};  // where the rounds do not say that Reprise is faster
  std::optional<Floor> floor = {};    // by chain's own answer
  double planning = 0;                // s, the longest of one plan
  std::vector<ExecutorCost> executor = {};

  bool operator==(const ModelResult&) const = default;
};

double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

// a[r] / b[r], round by round.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

// Verifies, then times. Throws std::runtime_error when something is not as it must be: a Reprise
// step that differs from plain training in one bit of loss, gradients, buffers or random state, a
// predicted peak that is not the measured one, a periodic step whose gradients are wrong.
ModelResult bench_model(const training::ModelConfig& config, const BenchOptions& options);
ExecutorCost executor_cost(const training::ModelConfig& config, const BenchOptions& options);

}  // namespace reprise::bench
