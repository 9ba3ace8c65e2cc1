// Perceptrons that run by blocks of rows leave plain training's bits, in the predicted bytes: rows that blocks do
// not divide, widths, activations, biases, dropout, one thread and two.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <random>

#include "runtime/rewrite/rows/column_sum.h"
#include "runtime/rewrite/rows/row_call.h"
#include "same_bits.h"

namespace reprise::runtime::testing {
namespace {

namespace F = torch::nn::functional;

constexpr const char* kName = "perceptron-by-rows";

class ByRows : public RuntimeTest {
 protected:
  ~ByRows() override { at::set_num_threads(1); }
};

// Linear layers around an activation. A gate has a layer of its own.
struct Perceptron : nn::Module {
  Perceptron(int64_t width, int64_t inner, bool bias, bool has_gate, at::ScalarType type) {
    const auto layer = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, nn::Linear(nn::LinearOptions(in, out).bias(bias)));
    };
    up = layer("up", width, inner);
    if (has_gate) gate = layer("gate", width, inner);
    down = layer("down", inner, width);
    to(type);
  }

  at::Tensor apply(const at::Tensor& x, const Function& activation, double dropout) {
    at::Tensor hidden = activation(up->forward(x));
    if (gate) hidden = hidden * gate->forward(x);
    if (dropout > 0) hidden = F::dropout(hidden, F::DropoutFuncOptions().p(dropout));
    return down->forward(hidden);
  }

  nn::Linear up{nullptr}, gate{nullptr}, down{nullptr};
};

struct PerceptronCase {
  int64_t rows = 500, width = 16, inner = 64;
  bool bias = true, gate = false, in_sequence = false;
  double dropout = 0;
  Activation activation = {"gelu", [](const at::Tensor& x) { return at::gelu(x); }, {}};
  at::ScalarType type = at::kFloat;
  int threads = 1;
};

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all = {
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }, {}},
      {"tanh gelu", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }, {}},
      {"written-out gelu",
       [](const at::Tensor& x) {
         return 0.5 * x * (1 + at::tanh(0.7978845608 * (x + 0.044715 * at::pow(x, 3))));
       },
       {}},
      {"relu", [](const at::Tensor& x) { return at::relu(x); }, {}},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }, {}},
      {"squared relu", [](const at::Tensor& x) { return at::relu(x).square(); }, {}},
  };
  return all;
}

StepFunction step_of(const std::shared_ptr<Perceptron>& perceptron, const PerceptronCase& one) {
  return [=](const Tensors& in) {
    // A norm in front, as in a transformer: the gradient of its operand is asked for.
    const at::Tensor x = at::tanh(in[0] * 0.9);
    const at::Tensor y = x + perceptron->apply(x, one.activation.apply, one.dropout);
    const at::Tensor loss = y.square().mean();
    loss.backward();
    return Tensors{loss};
  };
}

Tensors inputs_of(const PerceptronCase& one) {
  at::Tensor x = at::randn({one.rows, one.width}).to(one.type);
  if (one.in_sequence) x = x.view({2, one.rows / 2, one.width});
  return {x.requires_grad_()};
}

size_t realizations_in(const Graph& graph) {
  size_t count = 0;
  for (const Choice& choice : graph.choices) count += realizations_of(choice, kName).size();
  return count;
}

// Runs one step by the `pick`-th realization, on the heap and in the arena. Returns how many there
// are.
size_t expect_bits_by_rows(const std::shared_ptr<Perceptron>& perceptron, const Tensors& inputs,
                           const StepFunction& step, size_t pick) {
  const std::vector<Stage> stages{{"all", perceptron, {}}};
  const StepState state(stages, inputs);
  CapturedStep captured(step, inputs, {.measure = quick(), .alternatives = {.only = {kName}}});
  state.restore();
  drop_gradients(stages, inputs);
  const Bits expected = bits_now(stages, inputs, step(inputs)[0]);
  const size_t count = realizations_in(captured.graph());
  const Plan plan = forced(captured, kName, pick);
  EXPECT_EQ(uses(captured, plan, kName), count);
  captured.use(plan);
  expect_two_steps(captured, stages, inputs, state, expected, pick);
  state.restore();
  return count;
}

TEST_F(ByRows, PerceptronsLeaveTheSameBits) {
  std::mt19937_64 random(11);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  size_t used = 0;
  for (int k = 0; k < 10; ++k) {
    // The shares of two threads are whole vectors.
    const bool two_threads = k == 2 || k == 6;
    const PerceptronCase one{
        .rows = (two_threads ? 16 : 2) * between(two_threads ? 24 : 192, two_threads ? 60 : 450),
        .width = between(3, 30),
        .inner = two_threads ? 64 * between(1, 2) : 32 * between(2, 4),
        .bias = k % 3 != 0,
        .gate = k % 5 == 4,
        .in_sequence = k % 2 == 0,
        .dropout = k % 4 == 1 ? 0.1 : 0.0,
        .activation = activations()[static_cast<size_t>(k) % activations().size()],
        .type = k % 8 == 7 ? at::kDouble : at::kFloat,
        .threads = two_threads ? 2 : 1};
    SCOPED_TRACE(fmt::format("{}: {} rows, {} to {}, bias {}, gate {}, dropout {}, {}, {} threads",
                             k, one.rows, one.width, one.inner, one.bias, one.gate, one.dropout,
                             one.activation.name, one.threads));
    at::set_num_threads(one.threads);
    auto perceptron =
        std::make_shared<Perceptron>(one.width, one.inner, one.bias, one.gate, one.type);
    used += expect_bits_by_rows(perceptron, inputs_of(one), step_of(perceptron, one),
                                static_cast<size_t>(k) / 2 % 2) > 0;
  }
  EXPECT_GT(used, 7U);  // on some machines, some shapes have no blocks with the same bits
}

