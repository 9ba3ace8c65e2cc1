// Runs a step within a budget, with the installed headers and libraries alone.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <reprise/runtime.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

int main() {
  namespace nn = torch::nn;
  nn::Sequential model(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(),
                       nn::Linear(256, 10));
  const at::Tensor x = at::randn({512, 64}), y = at::randint(10, {512});
  auto remat = reprise::runtime::remat(model, x, {.budget = "95%"});
  at::cross_entropy_loss(remat->forward(x), y).backward();
  const auto step = remat->last_step();
  const bool within = step.measured_peak > reprise::Bytes(0) && step.measured_peak <= step.budget;
  std::printf("peak %lld, %s the budget\n", static_cast<long long>(step.measured_peak.count()),
              within ? "within" : "ABOVE");
  return within ? 0 : 1;
}
