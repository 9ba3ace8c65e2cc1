// Alternatives leave the bits of the operations that they stand for. The tests take random shapes,
// types and layouts, and every kind of number around the kinks of each activation.
#include <torch/torch.h>

#include <random>

#include "runtime/rewrite/norm/channel_norm.h"
#include "same_bits.h"

namespace reprise::runtime::testing {

using internal::rewrite::has_channel_norm;

namespace {

namespace F = torch::nn::functional;

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all = {
      {"relu", [](const at::Tensor& x) { return at::relu(x); }, {0}},
      {"relu6", [](const at::Tensor& x) { return at::hardtanh(x, 0, 6); }, {0, 6}},
      {"hardtanh", [](const at::Tensor& x) { return at::hardtanh(x); }, {-1, 1}},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.1); }, {0}},
      {"relu6 over its input",
       [](const at::Tensor& x) {
         at::Tensor y = x * 1;
         return at::hardtanh_(y, 0, 6);
       },
       {0, 6}},
      {"leaky_relu of no slope", [](const at::Tensor& x) { return at::leaky_relu(x, 0); }, {0}},
      {"leaky_relu that turns", [](const at::Tensor& x) { return at::leaky_relu(x, -1); }, {0}},
      {"elu", [](const at::Tensor& x) { return at::elu(x); }, {0, -88}},
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }, {0, 5}},
      {"gelu of tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }, {0, 5}},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }, {0, -88}},
      {"mish", [](const at::Tensor& x) { return at::mish(x); }, {0, 20}},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }, {0, 9}},
      {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }, {0, -88, 88}},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x); }, {0, 20}},
      {"hardswish", [](const at::Tensor& x) { return at::hardswish(x); }, {-3, 0, 3}},
      {"hardsigmoid", [](const at::Tensor& x) { return at::hardsigmoid(x); }, {-3, 3}},
      {"dropout", [](const at::Tensor& x) { return at::dropout(x, 0.4, true); }, {0}},
      {"exp", [](const at::Tensor& x) { return at::exp(x); }, {0, 88}},
      {"square root", [](const at::Tensor& x) { return at::sqrt(x.abs() + 1e-3); }, {0}},
      {"soft-max", [](const at::Tensor& x) { return at::softmax(x, -1); }, {0}},
      {"log-soft-max", [](const at::Tensor& x) { return at::log_softmax(x, 1 % x.dim()); }, {0}},
  };
  return all;
}

at::Tensor laid_out(const at::Tensor& x, int64_t layout) {
  if (layout == 1 && x.dim() == 4) return x.contiguous(at::MemoryFormat::ChannelsLast);
  if (layout == 2 && x.dim() >= 2) return x.transpose(0, 1).contiguous().transpose(0, 1);
  return x.contiguous();
}

class AlternativesProperty : public RuntimeTest {};

TEST_F(AlternativesProperty, ActivationsAroundTheirKinks) {
  Random random(3);
  Coverage coverage;
  for (const Activation& activation : activations()) {
    for (const auto& [type, scalar] : types()) {
      const int64_t layout = between(random, 0, 2);
      std::vector<int64_t> shape{between(random, 1, 5), between(random, 2, 40)};
      if (between(random, 0, 1) == 1) {
        shape.push_back(between(random, 1, 9));
        shape.push_back(between(random, 1, 9));
      }
      SCOPED_TRACE(fmt::format("{}, {}, layout {}, {}", activation.name, type, layout,
                               fmt::join(shape, "x")));
      const at::Tensor x = laid_out(around(activation.kinks, at::randn(shape)).to(scalar), layout);
      auto module = std::make_shared<nn::Module>();
      const at::Tensor shift = module->register_parameter("shift", at::zeros({1}, x.options()));
      expect_same_bits(
          module, {x},
          [&](const Tensors& in) {
            // The activation runs twice: the backward reads the first result, and the second one
            // ends here.
            const at::Tensor y = activation.apply(activation.apply(in[0] + shift) - shift);
            const at::Tensor loss = (y * y).sum();
            loss.backward();
            return Tensors{loss};
          },
          type, coverage);
    }
  }
  for (const auto& [type, scalar] : types()) {
    EXPECT_GT(coverage.uses["in-place of " + type], activations().size()) << type;
  }
}

