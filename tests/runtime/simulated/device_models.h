// These are small models on a device, and everything that a step of theirs changes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "support/accelerator/accelerator.h"

namespace reprise::runtime::testing {

// A DeviceModel is a model as stages, with its batch and its loss.
struct DeviceModel {
  std::vector<Stage> stages;
  at::Tensor input, target;
  c10::Device device = c10::kCPU;

  at::Tensor loss(const at::Tensor& output) const;
  Loss loss_of_any_batch() const;  // measures run with fewer rows, too
  at::Tensor plain_loss() const;   // forward and loss
  StepFunction step() const;       // forward, loss and backward
  Tensors parameters() const;
  void drop_gradients() const;
  void move_to(c10::Device to);
};

inline std::vector<std::string> device_model_names() { return {"dense", "conv", "attention"}; }

// The same weights and batch in every call with one name, whatever the device.
DeviceModel make_device_model(const std::string& name, c10::Device device);

void seed_device(c10::Device device, uint64_t value);

// Returns the options of the least effort to measure a model. The output does not outlive the loss.
MeasureOptions once();

// The reports of missing synchronisation since the last call, one a line.
std::string reports();

// Loss, gradients and buffers, on the host, and the random state of the device.
Tensors everything(const DeviceModel& model, const at::Tensor& loss);

// Two plain steps on the CPU; the second one shows what the first one left behind.
Tensors plain_result(const std::string& name);

// Returns the number of the first part that differs in at least one bit; -1: all are equal.
int first_difference(const Tensors& a, const Tensors& b);

}  // namespace reprise::runtime::testing
