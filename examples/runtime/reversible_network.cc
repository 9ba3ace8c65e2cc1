// A reversible network: 64 residual blocks in the memory of two, with the bits of plain training.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <iostream>

namespace rt = reprise::runtime;

namespace {

torch::nn::Sequential branch(int64_t width) {
  return torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                               torch::nn::Linear(width, 2 * width), torch::nn::GELU(),
                               torch::nn::Linear(2 * width, width));
}

std::shared_ptr<rt::nn::ReversibleSequence> make_network(int blocks) {
  torch::manual_seed(1);
  std::vector<rt::nn::ReversibleBlock> all;
  for (int i = 0; i < blocks; ++i) {
    all.push_back({rt::nn::branch(branch(32)), rt::nn::branch(branch(32))});
  }
  return std::make_shared<rt::nn::ReversibleSequence>(std::move(all));
}

// Returns the most memory that activations took.
int64_t step(rt::nn::ReversibleSequence& network, const torch::Tensor& x, bool reverse) {
  network.set_reverse(reverse);
  for (const torch::Tensor& p : network.parameters()) p.mutable_grad() = torch::zeros_like(p);
  const int64_t before = rt::memory_count(torch::kCPU).live;
  rt::reset_peak(torch::kCPU);
  network.forward(x).square().mean().backward();
  return rt::memory_count(torch::kCPU).peak - before;
}

}  // namespace

int main() {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  const torch::Tensor x = torch::randn({2048, 64});
  std::vector<std::vector<torch::Tensor>> gradients;
  for (const auto& [blocks, reverse] :
       {std::pair(2, false), std::pair(64, false), std::pair(64, true)}) {
    const auto network = make_network(blocks);
    const int64_t peak = step(*network, x, reverse);
    std::cout << blocks << " blocks, " << (reverse ? "reversed" : "plain") << ": " << peak
              << " B\n";
    gradients.emplace_back();
    for (const torch::Tensor& p : network->parameters()) gradients.back().push_back(p.grad());
  }
  bool same = true;
  for (size_t i = 0; i < gradients[1].size(); ++i) {
    same = same && torch::equal(gradients[1][i], gradients[2][i]);
  }
  std::cout << "gradients of 64 blocks: " << (same ? "same bits" : "different") << "\n";
  return same ? 0 : 1;
}
