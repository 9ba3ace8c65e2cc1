// Uses the runtime and the parts of LibTorch for CUDA that a backend of ours builds on: the caching allocator
// and its statistics, streams, guards, and graphs. make cuda-check compiles and links this file without a GPU.
// On a machine with a GPU the program runs a small step there, and compares its bits and bytes.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <exception>

#include "reprise/runtime.h"

namespace {

namespace rt = reprise::runtime;
namespace caching = c10::cuda::CUDACachingAllocator;

int64_t allocated_bytes(c10::DeviceIndex device) {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return caching::getDeviceStats(device).allocated_bytes[all].current;
}

// Forward, loss and backward of a small network on a device.
struct Step {
  torch::nn::Sequential model{torch::nn::Linear(256, 1024)};
  Step() {
    for (int layer = 0; layer < 6; ++layer) {
      model->push_back(torch::nn::GELU());
      model->push_back(torch::nn::Linear(1024, 1024));
    }
    model->push_back(torch::nn::Linear(1024, 16));
  }
  rt::Tensors operator()(const rt::Tensors& in) {
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(in[0]), in[1]);
    loss.backward();
    return {loss};
  }
};

// Captures and plans a step, and runs it: plain training's bits, and no byte more than the budget.
bool runs_a_step(c10::Device device, const rt::StepPlanOptions& options) {
  Step step;
  step.model->to(device);
  const rt::Tensors batch = {at::randn({4096, 256}, device),
                             at::randint(16, {4096}, at::TensorOptions(device).dtype(at::kLong))};
  const at::Tensor plain = step(batch).at(0).detach().clone();
  step.model->zero_grad();
  rt::CapturedStep captured([step](const rt::Tensors& in) mutable { return step(in); }, batch,
                            {.modules = {step.model.ptr()}});
  captured.plan(options);
  bool same = true;
  for (int run = 0; run < 3; ++run) {  // The first run records the memory that the next ones plan.
    step.model->zero_grad();
    same = at::equal(plain, captured.run_all(batch).at(0)) && same;
  }
  const auto report = captured.last_step();
  std::printf("bits %s; predicted peak %lld B, measured peak %lld B, %lld B moved\n",
              same ? "equal" : "DIFFER", static_cast<long long>(report.predicted_peak.count()),
              static_cast<long long>(report.measured_peak.count()),
              static_cast<long long>(report.moved_out.count()));
  const bool moved = options.offload.to.empty() || report.moved_out.count() > 0;
  return same && moved && report.measured_peak <= report.budget;
}

// Values that come back from host memory lie in the arena, too. The link is said to be fast, so that
// the plan moves values.
bool moves_values(c10::Device device) {
  return runs_a_step(
      device, {.budget = "60%",
               .offload = {.to = "host", .machine = reprise::parse_offload("host=1000GB/s")}});
}

// A graph of one operation on a stream of its own, in memory that is there beforehand.
bool replays_a_graph(c10::Device device) {
  const at::Tensor x = at::ones({1024}, device);
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
    x.add_(1);
    graph.capture_begin();
    x.add_(1);
    graph.capture_end();
    graph.replay();
    guard.current_stream().synchronize();
  }
  return x.sum().item<float>() == 3 * 1024;
}

}  // namespace

int main() try {
  if (c10::cuda::device_count() == 0) {
    std::puts("There is no GPU here: the program was compiled and linked, and nothing ran.");
    return 0;
  }
  const c10::Device device(c10::kCUDA, 0);
  const c10::cuda::CUDAGuard guard(device);
  at::empty({1}, device);  // prepares the allocator
  std::printf("allocator %s, %lld B in use\n", caching::get()->name().c_str(),
              static_cast<long long>(allocated_bytes(0)));
  const bool step = runs_a_step(device, {.budget = "100%"}), moves = moves_values(device),
             graph = replays_a_graph(device);
  std::printf("step: %s; moves: %s; graph: %s\n", step ? "passed" : "FAILED",
              moves ? "passed" : "FAILED", graph ? "passed" : "FAILED");
  return step && moves && graph ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "cuda_check: %s\n", error.what());
  return 1;
}
