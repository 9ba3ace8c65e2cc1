// Operators do not read the bytes that runtime/step/operators.cc says they do not read.
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

// Every row of the table of arguments that are read for their shape (operators.cc) is tried: other
// bytes in such an argument change nothing.
TEST(CaptureOperators, ArgumentsReadForTheirShapeMayHoldAnything) {
  auto same = [](const char* name, auto&& run, const at::Tensor& self) {
    SCOPED_TRACE(name);
    const at::Tensor expected = run(self);
    EXPECT_TRUE(expected.equal(run(at::full_like(self, NAN))));
    EXPECT_FALSE(expected.isnan().any().item<bool>());
  };
  const at::Tensor x = at::randn({2, 3, 8, 8}), cube = at::randn({2, 3, 4, 4, 4});
  const auto [y, where] = at::max_pool2d_with_indices(x, {2, 2});
  const at::Tensor g = at::randn_like(y), small = at::randn({2, 3, 2, 2, 2});
  const at::Tensor where2d = where;
  same(
      "max_pool2d",
      [&](const at::Tensor& self) {
        return at::max_pool2d_with_indices_backward(g, self, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false,
                                                    where2d);
      },
      x);
  const at::Tensor where3d = std::get<1>(at::max_pool3d_with_indices(cube, {2, 2, 2}));
  same(
      "max_pool3d",
      [&](const at::Tensor& self) {
        return at::max_pool3d_with_indices_backward(small, self, {2, 2, 2}, {2, 2, 2}, {0, 0, 0},
                                                    {1, 1, 1}, false, where3d);
      },
      cube);
  same(
      "avg_pool2d",
      [&](const at::Tensor& self) {
        return at::avg_pool2d_backward(g, self, {2, 2}, {2, 2}, {0, 0}, false, true, std::nullopt);
      },
      x);
  same(
      "avg_pool3d",
      [&](const at::Tensor& self) {
        return at::avg_pool3d_backward(small, self, {2, 2, 2}, {2, 2, 2}, {0, 0, 0}, false, true,
                                       std::nullopt);
      },
      cube);
  same(
      "adaptive_avg_pool2d",
      [&](const at::Tensor& self) { return at::_adaptive_avg_pool2d_backward(g, self); }, x);
  same(
      "adaptive_avg_pool3d",
      [&](const at::Tensor& self) { return at::_adaptive_avg_pool3d_backward(small, self); }, cube);
  const at::Tensor adaptive = std::get<1>(at::adaptive_max_pool2d(x, {4, 4}));
  same(
      "adaptive_max_pool2d",
      [&](const at::Tensor& self) { return at::adaptive_max_pool2d_backward(g, self, adaptive); },
      x);
  const at::Tensor weight = at::ones({}), count = at::full({}, 5.0F);
  same(
      "nll_loss",
      [&](const at::Tensor& self) {
        return at::nll_loss_backward(weight, self, longs({0, 6, 3, 2, 1}), {}, at::Reduction::Mean,
                                     -100, count);
      },
      at::randn({5, 7}));
  const at::Tensor classes = at::randint(0, 3, {2, 8, 8});
  same(
      "nll_loss2d",
      [&](const at::Tensor& self) {
        return at::nll_loss2d_backward(weight, self, classes, {}, at::Reduction::Mean, -100,
                                       at::full({}, 128.0F));
      },
      x);
  same(
      "zeros_like", [](const at::Tensor& self) { return at::zeros_like(self); }, x);
  same(
      "ones_like", [](const at::Tensor& self) { return at::ones_like(self); }, x);
  same(
      "full_like", [](const at::Tensor& self) { return at::full_like(self, 3); }, x);
  same(
      "empty_like", [](const at::Tensor& self) { return at::empty_like(self).fill_(1); }, x);
  same(
      "new_zeros", [](const at::Tensor& self) { return self.new_zeros({3}); }, x);
  same(
      "new_ones", [](const at::Tensor& self) { return self.new_ones({3}); }, x);
  same(
      "new_full", [](const at::Tensor& self) { return self.new_full({3}, 2); }, x);
  same(
      "new_empty", [](const at::Tensor& self) { return self.new_empty({3}).fill_(1); }, x);
  same(
      "new_empty_strided",
      [](const at::Tensor& self) { return self.new_empty_strided({3}, {1}).fill_(1); }, x);
  same(
      "rand_like",
      [](const at::Tensor& self) {
        at::manual_seed(1);
        return at::rand_like(self);
      },
      x);
  same(
      "randn_like",
      [](const at::Tensor& self) {
        at::manual_seed(1);
        return at::randn_like(self);
      },
      x);
}

TEST(CaptureOperators, BackwardsThatLeaveAPartOutDoNotReadWhatOnlyThatPartNeeds) {
  const at::Tensor x = at::randn({2, 4, 8, 8}), w = at::randn({6, 4, 3, 3}),
                   g = at::randn({2, 6, 8, 8});
  auto backward = [&](const at::Tensor& input, const at::Tensor& weight, std::array<bool, 3> mask) {
    return at::convolution_backward(g, input, weight, std::nullopt, {1, 1}, {1, 1}, {1, 1}, false,
                                    {0, 0}, 1, mask);
  };
  const at::Tensor no_input = at::full_like(x, NAN), no_weight = at::full_like(w, NAN);
  EXPECT_TRUE(std::get<0>(backward(x, w, {true, false, false}))
                  .equal(std::get<0>(backward(no_input, w, {true, false, false}))));
  EXPECT_TRUE(std::get<1>(backward(x, w, {false, true, false}))
                  .equal(std::get<1>(backward(x, no_weight, {false, true, false}))));
  const at::Tensor scale = at::randn({4}), mean = at::randn({4}), inverse = at::rand({4}) + 1;
  auto norm = [&](const at::Tensor& statistics) {
    return std::get<0>(at::native_batch_norm_backward(
        x, x.sin(), scale, statistics, statistics, mean, inverse, true, 1e-5, {true, true, true}));
  };
  EXPECT_TRUE(norm(at::rand({4})).equal(norm(at::full({4}, NAN))));
}

}  // namespace
}  // namespace reprise::runtime::testing
