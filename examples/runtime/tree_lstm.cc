// A network of another shape at each step, in one budget: a TreeLSTM learns to compute expressions.
//
// Each step draws an expression, such as max(a, min(b, c)), and a batch of digits for its letters. The
// network follows the expression by recursion. Its answer is compared with the right one.
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <random>
#include <utility>

namespace rt = reprise::runtime;

namespace {

constexpr int64_t kDigits = 5, kWidth = 64, kBatch = 256;
constexpr int kLeaves = 8, kSteps = 250;

// An operator with two operands, or a leaf: a digit for each row of the batch.
struct Tree {
  torch::Tensor leaf;
  int64_t op = 0;  // 0: the larger one, 1: the smaller one
  std::unique_ptr<Tree> left, right;
};
using TreePtr = std::unique_ptr<Tree>;

TreePtr draw(std::mt19937& chance, int leaves) {
  auto tree = std::make_unique<Tree>();
  if (leaves == 1) {
    tree->leaf = torch::randint(kDigits, {kBatch}, torch::kLong);
    return tree;
  }
  const int first = 1 + static_cast<int>(chance() % static_cast<unsigned>(leaves - 1));
  tree->op = static_cast<int64_t>(chance() % 2);
  tree->left = draw(chance, first);
  tree->right = draw(chance, leaves - first);
  return tree;
}

torch::Tensor answer(const Tree& tree) {
  if (tree.leaf.defined()) return tree.leaf;
  const torch::Tensor left = answer(*tree.left), right = answer(*tree.right);
  return tree.op == 0 ? torch::maximum(left, right) : torch::minimum(left, right);
}

// A binary TreeLSTM (Tai, Socher and Manning 2015) whose operators have biases of their own.
struct TreeLstmImpl : torch::nn::Module {
  TreeLstmImpl() {
    register_module("digits", digits);
    register_module("gates", gates);
    register_module("head", head);
    operators = register_parameter("operators", torch::zeros({2, 5 * kWidth}));
  }
  // [recursion]
  // Returns the hidden state and the cell of an expression.
  std::pair<torch::Tensor, torch::Tensor> follow(const Tree& tree) {
    if (tree.leaf.defined()) {
      const auto halves = digits(tree.leaf).chunk(2, 1);
      return {halves[0], halves[1]};
    }
    const auto [left, left_cell] = follow(*tree.left);
    const auto [right, right_cell] = follow(*tree.right);
    const auto gate = (gates(torch::cat({left, right}, 1)) + operators[tree.op]).chunk(5, 1);
    const torch::Tensor cell = gate[0].sigmoid() * gate[4].tanh() + gate[1].sigmoid() * left_cell +
                               gate[2].sigmoid() * right_cell;
    return {gate[3].sigmoid() * cell.tanh(), cell};
  }
  // [/recursion]
  torch::Tensor forward(const Tree& tree) { return head(follow(tree).first); }

  torch::nn::Embedding digits{kDigits, 2 * kWidth};
  torch::nn::Linear gates{2 * kWidth, 5 * kWidth}, head{kWidth, kDigits};
  torch::Tensor operators;
};
TORCH_MODULE(TreeLstm);

}  // namespace

int main() {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  torch::manual_seed(0);
  std::mt19937 chance(0);
  TreeLstm model;
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  const auto draw_one = [&] {
    return draw(chance, 2 + static_cast<int>(chance() % static_cast<unsigned>(kLeaves - 1)));
  };
  const auto step = [&](const Tree& tree) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::cross_entropy_loss(model->forward(tree), answer(tree));
    loss.backward();
    optimizer.step();
    return loss.detach();
  };

  // Plain training's peak, with a largest expression. The budget is half of it.
  step(*draw(chance, kLeaves));
  rt::reset_peak(torch::kCPU);
  step(*draw(chance, kLeaves));
  const int64_t plain = rt::memory_count(torch::kCPU).peak;
  // [train]
  rt::Online online({.budget = reprise::Bytes(plain / 2)});
  int64_t evictions = 0;
  for (int number = 1; number <= kSteps; ++number) {
    const TreePtr tree = draw_one();
    const torch::Tensor loss = online.run([&] { return step(*tree); });
    evictions += online.last_step().evictions;
    if (number % 50 == 0) std::cout << "step " << number << ": loss " << loss.item<float>() << "\n";
  }
  // [/train]

  const torch::NoGradGuard no_grad;
  int64_t right = 0, total = 0;
  for (int n = 0; n < 50; ++n, total += kBatch) {
    const TreePtr tree = draw_one();
    right += (model->forward(*tree).argmax(1) == answer(*tree)).sum().item<int64_t>();
  }
  std::cout << "plain training: " << plain << " B, the budget: half of it, " << evictions
            << " evictions\nright answers on new expressions: " << 100 * right / total << " %\n";
  return right * 100 > total * 90 && evictions > 0 ? 0 : 1;  // Chance has 20 %.
}