TEST_F(AlternativesProperty, LayersOfRandomShapes) {
  Random random(4);
  Coverage coverage;
  const int count = 24;
  for (int k = 0; k < count; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const int64_t groups = between(random, 1, 3), channels = groups * between(random, 1, 6);
    const int64_t outputs = groups * between(random, 1, 5), kernel = between(random, 1, 3);
    const int64_t side = between(random, 4, 11), batch = between(random, 1, 5);
    const int64_t layout = between(random, 0, 1);
    SCOPED_TRACE(fmt::format("{}: {}, {}x{}x{}x{} to {}, {} groups, kernel {}, layout {}", k, type,
                             batch, channels, side, side + 1, outputs, groups, kernel, layout));
    nn::Sequential model(
        nn::Conv2d(nn::Conv2dOptions(channels, outputs, kernel)
                       .groups(groups)
                       .stride(between(random, 1, 2))
                       .padding(between(random, 0, 1))
                       .bias(between(random, 0, 1) == 1)),
        nn::BatchNorm2d(nn::BatchNorm2dOptions(outputs).affine(between(random, 0, 3) > 0)),
        nn::SiLU(), nn::GroupNorm(nn::GroupNormOptions(groups, outputs)), nn::ReLU(),
        nn::Conv2d(nn::Conv2dOptions(outputs, 7, 1)));
    model->to(scalar);
    const at::Tensor x = laid_out(at::randn({batch, channels, side, side + 1}).to(scalar), layout);
    const bool ignored = between(random, 0, 1) == 1, summed = between(random, 0, 1) == 1;
    auto step = [&](const Tensors& in) {
      const at::Tensor y = model->forward(in[0]);
      auto options = F::CrossEntropyFuncOptions();
      if (ignored) options.ignore_index(2);
      if (summed) options.reduction(torch::kSum);
      const at::Tensor loss = F::cross_entropy(y, in[1], options);
      loss.backward();
      return Tensors{loss};
    };
    at::Tensor shape_probe;
    {
      at::NoGradGuard no_grad;
      model->eval();
      shape_probe = model->forward(x);
      model->train();
    }
    const at::Tensor target =
        at::randint(7, {batch, shape_probe.size(2), shape_probe.size(3)}, at::kLong);
    expect_same_bits(model.ptr(), {x, target}, step, type, coverage);
  }
  for (const AlternativeInfo& kind : alternatives()) {
    if (!kind.in_graph || kind.exactness != Exactness::kBitwise) continue;
    if (std::set<std::string>{"backward-by-result", "convolution-by-samples", "copied-part",
                              "cross-entropy-from-logits", "fused-regions", "late-gradient",
                              "linear-cross-entropy-by-rows", "one-bit-mask", "perceptron-by-rows",
                              "small-indices", "tiles"}
            .contains(kind.name)) {
      continue;  // in the other tests
    }
    if (kind.name == "two-step-batch-norm" && !has_channel_norm()) continue;
    EXPECT_GT(coverage.uses[kind.name + " of float32"], 0U) << kind.name;
  }
}

// The logits come in the type of the layer, and the loss is that of float32 or float64. Some steps
// use the logits for something else, too.
TEST_F(AlternativesProperty, CrossEntropiesFromLogits) {
  Random random(10);
  Coverage coverage;
  for (int k = 0; k < 24; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const int64_t rows = between(random, 1, 90), classes = between(random, 2, 300);
    const bool ignored = k % 2 == 0, summed = k % 5 == 0;
    const bool read = scalar != at::kBFloat16 || k % 4 == 0;
    SCOPED_TRACE(fmt::format("{}: {}, {}x{}{}", k, type, rows, classes, read ? ", read" : ""));
    auto module = std::make_shared<nn::Module>();
    // A product of matrices, so that `tiles` does not take the casts behind it.
    const at::Tensor weight =
        module->register_parameter("weight", at::randn({8, classes}).to(scalar));
    at::Tensor target = at::randint(classes, {rows}, at::kLong);
    if (ignored) target[rows / 2] = 1;
    expect_same_bits(
        module, {at::randn({rows, 8}).to(scalar), target},
        [&, wide = scalar == at::kBFloat16 ? at::kFloat : scalar](const Tensors& in) {
          const at::Tensor logits = at::mm(in[0], weight);
          const at::Tensor loss =
              at::nll_loss(at::log_softmax(logits.to(wide), 1), in[1], {},
                           summed ? at::Reduction::Sum : at::Reduction::Mean, ignored ? 1 : -100);
          loss.backward();
          return read ? Tensors{loss, logits.detach().argmax(1)} : Tensors{loss};
        },
        type + (read ? " read" : ""), coverage, k % 3 == 2 ? "" : "cross-entropy-from-logits");
  }
  for (const char* type : {"float32 read", "bfloat16", "bfloat16 read"}) {
    EXPECT_GT(coverage.uses[fmt::format("cross-entropy-from-logits of {}", type)], 0U) << type;
  }
}

