// A number x is held as the integer q = round(2^k x), k fraction bits. Products with powers of two are
// exact in binary floating point, so that the only rounding is that to an integer. Tests:
// tests/runtime/fixed_point_test.cc.
#include "runtime/nn/fixed_point.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/device/parallel.h"
#include "runtime/step/record.h"

namespace reprise::runtime::internal::nn {
namespace {

// Its sum with a double below 2^51 has that double, rounded to an integer, in its lowest bits.
// Compilers make vectors of this, and of the calls of the standard library they do not.
constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
constexpr double kTwoTo31 = 2147483648.0, kTwoTo63 = 9223372036854775808.0;

// Returns whether all elements are finite and all sums in range.
template <class Element>
bool add_to_int(int32_t* q, const Element* x, double scale, int64_t count) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double scaled = static_cast<double>(static_cast<float>(x[i])) * scale;
    const bool inside = scaled > -kTwoTo31 && scaled < kTwoTo31;  // false for NaN
    const int64_t rounded =
        std::bit_cast<int64_t>((inside ? scaled : 0) + kShift) - std::bit_cast<int64_t>(kShift);
    const int64_t sum = q[i] + rounded;
    q[i] = static_cast<int32_t>(sum);
    wrong |= static_cast<int64_t>(!inside) | (sum - q[i]);
  }
  return wrong == 0;
}

bool add_to_int(int64_t* q, const double* x, double scale, int64_t count) {
  bool right = true;
  for (int64_t i = 0; i < count; ++i) {
    const double scaled = x[i] * scale;
    const bool inside = scaled > -kTwoTo63 && scaled < kTwoTo63;
    const int64_t rounded = inside ? static_cast<int64_t>(std::nearbyint(scaled)) : 0;
    int64_t sum = 0;
    const bool over = __builtin_add_overflow(q[i], rounded, &sum);
    q[i] = sum;
    right = right && inside && !over;
  }
  return right;
}

template <class Element>
bool add_on_host(const at::Tensor& q, const at::Tensor& x, double scale) {
  using Integer = std::conditional_t<std::is_same_v<Element, double>, int64_t, int32_t>;
  Integer* const to = q.mutable_data_ptr<Integer>();
  const Element* const from = x.const_data_ptr<Element>();
  std::atomic<bool> right{true};
  device::parallel_ranges(q.numel(), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    if (!add_to_int(to + begin, from + begin, scale, end - begin)) right = false;
  });
  return right;
}

bool add_on_host(const at::Tensor& q, const at::Tensor& x, double scale) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return add_on_host<double>(q, x, scale);
    case at::kHalf:
      return add_on_host<at::Half>(q, x, scale);
    case at::kBFloat16:
      return add_on_host<at::BFloat16>(q, x, scale);
    default:
      return add_on_host<float>(q, x, scale);
  }
}

// Returns the type in which products with powers of two are exact.
at::ScalarType exact_type(at::ScalarType integers) {
  return integers == at::kLong ? at::kDouble : at::kFloat;
}

double power_of_two(int exponent) { return std::ldexp(1.0, exponent); }

}  // namespace

at::ScalarType integers_for(at::ScalarType numbers) {
  return numbers == at::kDouble ? at::kLong : at::kInt;
}

at::Tensor add_fixed(const at::Tensor& q, const at::Tensor& x, int fraction_bits, Sign sign) {
  const bool by_kernel = q.is_cpu() && !step::is_recording() && q.is_non_overlapping_and_dense();
  if (!by_kernel) return add_fixed_by_operations(q, x, fraction_bits, sign);
  const bool wide = q.scalar_type() == at::kLong;
  at::Tensor numbers =
      wide == (x.scalar_type() == at::kDouble) ? x : x.to(exact_type(q.scalar_type()));
  if (numbers.strides() != q.strides()) {
    numbers = at::empty_strided(q.sizes(), q.strides(), numbers.options()).copy_(numbers);
  }
  const double scale = power_of_two(fraction_bits) * (sign == Sign::kPlus ? 1 : -1);
  if (add_on_host(q, numbers, scale)) return {};
  return at::ones({}, q.options().dtype(at::kBool));
}

at::Tensor add_fixed_by_operations(const at::Tensor& q, const at::Tensor& x, int fraction_bits,
                                   Sign sign) {
  const bool wide = q.scalar_type() == at::kLong;
  const double limit = wide ? kTwoTo63 : kTwoTo31;
  const at::Tensor scaled = x.to(exact_type(q.scalar_type()))
                                .mul(power_of_two(fraction_bits) * (sign == Sign::kPlus ? 1 : -1));
  const at::Tensor outside = scaled.abs().lt(limit).logical_not();
  const at::Tensor change = scaled.round().masked_fill(outside, 0).to(q.scalar_type());
  const at::Tensor sum = q.add(change);
  // A sum of two numbers of one sign is of the other sign if it was out of range.
  const at::Tensor over = q.bitwise_xor(sum).bitwise_and_(change.bitwise_xor(sum)).lt(0);
  q.copy_(sum);
  return outside.logical_or(over).any();
}

at::Tensor from_fixed(const at::Tensor& q, at::ScalarType type, int fraction_bits) {
  const at::Tensor exact = q.to(exact_type(q.scalar_type())).mul_(power_of_two(-fraction_bits));
  return exact.to(type);
}

}  // namespace reprise::runtime::internal::nn
