// Your own model inside a budget: a torch::nn::Sequential, a number, and the training loop as it was.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <iostream>

namespace rt = reprise::runtime;

namespace {

torch::nn::Sequential make_network() {
  torch::nn::Sequential network;
  int64_t channels = 3;
  for (int64_t block = 0; block < 8; ++block) {
    network->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 32, 3).padding(1).bias(false)));
    network->push_back(torch::nn::BatchNorm2d(32));
    network->push_back(torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
    channels = 32;
  }
  network->push_back(torch::nn::AdaptiveAvgPool2d(1));
  network->push_back(torch::nn::Flatten());
  network->push_back(torch::nn::Linear(32, 10));
  return network;
}

}  // namespace

int main() {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  torch::manual_seed(1);
  torch::nn::Sequential network = make_network();
  torch::Tensor x = torch::randn({32, 3, 32, 32}), y = torch::randint(10, {32});

  // Measures the network on x, plans, verifies the plan. A share is of plain training's peak.
  auto remat = rt::remat(network, x, {.budget = "50%"});
  torch::optim::SGD optimizer(remat->parameters(), 0.1);
  for (int step = 1; step <= 5; ++step) {
    torch::Tensor loss = torch::cross_entropy_loss(remat->forward(x), y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const rt::StepReport report = remat->last_step();
    std::cout << "step " << step << ": loss " << loss.item<float>() << ", peak "
              << report.measured_peak.count() << " B of a budget of " << report.budget.count()
              << " B\n";
  }
  const reprise::Plan& plan = *remat->plan().plan;
  std::cout << "plain training: " << plan.baseline.peak.count()
            << " B; time of a step, predicted: " << reprise::format_duration(plan.time)
            << " against " << reprise::format_duration(plan.baseline.time) << "\n";
}
