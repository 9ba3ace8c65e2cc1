// A Siamese network: one tower runs on both images of a pair, and a contrastive loss (Hadsell,
// Chopra, LeCun 2006) brings pairs of one class together. Trains it plainly and within budgets on
// generated images, and compares peaks, times and bits.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <chrono>
#include <iomanip>
#include <iostream>

namespace rt = reprise::runtime;

namespace {

constexpr int64_t kPairs = 32, kClasses = 4, kSteps = 4;

torch::nn::Sequential make_tower() {
  torch::manual_seed(1);
  torch::nn::Sequential tower;
  for (const auto& [from, to] : {std::pair(3, 16), std::pair(16, 32), std::pair(32, 32)}) {
    for (const int64_t first : {from, to}) {
      tower->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(first, to, 3).padding(1)));
      tower->push_back(torch::nn::BatchNorm2d(to));
      tower->push_back(torch::nn::ReLU());
    }
    tower->push_back(torch::nn::MaxPool2d(2));
  }
  tower->push_back(torch::nn::Flatten());
  tower->push_back(torch::nn::Linear(32 * 4 * 4, 32));
  return tower;
}

struct Pairs {
  torch::Tensor left, right, same;
};

// Images of a class are a pattern and noise.
Pairs make_pairs() {
  const torch::Tensor patterns = torch::randn({kClasses, 3, 32, 32});
  const torch::Tensor a = torch::randint(kClasses, {kPairs}),
                      b = torch::randint(kClasses, {kPairs});
  const auto images = [&](const torch::Tensor& classes) {
    return patterns.index_select(0, classes) + 0.5 * torch::randn({kPairs, 3, 32, 32});
  };
  return {images(a), images(b), a.eq(b).to(torch::kFloat)};
}

torch::Tensor contrast(const torch::Tensor& left, const torch::Tensor& right,
                       const torch::Tensor& same) {
  const torch::Tensor apart = torch::pairwise_distance(left, right);
  return (same * apart.square() + (1 - same) * (2 - apart).clamp_min(0).square()).mean();
}

struct Trained {
  std::vector<torch::Tensor> parameters;
  double loss = 0, milliseconds = 0;  // of the last step; of the fastest one
  int64_t peak = 0;                   // of the last step
};

// `forward` takes the two inputs and returns the two outputs.
template <class Forward>
Trained train(torch::nn::Sequential& tower, const Pairs& pairs, const Forward& forward) {
  torch::optim::SGD optimizer(tower->parameters(), 0.02);
  Trained result;
  result.milliseconds = 1e9;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    rt::reset_peak(torch::kCPU);
    const auto begin = std::chrono::steady_clock::now();
    const rt::Tensors outputs = forward(pairs.left, pairs.right);
    const torch::Tensor loss = contrast(outputs[0], outputs[1], pairs.same);
    loss.backward();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    result.milliseconds = std::min(result.milliseconds, took.count());
    result.peak = rt::memory_count(torch::kCPU).peak;
    result.loss = loss.item<double>();
    optimizer.step();
  }
  for (const torch::Tensor& p : tower->parameters()) result.parameters.push_back(p.detach());
  return result;
}

void print(const std::string& way, const Trained& trained, const std::string& rest) {
  std::cout << std::left << std::setw(12) << way << std::right << std::fixed << std::setprecision(2)
            << std::setw(8) << static_cast<double>(trained.peak) / (1 << 20) << " MiB"
            << std::setw(9) << trained.milliseconds << " ms   loss " << std::setprecision(4)
            << trained.loss << rest << "\n";
}

}  // namespace

int main() {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  torch::manual_seed(0);
  const Pairs pairs = make_pairs();
  Trained plain;
  {
    torch::nn::Sequential tower = make_tower();
    plain = train(tower, pairs, [&](const torch::Tensor& left, const torch::Tensor& right) {
      return rt::Tensors{tower->forward(left), tower->forward(right)};
    });
    print("plain", plain, "");
  }
  for (const char* budget : {"90%", "70%", "50%"}) {
    torch::nn::Sequential tower = make_tower();
    const std::vector<rt::Stage> stages = rt::stages_of(tower);
    const rt::Loss loss = [&](const rt::Tensors& outputs) {
      return contrast(outputs[0], outputs[1], pairs.same);
    };
    const auto model =
        rt::remat_join({{"left", stages}, {"right", stages}}, {}, {{pairs.left}, {pairs.right}},
                       {.budget = reprise::Budget(budget), .loss = loss});
    const Trained trained =
        train(tower, pairs, [&](const torch::Tensor& left, const torch::Tensor& right) {
          return model->forward({{left}, {right}});
        });
    bool same = trained.loss == plain.loss;
    for (size_t i = 0; i < plain.parameters.size(); ++i) {
      same = same && torch::equal(trained.parameters[i], plain.parameters[i]);
    }
    const rt::StepReport report = model->last_step();
    const bool foretold = report.predicted_peak == report.measured_peak;
    print(std::string("at ") + budget, trained,
          std::string(same ? ", same bits" : ", other bits") +
              (foretold ? ", peak as predicted" : ", another peak than predicted"));
    if (!same || !foretold || report.measured_peak > report.budget) return 1;
  }
  return 0;
}
