// A training run that is saved, and goes on as if it had not been interrupted. Run the program
// twice: the second run goes on where the first one stopped.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>

namespace rt = reprise::runtime;

int main(int argc, char** argv) {
  const std::filesystem::path path =
      argc > 1 ? argv[1] : std::filesystem::temp_directory_path() / "reprise_example.safetensors";
  rt::install_cpu_allocator();
  torch::manual_seed(1);
  torch::nn::Sequential network(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                                torch::nn::Dropout(0.1), torch::nn::Linear(256, 10));
  torch::Tensor x = torch::randn({2048, 64}), y = torch::randint(10, {2048});
  auto remat = rt::remat(network, x, {.budget = "90%"});
  torch::optim::AdamW optimizer(network->parameters());

  // The objects whose state is saved. The names in the file are those of the network.
  const rt::StateParts parts{.model = network.ptr(), .optimizer = &optimizer};
  rt::Progress progress;
  if (std::filesystem::exists(path)) {
    progress = rt::load_state(path, parts);
    std::cout << "goes on after step " << progress.step << "\n";
  }
  for (int64_t end = progress.step + 5; progress.step < end;) {
    torch::Tensor loss = torch::cross_entropy_loss(remat->forward(x), y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    ++progress.step;
    std::cout << "step " << progress.step << ": loss " << loss.item<float>() << "\n";
  }
  if (remat->plan().plan) progress.plan = rt::plan_sha256(*remat->plan().plan);
  rt::save_state(path, parts, progress);
  std::cout << "saved " << path << "\n";
}
