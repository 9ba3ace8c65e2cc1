// The optimizer's part of a captured step: each parameter is updated when its gradient is complete and
// nothing in the step needs the parameter any more; the gradient ends there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/step/recording.h"
#include "runtime/step/updates.h"
#include "runtime/step/work.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::graph {

struct WorkCosts;

// Runs the updates. Stays where it is: the works refer to it.
class Updater {
 public:
  // Adds the works. `options.optimizer` null: none. Throws InputError when the gradients of the step are
  // not those that the optimizer uses, with the reason.
  Updater(const CaptureOptions& options, const step::Recording& recording, step::Works& works);
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  const step::Updates& updates() const { return updates_; }

  // Time and workspace of the updates, on stand-ins: nothing of the optimizer or the model is touched.
  // Memory: a few times that of the largest parameter; from then on room for state that is not there yet.
  void measure(const step::Recording& recording, const MeasureOptions& options, WorkCosts& costs);

  // Before a step. Throws InputError when gradients are there already, or when the optimizer is no longer
  // the one that was measured.
  void begin();
  // Whether the step that was begun has made state.
  bool made_state() const { return made_state_; }
  // Which parameters the step that was begun has updated, in words; empty: none.
  std::string updated() const;

 private:
  void check_coverage(const step::Recording& recording, const std::vector<at::Tensor>& parameters) const;
  void add_works(const step::Recording& recording, step::Works& works);
  void update(size_t k, const at::Tensor& gradient);
  void reserve();
  void measure_all(const step::Recording& recording, const MeasureOptions& options, WorkCosts& costs);
  std::vector<std::string> memory_keys() const;

  struct UpdateSample {
    std::vector<int64_t> times;  // ascending, ns
    int64_t workspace = 0, state = 0;
  };
  UpdateSample measure_one(const step::Update& update, const step::Geometry& gradient,
                   const MeasureOptions& options) const;

  std::shared_ptr<ParameterOptimizer> optimizer_;
  c10::Device device_;
  step::Updates updates_;
  std::vector<at::Tensor> parameters_;    // of the optimizer, at capture
  std::vector<std::string> memory_keys_;  // by update
  std::vector<int64_t> state_bytes_;      // by update
  std::vector<at::Tensor> reserved_;      // by update: for state that is not there yet
  std::vector<size_t> done_;              // of the step that was begun
  bool made_state_ = false;
};

}  // namespace reprise::runtime::internal::graph