// A forward that keeps nothing, and one that keeps what the first product makes.
TEST_F(ByRows, RealizationsDifferInWhatCrosses) {
  const PerceptronCase one{.rows = 800, .width = 16, .inner = 256};
  auto perceptron = std::make_shared<Perceptron>(one.width, one.inner, true, false, one.type);
  const CapturedStep captured(step_of(perceptron, one), inputs_of(one),
                              {.measure = quick(), .alternatives = {.only = {kName}}});
  const Graph& graph = captured.graph();
  ASSERT_EQ(realizations_in(graph), 2U);
  const Choice& choice = graph.choices.front();
  std::vector<size_t> results;
  for (const size_t r : realizations_of(choice, kName)) {
    const Realization& realization = choice.realizations[r];
    ASSERT_EQ(realization.ops.size(), 2U);
    results.push_back(graph.ops[static_cast<size_t>(realization.ops[0])].variants[0].writes.size());
  }
  EXPECT_EQ(results, (std::vector<size_t>{1, 2}));
}

// All that plain training does with the hidden tensors takes a fraction of one of them.
TEST_F(ByRows, HiddenTensorsAreNeverThereAsAWhole) {
  const PerceptronCase one{.rows = 4096, .width = 8, .inner = 256, .activation = activations()[2]};
  auto perceptron = std::make_shared<Perceptron>(one.width, one.inner, true, false, one.type);
  const Tensors inputs = inputs_of(one);
  const auto least = [&](const AlternativeOptions& options) {
    CapturedStep captured(step_of(perceptron, one), inputs,
                          {.measure = quick(), .alternatives = options});
    const Bytes level = captured.graph().fixed;
    return (*plan(captured.graph(), {.budget = level, .planner = "graph"}).smallest_budget - level)
        .count();
  };
  const int64_t hidden = one.rows * one.inner * 4;
  EXPECT_GT(least({}), 2 * hidden);
  EXPECT_LT(least({.only = {kName}}), hidden);
}

// What others read of the inside must exist as a whole, and hidden tensors that are no wider than
// the operands save nothing.
TEST_F(ByRows, StaysAsItIsWhereTheHiddenTensorsAreReadOrNarrow) {
  const PerceptronCase one{.rows = 800};
  const auto found = [&](int64_t inner, bool is_read, bool is_written) {
    auto perceptron = std::make_shared<Perceptron>(one.width, inner, true, false, one.type);
    const at::Tensor shift = at::full({inner}, 0.3);
    const StepFunction step = [=](const Tensors& in) {
      const at::Tensor hidden = at::gelu(perceptron->up->forward(at::tanh(in[0])) + shift);
      at::Tensor loss = perceptron->down->forward(hidden).square().mean();
      if (is_read) loss = loss + at::softmax(hidden, -1).square().mean();
      if (is_written) {
        at::NoGradGuard no_grad;
        at::Tensor(shift).mul_(0.5);
      }
      loss.backward();
      return Tensors{loss};
    };
    const CapturedStep captured(step, inputs_of(one),
                                {.measure = quick(), .alternatives = {.only = {kName}}});
    return realizations_in(captured.graph());
  };
  EXPECT_EQ(found(64, false, false), 2U);
  EXPECT_EQ(found(64, true, false), 0U);
  EXPECT_EQ(found(64, false, true), 0U);
  EXPECT_EQ(found(16, false, false), 0U);
}

// Sums over blocks of any length have the order of ATen's sum of the whole.
TEST_F(ByRows, SumsOfRowsHaveTheSameBits) {
  std::mt19937_64 random(3);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t rows : {2, 15, 17, 255, 1000, 4096, 20003}) {
      for (const int64_t columns : {64, 32, 50, 101}) {
        SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
        const at::Tensor all = at::randn({rows, columns}).to(type);
        internal::rewrite::ColumnSum sum(rows, columns, all.options());
        for (int64_t first = 0; first < rows;) {
          const int64_t count = std::min<int64_t>(
              rows - first, std::uniform_int_distribution<int64_t>(1, rows)(random));
          sum.add(all.narrow(0, first, count));
          first += count;
        }
        at::Tensor result = at::empty({columns}, all.options());
        sum.finish(result);
        EXPECT_TRUE(at::equal(result, at::sum(all, {0})));
      }
    }
  }
}

TEST_F(ByRows, BlocksCoverEachRowOnce) {
  for (int64_t rows = 1; rows < 900; ++rows) {
    const internal::rewrite::RowBlocks blocks{rows, 192, 192};
    int64_t next = 0;
    internal::rewrite::for_each_block(blocks, [&](int64_t first, int64_t count) {
      EXPECT_EQ(first, next);
      EXPECT_EQ(first % 192, 0);
      EXPECT_TRUE(count >= 32 || rows < 32) << rows;
      EXPECT_LE(count, internal::rewrite::largest_block(blocks));
      next = first + count;
    });
    EXPECT_EQ(next, rows);
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
