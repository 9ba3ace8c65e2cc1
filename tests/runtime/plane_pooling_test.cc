// The kernels of max pooling find ATen's maxima, in ATen's places, and leave the bits of its backward.
#include "runtime/rewrite/activation/plane_pooling.h"

#include <limits>
#include <random>

#include "fixture.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::testing {

using internal::rewrite::PlanePooling;
using internal::rewrite::pool_plane;
using internal::rewrite::pool_plane_backward;
using internal::state::bitwise_equal;

namespace {

struct PoolingCase {
  int64_t samples = 1, channels = 1;
  PlanePooling pooling;
  bool ceil = false, special = false;
};

// Makes numbers with many ties and, if asked for, with NaN, infinite numbers and zeros of both
// signs.
at::Tensor numbers(at::IntArrayRef sizes, bool special) {
  at::Tensor x = at::randn(sizes).mul_(4).round_().div_(4);
  if (!special) return x;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> some{std::numeric_limits<float>::quiet_NaN(),
                                -kInfinity,
                                kInfinity,
                                -0.0F,
                                0.0F,
                                -kInfinity,
                                -kInfinity};
  float* const data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i += 2)
    data[i] = some[static_cast<size_t>(i / 2) % some.size()];
  return x;
}

template <class Place>
void expect_what_aten_finds(const PoolingCase& c) {
  PlanePooling pooling = c.pooling;
  auto& [rows, columns] = pooling;
  const at::Tensor input = numbers({c.samples, c.channels, rows.input, columns.input}, c.special);
  const std::vector<int64_t> kernel{rows.kernel, columns.kernel},
      stride{rows.stride, columns.stride};
  const std::vector<int64_t> padding{rows.padding, columns.padding};
  const std::vector<int64_t> dilation{rows.dilation, columns.dilation};
  const auto [output, places] =
      at::max_pool2d_with_indices(input, kernel, stride, padding, dilation, c.ceil);
  rows.output = output.size(2);
  columns.output = output.size(3);
  const at::Tensor gradient = at::randn_like(output);
  const at::Tensor grad_input = at::max_pool2d_with_indices_backward(
      gradient, input, kernel, stride, padding, dilation, c.ceil, places);

  const at::Tensor ours = at::empty_like(output), our_gradient = at::empty_like(input);
  const at::Tensor found = at::empty_like(places, c10::CppTypeToScalarType<Place>::value);
  const int64_t plane = rows.input * columns.input, windows = rows.output * columns.output;
  for (int64_t p = 0; p < c.samples * c.channels; ++p) {
    pool_plane(input.const_data_ptr<float>() + p * plane,
               ours.mutable_data_ptr<float>() + p * windows,
               found.mutable_data_ptr<Place>() + p * windows, pooling);
    pool_plane_backward(gradient.const_data_ptr<float>() + p * windows,
                        found.const_data_ptr<Place>() + p * windows,
                        our_gradient.mutable_data_ptr<float>() + p * plane, pooling);
  }
  EXPECT_TRUE(bitwise_equal(ours, output));
  EXPECT_TRUE(bitwise_equal(found.to(at::kLong), places));
  EXPECT_TRUE(bitwise_equal(our_gradient, grad_input));
}

class PlanePoolingTest : public RuntimeTest {};

TEST_F(PlanePoolingTest, FindsWhatAtenFinds) {
  at::manual_seed(5);
  Random random(5);
  const auto side = [&] {
    PlanePooling::Side one;
    one.kernel = between(random, 1, 5);
    one.dilation = between(random, 1, 2);
    one.stride = between(random, 1, 4);
    one.padding = between(random, 0, one.kernel / 2);
    one.input = between(random, (one.kernel - 1) * one.dilation + 1, 150);
    return one;
  };
  for (int k = 0; k < 300; ++k) {
    const PoolingCase c{between(random, 1, 2),
                 between(random, 1, 3),
                 {side(), side()},
                 between(random, 0, 1) == 1,
                 between(random, 0, 1) == 1};
    const auto& [rows, columns] = c.pooling;
    SCOPED_TRACE(
        fmt::format("{}: {}x{}, kernel {}x{}, stride {}x{}, padding {}x{}, dilation {}x{}{}{}", k,
                    rows.input, columns.input, rows.kernel, columns.kernel, rows.stride,
                    columns.stride, rows.padding, columns.padding, rows.dilation, columns.dilation,
                    c.ceil ? ", ceil" : "", c.special ? ", special" : ""));
    expect_what_aten_finds<int16_t>(c);
    expect_what_aten_finds<int32_t>(c);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