// These factors look like dropout's and are not. An alternative would put other factors in their
// place.
TEST_F(AlternativesProperty, FactorsThatAreNoneOfDropout) {
  const std::vector<std::pair<const char*, Function>> factors = {
      {"rounded",
       [](const at::Tensor& x) { return at::empty_like(x).bernoulli_(0.5).div_(0.6, "floor"); }},
      {"negative",
       [](const at::Tensor& x) { return at::empty_like(x).bernoulli_(0.5).div_(-0.5); }},
      {"no numbers", [](const at::Tensor& x) { return at::empty_like(x).bernoulli_(0.5).div_(0); }},
      {"drawn in part",
       [](const at::Tensor& x) {
         at::Tensor all = at::full_like(x, 3);
         all.narrow(0, 0, 1).bernoulli_(0.5);
         return all.div_(0.5);
       }},
  };
  Coverage coverage;
  for (const auto& [name, draw] : factors) {
    SCOPED_TRACE(name);
    auto module = std::make_shared<nn::Module>();
    const at::Tensor shift = module->register_parameter("shift", at::zeros({1}));
    expect_same_bits(
        module, {at::randn({4, 300}).requires_grad_()},
        [&, make = draw](const Tensors& in) {
          const at::Tensor y = in[0] + shift;
          const at::Tensor loss = at::tanh(y * make(y.detach())).sum();
          loss.backward();
          return Tensors{loss};
        },
        name, coverage);
  }
}

// These layers have more weights than activations.
TEST_F(AlternativesProperty, NarrowLayersOfRandomShapes) {
  Random random(6);
  Coverage coverage;
  for (int k = 0; k < 15; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const int64_t channels = between(random, 6, 20), outputs = between(random, 6, 20);
    const int64_t side = between(random, 1, 3), batch = between(random, 2, 3);
    SCOPED_TRACE(fmt::format("{}: {}, {}x{}x{}x{} to {}", k, type, batch, channels, side, side + 1,
                             outputs));
    nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(channels, outputs, 3).padding(1)),
                         nn::BatchNorm2d(outputs), nn::SiLU(),
                         nn::Conv2d(nn::Conv2dOptions(outputs, outputs, 3).padding(1)), nn::ReLU(),
                         nn::Flatten(), nn::Linear(outputs * side * (side + 1), 9));
    model->to(scalar);
    expect_same_bits(
        model.ptr(), {at::randn({batch, channels, side, side + 1}).to(scalar)},
        [&](const Tensors& in) {
          const at::Tensor loss = model->forward(in[0]).square().mean();
          loss.backward();
          return Tensors{loss};
        },
        type, coverage, k % 2 == 0 ? "" : "late-gradient");
  }
  for (const auto& [type, scalar] : types()) {
    EXPECT_GT(coverage.uses["late-gradient of " + type], 0U) << type;
  }
}

