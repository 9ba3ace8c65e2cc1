// Any model inside a budget: the training step recorded as it is, planned operation by operation. The
// network here is no chain: an encoder, a decoder, and a skip between them.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

namespace rt = reprise::runtime;

namespace {

struct HourglassImpl : torch::nn::Module {
  HourglassImpl() {
    register_module("down", down);
    register_module("middle", middle);
    register_module("up", up);
  }
  torch::Tensor features(const torch::Tensor& x) {
    torch::Tensor wide = down->forward(x);
    torch::Tensor small = torch::gelu(middle->forward(torch::avg_pool2d(wide, 2)));
    torch::Tensor large = torch::upsample_nearest2d(small, {32, 32});
    return torch::cat({wide, large}, 1);
  }
  torch::Tensor forward(const torch::Tensor& x) { return up->forward(features(x)); }
  torch::nn::Sequential down{
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 32, 3).padding(1)),  torch::nn::GELU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)), torch::nn::GELU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)), torch::nn::GELU()};
  torch::nn::Conv2d middle{torch::nn::Conv2dOptions(32, 32, 3).padding(1)};
  torch::nn::Conv2d up{torch::nn::Conv2dOptions(64, 4, 3).padding(1)};
};
TORCH_MODULE(Hourglass);

// [capture]
// The whole step as it is written for plain training: forward, loss, backward. Recorded once.
rt::CapturedStep record(Hourglass model, const torch::Tensor& x, const torch::Tensor& y) {
  auto step = [model](const rt::Tensors& in) mutable {
    torch::Tensor loss = torch::cross_entropy_loss(model->forward(in[0]), in[1]);
    loss.backward();
    return loss;
  };
  rt::CapturedStep captured = rt::capture(step, {x, y}, {.modules = {model.ptr()}});
  captured.plan({.budget = "75%"});
  return captured;
}
// [/capture]

// [parts]
// The same in parts along the batch, in as many as make it the fastest within the budget.
rt::MicroBatches record_parts(Hourglass model, const torch::Tensor& x, const torch::Tensor& y) {
  auto part = [model](const rt::Tensors& in, double share) mutable {
    torch::Tensor loss = share * torch::cross_entropy_loss(model->forward(in[0]), in[1]);
    loss.backward();
    return rt::Tensors{loss};
  };
  return rt::micro_batches(part, {x, y},
                           {.capture = {.modules = {model.ptr()}}, .plan = {.budget = "40%"}});
}
// [/parts]

// [tail]
// Only what is behind the features in parts: the whole batch goes through the body.
rt::MicroBatches record_tail(Hourglass model, const torch::Tensor& x, const torch::Tensor& y) {
  auto body = [model](const rt::Tensors& in) mutable {
    return rt::Tensors{model->features(in[0]), in[1]};
  };
  auto tail = [model](const rt::Tensors& in, double share) mutable {
    torch::Tensor loss = share * torch::cross_entropy_loss(model->up->forward(in[0]), in[1]);
    loss.backward();
    return rt::Tensors{loss};
  };
  return rt::micro_batches(
      tail, {x, y},
      {.body = body, .capture = {.modules = {model.ptr()}}, .plan = {.budget = "50%"}});
}
// [/tail]

}  // namespace

int main() {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  torch::manual_seed(1);
  Hourglass model;
  torch::Tensor x = torch::randn({16, 3, 32, 32}), y = torch::randint(4, {16, 32, 32});

  rt::CapturedStep step = record(model, x, y);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int number = 1; number <= 5; ++number) {
    torch::Tensor loss = step.run({x, y});  // fills .grad
    optimizer.step();
    optimizer.zero_grad();
    const rt::CapturedStepReport report = step.last_step();
    std::cout << "step " << number << ": loss " << loss.item<float>() << ", peak "
              << report.measured_peak.count() << " B of a budget of " << report.budget.count()
              << " B, " << report.served << " allocations in the arena\n";
  }
  const auto report_parts = [&](const std::string& what, rt::MicroBatches parts) {
    const float loss = parts.step.run({x, y}).item<float>();
    std::cout << what << " in " << parts.chosen.parts << " parts: loss " << loss << ", peak "
              << parts.step.last_step().measured_peak.count() << " B of a budget of "
              << parts.step.last_step().budget.count() << " B\n";
    optimizer.zero_grad();
  };
  report_parts("the step", record_parts(model, x, y));
  report_parts("its tail", record_tail(model, x, y));
  const reprise::PlanResult& planned = step.planned();
  std::cout << "plain training: " << planned.baseline.peak.count()
            << " B; time of a step, predicted: " << reprise::format_duration(planned.plan->time)
            << " against " << reprise::format_duration(planned.baseline.time) << "\n";
}
