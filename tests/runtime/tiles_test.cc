// Groups of element-wise operations that run tile by tile leave plain training's bits, in the predicted bytes:
// random chains with broadcast operands and masks, tails of every length, one thread and two. Derivatives that are
// kept in place of operands (nested Forward-AD) leave the same numbers up to rounding.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "same_bits.h"

namespace reprise::runtime::testing {
namespace {

at::Tensor tanh_gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + at::tanh(0.7978845608 * (x + 0.044715 * at::pow(x, 3))));
}
at::Tensor swish(const at::Tensor& x) { return x * at::sigmoid(x); }
at::Tensor hard_swish(const at::Tensor& x) { return x * at::hardtanh(x + 3, 0, 6) / 6; }
at::Tensor written_mish(const at::Tensor& x) { return x * at::tanh(at::softplus(x)); }
at::Tensor exact_gelu(const at::Tensor& x) { return 0.5 * x * (1 + at::erf(x * 0.70710678)); }

struct Written {
  const char* name;
  Function apply;
};
const std::vector<Written>& written_out() {
  static const std::vector<Written> all = {{"gelu", tanh_gelu},
                                           {"exact gelu", exact_gelu},
                                           {"swish", swish},
                                           {"hard-swish", hard_swish},
                                           {"mish", written_mish}};
  return all;
}

// A TwoLinears is two linear layers with a written-out activation between them.
struct TwoLinears : nn::Module {
  TwoLinears(int64_t width, int64_t inner)
      : first(register_module("first", nn::Linear(width, inner))),
        second(register_module("second", nn::Linear(inner, width))) {}
  nn::Linear first, second;
};

StepFunction block_step(const std::shared_ptr<TwoLinears>& block, const Function& activation) {
  return [=](const Tensors& in) {
    const at::Tensor y = block->second->forward(activation(block->first->forward(in[0])));
    const at::Tensor loss = y.square().mean();
    loss.backward();
    return Tensors{loss};
  };
}

class ThreadsScope {
 public:
  explicit ThreadsScope(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~ThreadsScope() { at::set_num_threads(before_); }

 private:
  const int before_;
};

// A RandomChain is a chain of random operations on tensors of one shape. The same seed makes the same
// chain.
struct RandomChain {
  uint64_t seed;
  int64_t length;
  std::vector<int64_t> shape;
  bool cut;            // soft-max in the middle
  bool alone = false;  // no operands but the chain's own

  at::Tensor apply(at::Tensor x, const at::Tensor& row, const at::Tensor& column,
                   const at::Tensor& mask) const {
    Random random(seed);
    std::vector<at::Tensor> made{x};
    for (int64_t k = 0; k < length; ++k) {
      const at::Tensor a = made.back();
      const at::Tensor& b =
          made[static_cast<size_t>(between(random, 0, static_cast<int64_t>(made.size()) - 1))];
      if (cut && k == length / 2)
        x = at::softmax(a, -1);
      else
        x = next(between(random, 0, alone ? 19 : 27), a, b, row, column, mask);
      made.push_back(x);
    }
    return x;
  }