// These convolutions have more samples than weights and one to three dimensions, there and back.
// Some weights want no gradient, some numbers are NaN, and some inputs are one sample again and
// again.
TEST_F(AlternativesProperty, ConvolutionsOfManySamples) {
  Random random(9);
  Coverage coverage;
  for (int k = 0; k < 36; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const bool transposed = k % 4 == 3, frozen = k % 5 == 4;
    const auto dimensions = static_cast<size_t>(k / 3 % 4 == 0 ? between(random, 0, 1) * 2 + 1 : 2);
    const int64_t groups = between(random, 1, 3);
    const int64_t inner = groups * between(random, 1, 6), outer = groups * between(random, 1, 6);
    const std::vector<int64_t> window(dimensions, between(random, 1, 3)),
        stride(dimensions, between(random, 1, 2)), padding(dimensions, between(random, 0, 1)),
        dilation(dimensions, between(random, 1, 2)), none(dimensions, 0);
    std::vector<int64_t> shape{between(random, 2, 40), inner};
    const int64_t sides[] = {800, 30, 11};
    for (size_t d = 0; d < dimensions; ++d) {
      shape.push_back(sides[dimensions - 1] + between(random, 0, 3));
    }
    SCOPED_TRACE(fmt::format("{}: {}, {} to {}, window {}, stride {}, {} groups{}{}", k, type,
                             fmt::join(shape, "x"), outer, window[0], stride[0], groups,
                             transposed ? ", transposed" : "", frozen ? ", frozen" : ""));
    std::vector<int64_t> weights = window;
    weights.insert(weights.begin(),
                   {transposed ? inner : outer, (transposed ? outer : inner) / groups});
    auto module = std::make_shared<nn::Module>();
    const at::Tensor weight =
        module->register_parameter("weight", at::randn(weights).to(scalar), !frozen);
    const at::Tensor bias =
        module->register_parameter("bias", at::randn({outer}).to(scalar), !frozen);
    at::Tensor x = at::randn(shape).to(scalar);
    if (k % 7 == 6) x.flatten()[5] = std::nan(""), x.flatten()[77] = INFINITY;
    const bool expanded = k % 9 == 8;
    expect_same_bits(
        module, {x.requires_grad_()},
        [&](const Tensors& in) {
          at::Tensor z = at::tanh(in[0]);
          if (expanded) z = z.narrow(0, 1, 1).expand(shape);
          const at::Tensor y = at::convolution(z, weight, k % 2 == 0 ? bias : at::Tensor(), stride,
                                               padding, dilation, transposed, none, groups);
          const at::Tensor loss = (y * y).sum();
          loss.backward();
          return Tensors{loss};
        },
        type + (frozen ? " frozen" : ""), coverage,
        between(random, 0, 1) == 0 ? "" : "convolution-by-samples");
  }
  EXPECT_GT(coverage.uses["convolution-by-samples of float32"], 4U);
  EXPECT_GT(coverage.uses["convolution-by-samples of float32 frozen"], 0U);
  // bfloat16 has too few bits to show another order.
  EXPECT_EQ(coverage.uses["convolution-by-samples of bfloat16"], 0U);
}

// A long skip connection leads around layers. The gradient of the concatenation is cut, along any
// dimension.
TEST_F(AlternativesProperty, SkipsOfRandomShapes) {
  Random random(5);
  Coverage coverage;
  for (int k = 0; k < 24; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    std::vector<int64_t> shape{between(random, 1, 4), between(random, 1, 5), between(random, 2, 9),
                               between(random, 2, 9)};
    const int64_t along = between(random, 0, 3), layout = between(random, 0, 2);
    SCOPED_TRACE(fmt::format("{}: {}, {}, along {}, layout {}", k, type, fmt::join(shape, "x"),
                             along, layout));
    auto module = std::make_shared<nn::Module>();
    const at::Tensor scale = module->register_parameter("scale", at::randn({1}).to(scalar));
    const at::Tensor x = laid_out(at::randn(shape).to(scalar), layout);
    expect_same_bits(
        module, {x},
        [&](const Tensors& in) {
          const at::Tensor before = at::silu(in[0] * scale);
          const at::Tensor inner = at::tanh(at::gelu(before * scale));
          // The part ends with a function, whose numbers must stay where they are, or with a sum,
          // whose numbers need not.
          const at::Tensor other = k / 3 % 2 == 0 ? at::gelu(at::silu(before)) : before;
          const at::Tensor joined = at::sigmoid(at::cat({inner, other}, along));
          const at::Tensor loss = (joined * joined * scale).sum();
          loss.backward();
          return Tensors{loss};
        },
        type, coverage, k % 4 == 0 ? "" : "copied-part");
  }
  for (const auto& [type, scalar] : types()) {
    EXPECT_GT(coverage.uses["copied-part of " + type], 0U) << type;
  }
}

