// Trains one network on several processes, without Python: gradients are averaged while the backward
// runs, and each process keeps the optimizer's state of its own parameters only.
//
//   torchrun --no-python --nproc-per-node 2 build/release/data_parallel
//   build/release/data_parallel          trains in this process alone
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>

namespace rt = reprise::runtime;

int main() {
  torch::set_num_threads(1);
  rt::install_cpu_allocator();
  std::optional<rt::ProcessGroup> group;
  if (rt::has_ranks()) group.emplace(rt::gloo_from_environment());
  const int rank = group ? group->rank() : 0;

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::GELU(),
                              torch::nn::Linear(256, 256), torch::nn::GELU(),
                              torch::nn::Linear(256, 10));
  torch::optim::AdamW adamw(model->parameters(), 1e-3);
  const rt::StepFunction train = [model](const rt::Tensors& in) mutable {
    const at::Tensor loss = torch::cross_entropy_loss(model->forward(in[0]), in[1]);
    loss.backward();
    return rt::Tensors{loss};
  };

  // Each rank has rows of its own.
  torch::manual_seed(100 + rank);
  const at::Tensor x = torch::randn({4096, 64}), y = torch::randint(10, {4096});
  {
    rt::CaptureOptions options{.modules = {model.ptr()}, .optimizer = rt::per_parameter(adamw)};
    if (group) options.group = group->name();
    options.shard_optimizer = group.has_value();
    auto step = rt::capture(train, {x, y}, options);
    step.plan({.budget = "80%", .time_limit = reprise::Nanos(1'000'000'000)});
    double loss = 0;
    for (int number = 0; number < 20; ++number) loss = step.run({x, y}).item<double>();
    if (group) loss = group->average(loss);
    const rt::CapturedStepReport report = step.last_step();
    std::printf("rank %d: loss %.4f, peak %lld of %lld bytes, state of %zu parameters\n", rank,
                loss, static_cast<long long>(report.measured_peak.count()),
                static_cast<long long>(report.budget.count()), adamw.state().size());
  }
  if (group) group->barrier();
  return 0;
}