  static at::Tensor next(int64_t which, const at::Tensor& a, const at::Tensor& b,
                         const at::Tensor& row, const at::Tensor& column, const at::Tensor& mask) {
    switch (which) {
      case 0:
        return at::tanh(a);
      case 1:
        return at::sigmoid(a);
      case 2:
        return at::exp(at::clamp(a, -3, 2));
      case 3:
        return at::relu(a);
      case 4:
        return at::hardtanh(a, -1, 2);
      case 5:
        return at::leaky_relu(a, 0.1);
      case 6:
        return at::softplus(a);
      case 7:
        return at::silu(a);
      case 8:
        return at::gelu(a, "tanh");
      case 9:
        return at::elu(a);
      case 10:
        return at::pow(a, 2);
      case 11:
        return at::log1p(at::abs(a));
      case 12:
        return at::erf(a);
      case 13:
        return a * 0.3;
      case 14:
        return 1.7 - a;
      case 15:
        return a / 1.3 + b;
      case 16:
        return a * b;
      case 17:
        return at::add(a, b, 0.7);
      case 18:
        return a / (b * b + 1);
      case 19:
        return at::where(a > 0.1, a, b);
      case 20:
        return a * row;
      case 21:
        return a + row;
      case 22:
        return a * column;
      case 23:
        return a * mask;
      case 24:
        return at::where(mask > 0, a, 0.5 * b);
      case 25:
        return (a.to(at::kBFloat16) * 0.3).to(a.scalar_type()) + b;
      case 26:
        return at::maximum(a, b);
      default:
        return a - b;
    }
  }
};

// The parameters of a chain: one number for all, one for each column, one for each row.
struct TileParameters : nn::Module {
  TileParameters(const std::vector<int64_t>& shape, at::ScalarType type) {
    shift = register_parameter("shift", at::randn({1}).to(type));
    row = register_parameter("row", (at::randn({shape.back()}) / 4 + 1).to(type));
    std::vector<int64_t> of_rows = shape;
    of_rows.back() = 1;
    column = register_parameter("column", (at::randn(of_rows) / 4 + 1).to(type));
  }
  at::Tensor shift, row, column;
};

StepFunction chain_step(const std::shared_ptr<TileParameters>& parameters, const RandomChain& chain) {
  return [=](const Tensors& in) {
    const at::Tensor y =
        chain.apply(in[0] + parameters->shift, parameters->row, parameters->column, in[1]);
    const at::Tensor loss = (y * in[2]).sum();
    loss.backward();
    return Tensors{loss};
  };
}

std::vector<int64_t> random_shape(Random& random, bool large) {
  if (large) return {between(random, 60, 90), between(random, 1000, 1100)};
  switch (between(random, 0, 3)) {
    case 0:
      return {between(random, 2, 20000)};
    case 1:
      return {between(random, 1, 200), between(random, 2, 120)};
    case 2:
      return {between(random, 1, 40), 256};
    default:
      return {between(random, 1, 6), between(random, 1, 12), between(random, 1, 9),
              between(random, 2, 70)};
  }
}

class Tiles : public RuntimeTest {};

TEST_F(Tiles, RandomChainsLeaveTheSameBits) {
  Random random(17);
  Coverage coverage;
  for (int k = 0; k < 48; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const bool two_threads = k % 4 == 3;
    const RandomChain chain{.seed = random(),
                      .length = between(random, 1, 12),
                      .shape = random_shape(random, two_threads),
                      .cut = between(random, 0, 3) == 0};
    SCOPED_TRACE(fmt::format("{}: {}, {} calls over {}, seed {}, {}", k, type, chain.length,
                             fmt::join(chain.shape, "x"), chain.seed,
                             two_threads ? "two threads" : "one thread"));
    const ThreadsScope threads(two_threads ? 2 : 1);
    auto parameters = std::make_shared<TileParameters>(chain.shape, scalar);
    const Tensors inputs{at::randn(chain.shape).to(scalar),
                         at::bernoulli(at::full(chain.shape, 0.7)).to(scalar),
                         at::randn(chain.shape).to(scalar)};
    expect_same_bits(parameters, inputs, chain_step(parameters, chain), type, coverage, "tiles");
  }
  for (const auto& [type, scalar] : types()) {
    EXPECT_GT(coverage.uses["tiles of " + type], 40U) << type;
  }
}

// Every length of a tail behind a multiple of what vectors and unrolled loops take.
TEST_F(Tiles, TailsOfEveryLength) {
  Coverage coverage;
  for (int64_t tail = 0; tail < 65; tail += 4) {
    SCOPED_TRACE(tail);
    const std::vector<int64_t> shape{8 * 512 + tail};
    auto parameters = std::make_shared<TileParameters>(shape, at::kFloat);
    const Tensors inputs{at::randn(shape)};
    const StepFunction step = [=](const Tensors& in) {
      const at::Tensor x = in[0] + parameters->shift;
      const at::Tensor loss = (written_mish(tanh_gelu(x)) * hard_swish(swish(x))).sum();
      loss.backward();
      return Tensors{loss};
    };
    expect_same_bits(parameters, inputs, step, "float32", coverage, "tiles");
  }
  EXPECT_GT(coverage.uses["tiles of float32"], 65U);
}

// Returns the bytes that ops of the realization write in the forward and read in the backward.
int64_t crossing_bytes(const Graph& graph, const Realization& realization) {
  std::set<ValueIndex> made, crossing;
  for (const OpIndex op : realization.ops) {
    const Variant& variant = graph.ops[static_cast<size_t>(op)].variants[0];
    if (graph.ops[static_cast<size_t>(op)].phase != Phase::kBackward) {
      made.insert(variant.writes.begin(), variant.writes.end());
    } else {
      std::ranges::copy_if(variant.reads, std::inserter(crossing, crossing.end()),
                           [&](ValueIndex v) { return made.contains(v); });
    }
  }
  int64_t sum = 0;
  for (const ValueIndex v : crossing) sum += graph.values[static_cast<size_t>(v)].bytes.count();
  return sum;
}

const AlternativeOptions& of_groups() {
  static const AlternativeOptions options{
      .only = {"tiles", "forward-ad"}, .without = {}, .allow = Exactness::kRounding};
  return options;
}

// The numbers are tensors of the operand's size that cross from the forward to the backward beside
// it: all that plain training keeps, nothing, a result that is dear to compute; and the derivative.
TEST_F(Tiles, RealizationsDifferInWhatCrosses) {
  const std::map<std::string, std::vector<int64_t>> tensors = {{"gelu", {3, 0, 1}},
                                                               {"exact gelu", {3, 0, 1}},
                                                               {"swish", {1, 0}},
                                                               {"hard-swish", {2, 0}},
                                                               {"mish", {1, 0}}};
  auto block = std::make_shared<TwoLinears>(32, 256);
  const Tensors inputs{at::randn({300, 32})};
  const int64_t bytes = 300 * 256 * 4;
  for (const Written& one : written_out()) {
    SCOPED_TRACE(one.name);
    const CapturedStep captured(block_step(block, one.apply), inputs,
                                {.measure = quick(), .alternatives = of_groups()});
    const Graph& graph = captured.graph();
    ASSERT_FALSE(graph.choices.empty());
    const Choice& choice = graph.choices.front();
    std::vector<int64_t> found;
    for (const size_t r : realizations_of(choice, "tiles")) {
      found.push_back(crossing_bytes(graph, choice.realizations[r]) / bytes);
    }
    EXPECT_EQ(found, tensors.at(one.name));
    ASSERT_EQ(realizations_of(choice, "forward-ad").size(), 1U);
    const size_t r = realizations_of(choice, "forward-ad")[0];
    EXPECT_EQ(crossing_bytes(graph, choice.realizations[r]), bytes);
    // One op names all operators of a group.
    const std::string& id = graph.ops[static_cast<size_t>(choice.realizations[r].ops.back())].id;
    EXPECT_NE(id.find(".multiply("), std::string::npos) << id;
  }
}

// A step that keeps derivatives leaves the same numbers up to rounding, in the predicted bytes.
void expect_near(const std::shared_ptr<nn::Module>& module, const Tensors& inputs,
                 const StepFunction& step, size_t& used) {
  const std::vector<Stage> stages{{"all", module, {}}};
  CapturedStep captured(step, inputs, {.measure = quick(), .alternatives = of_groups()});
  drop_gradients(stages, inputs);
  const StepResult expected = snapshot(stages, inputs, step(inputs)[0]);
  const Plan plan = forced(captured, "forward-ad", 0);
  used += uses(captured, plan, "forward-ad");
  captured.use(plan);
  for (int n = 0; n < 2; ++n) {
    drop_gradients(stages, inputs);
    const StepResult now = snapshot(stages, inputs, captured.run(inputs));
    EXPECT_EQ(apart(expected.loss, now.loss), 0);
    ASSERT_EQ(expected.gradients.size(), now.gradients.size());
    for (size_t g = 0; g < expected.gradients.size(); ++g) {
      EXPECT_LT(apart(expected.gradients[g], now.gradients[g]), 2e-6) << "gradient " << g;
    }
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
  }
}

TEST_F(Tiles, DerivativesOfWrittenOutActivations) {
  auto block = std::make_shared<TwoLinears>(32, 256);
  const Tensors inputs{at::randn({300, 32})};
  for (const Written& one : written_out()) {
    SCOPED_TRACE(one.name);
    size_t used = 0;
    expect_near(block, inputs, block_step(block, one.apply), used);
    EXPECT_EQ(used, 2U);
  }
}

// Two operands have two partial derivatives.
TEST_F(Tiles, DerivativesOfTwoOperands) {
  auto gate = std::make_shared<TwoLinears>(32, 256), up = std::make_shared<TwoLinears>(32, 256);
  auto both = std::make_shared<nn::Module>();
  both->register_module("gate", gate);
  both->register_module("up", up);
  const Tensors inputs{at::randn({300, 32})};
  size_t used = 0;
  expect_near(
      both, inputs,
      [=](const Tensors& in) {
        const at::Tensor y = swish(gate->first->forward(in[0])) * up->first->forward(in[0]);
        const at::Tensor loss = up->second->forward(y).square().mean();
        loss.backward();
        return Tensors{loss};
      },
      used);
  EXPECT_EQ(used, 2U);
}

TEST_F(Tiles, DerivativesOfRandomChains) {
  Random random(23);
  size_t used = 0;
  for (int k = 0; k < 24; ++k) {
    const bool two_threads = k % 4 == 3;
    const RandomChain chain{.seed = random(),
                      .length = between(random, 2, 8),
                      .shape = two_threads ? std::vector<int64_t>{between(random, 300, 400), 101}
                                           : std::vector<int64_t>{between(random, 2, 70),
                                                                  between(random, 20, 70)},
                      .cut = false,
                      .alone = true};
    SCOPED_TRACE(fmt::format("{}: {} calls over {}, seed {}", k, chain.length,
                             fmt::join(chain.shape, "x"), chain.seed));
    const ThreadsScope threads(two_threads ? 2 : 1);
    // The gradient of each element of the input: no sum hides or enlarges an error.
    expect_near(
        std::make_shared<nn::Module>(), {at::randn(chain.shape).requires_grad_()},
        [=](const Tensors& in) {
          const at::Tensor y = chain.apply(in[0], {}, {}, {});
          const at::Tensor loss = at::cumsum(y, -1).square().mean();
          loss.backward();
          return Tensors{loss};
        },
        used);
  }
  EXPECT_GT(used, 20U);
}

// Soft-max is not element-wise: the derivative of one element depends on others. It ends a group.
TEST_F(Tiles, SoftmaxHasNoDerivativeByElement) {
  auto block = std::make_shared<TwoLinears>(32, 256);
  const Tensors inputs{at::randn({300, 32})};
  const auto choices = [&](const Function& activation) {
    const CapturedStep captured(block_step(block, activation), inputs,
                                {.measure = quick(), .alternatives = of_groups()});
    size_t count = 0;
    for (const Choice& choice : captured.graph().choices) {
      count += realizations_of(choice, "forward-ad").size();
    }
    return count;
  };
  EXPECT_EQ(choices(swish), 1U);
  EXPECT_EQ(choices([](const at::Tensor& x) { return at::softmax(x, -1); }), 0U);
  EXPECT_EQ(choices([](const at::Tensor& x) { return swish(at::softmax(swish(x), -1)); }), 2U);
}

// With the budget of the smallest plan: a group that is made again in the backward's tile needs less.
TEST_F(Tiles, TakeMemory) {
  auto block = std::make_shared<TwoLinears>(16, 512);
  const Tensors inputs{at::randn({400, 16})};
  const auto least = [&](AlternativeOptions options) {
    CapturedStep captured(block_step(block, tanh_gelu), inputs,
                          {.measure = quick(), .alternatives = std::move(options)});
    const Bytes level = captured.graph().fixed;
    return (*plan(captured.graph(), {.budget = level, .planner = "graph"}).smallest_budget - level)
        .count();
  };
  EXPECT_LT(least(every_bitwise()), 0.9 * static_cast<double>(least({})));
}

}  // namespace
}  // namespace reprise::runtime::testing
