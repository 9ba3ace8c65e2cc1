// The backward of some activations can ask their result instead of their input. Both leave the same
// bits.
#include "same_bits.h"

namespace reprise::runtime::testing {
namespace {

class BackwardByResult : public RuntimeTest {};

// Infinite numbers and NaNs stand at every place of a vector register and behind the last one.
TEST_F(BackwardByResult, TellsTheSideOfAKink) {
  const std::vector<Activation> all = {
      {"relu6", [](const at::Tensor& x) { return at::hardtanh(x, 0, 6); }, {0, 6}},
      {"relu6 over its input",
       [](const at::Tensor& x) {
         at::Tensor y = x * 1;
         return at::hardtanh_(y, 0, 6);
       },
       {0, 6}},
      {"hardtanh of odd bounds",
       [](const at::Tensor& x) { return at::hardtanh(x, -0.1, 0.3); },
       {-0.1, 0.3}},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.1); }, {0}},
      {"leaky_relu of no slope", [](const at::Tensor& x) { return at::leaky_relu(x, 0); }, {0}},
      // These activations have no backward by their result.
      {"leaky_relu that turns", [](const at::Tensor& x) { return at::leaky_relu(x, -1); }, {0}},
      {"hardtanh of one value", [](const at::Tensor& x) { return at::hardtanh(x, 1, 1); }, {1}},
  };
  Coverage coverage;
  for (const Activation& activation : all) {
    for (const auto& [type, scalar] : types()) {
      for (const int64_t length : {1, 7, 8, 33, 70, 1001}) {
        SCOPED_TRACE(fmt::format("{}, {}, {} elements", activation.name, type, length));
        at::Tensor x = around(activation.kinks, at::randn({length})).to(scalar);
        if (scalar != at::kBFloat16) {
          for (int64_t i = 1; i < length; i += 5) {
            x[i] = i % 3 == 0 ? std::nan("") : i % 3 == 1 ? INFINITY : -INFINITY;
          }
        }
        auto module = std::make_shared<nn::Module>();
        const at::Tensor weight = module->register_parameter("weight", at::randn({length}, scalar));
        expect_same_bits(
            module, {x.requires_grad_()},
            [&](const Tensors& in) {
              const at::Tensor loss = (activation.apply(in[0] * 1) * weight).sum();
              loss.backward();
              return Tensors{loss};
            },
            std::string(activation.name) + " in " + type, coverage, "backward-by-result");
      }
    }
  }
  for (size_t k = 0; k < all.size(); ++k) {
    for (const auto& [type, scalar] : types()) {
      const bool tells = k < 5 && scalar != at::kBFloat16;
      const std::string what = fmt::format("{} in {}", all[k].name, type);
      EXPECT_EQ(coverage.uses["backward-by-result of " + what] > 0, tells) << what;
    }
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