// Masks and indices are kept in fewer bits. Numbers around the kinks, infinite numbers and NaNs get
// gradients of their own. The gradients of the input look the same.
TEST_F(AlternativesProperty, KeptInFewerBits) {
  Random random(8);
  Coverage coverage;
  const std::vector<Activation> kinked = {
      {"relu", [](const at::Tensor& x) { return at::relu(x); }, {0}},
      {"threshold", [](const at::Tensor& x) { return at::threshold(x, -0.5, 3); }, {-0.5}},
      {"relu6", [](const at::Tensor& x) { return at::hardtanh(x, 0, 6); }, {0, 6}},
      {"hardtanh", [](const at::Tensor& x) { return at::hardtanh(x, -0.3, 1); }, {-0.3, 1}},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.2); }, {0}},
      {"steep leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 3.0); }, {0}},
      {"dropout", [](const at::Tensor& x) { return at::dropout(x, 0.3, true); }, {0}},
      {"wild dropout", [](const at::Tensor& x) { return at::dropout(x, 0.999, true); }, {0}},
  };
  for (int k = 0; k < 72; ++k) {
    const auto& [type, scalar] = types()[static_cast<size_t>(k) % types().size()];
    const Activation& activation = kinked[static_cast<size_t>(k / 3) % kinked.size()];
    const bool in_space = between(random, 0, 2) == 0, adaptive = between(random, 0, 2) == 0;
    std::vector<int64_t> shape{between(random, 1, 5), between(random, 1, 5)};
    for (int d = 0; d < (in_space ? 3 : 2); ++d) shape.push_back(between(random, 4, 17));
    if (k % 8 == 7) shape = {3, 7, 96, 97};  // several blocks, several threads
    const int64_t layout = between(random, 0, 2), size = between(random, 2, 3);
    const int64_t stride = between(random, 1, 3), padding = between(random, 0, 1);
    SCOPED_TRACE(fmt::format("{}: {}, {}, {}, layout {}", k, activation.name, type,
                             fmt::join(shape, "x"), layout));
    at::Tensor x = around(activation.kinks, at::randn(shape).to(scalar));
    const auto strew = [&](const at::Tensor& numbers) {
      const double infinity = std::numeric_limits<double>::infinity();
      for (int n = 0; n < 9; ++n) {
        const int64_t at = between(random, 0, numbers.numel() - 1);
        numbers.flatten()[at] = n % 3 == 0 ? infinity : n % 3 == 1 ? -infinity : std::nan("");
      }
    };
    if (k % 2 == 0) strew(x);
    x = laid_out(x, layout).requires_grad_();
    auto module = std::make_shared<nn::Module>();
    const at::Tensor shift = module->register_parameter("shift", at::zeros({1}, x.options()));
    at::Tensor weights;
    expect_same_bits(
        module, {x},
        [&](const Tensors& in) {
          at::Tensor y = activation.apply(in[0] + shift);
          if (in_space && adaptive) {
            y = std::get<0>(at::adaptive_max_pool3d(y, {2, 3, 2}));
          } else if (in_space) {
            y = at::max_pool3d(y, size, stride, padding);
          } else if (adaptive) {
            y = std::get<0>(at::adaptive_max_pool2d(y, {3, 2}));
          } else {
            y = at::max_pool2d(y, size, stride, padding);
          }
          // The gradients have numbers of all kinds.
          if (!weights.defined()) {
            weights = at::randn(y.sizes()).to(scalar);
            if (k % 4 >= 2) strew(weights);
          }
          const at::Tensor loss = (y * weights).sum();
          loss.backward();
          return Tensors{loss};
        },
        activation.name, coverage,
        between(random, 0, 2) == 0   ? ""
        : between(random, 0, 1) == 0 ? "one-bit-mask"
                                     : "small-indices");
  }
  for (const Activation& activation : kinked) {
    for (const char* kind : {"one-bit-mask", "small-indices"}) {
      EXPECT_GT(coverage.uses[fmt::format("{} of {}", kind, activation.name)], 0U)
          << kind << " of " << activation.name;
    }
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
