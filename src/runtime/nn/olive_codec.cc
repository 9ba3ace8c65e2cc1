// This is OliVe's codec by operations: the formulas of runtime/codec/olive_numbers.h for all
// elements at once.
#include <ATen/ATen.h>

#include <limits>
#include <utility>

#include "runtime/codec/host_codec.h"
#include "runtime/codec/olive_numbers.h"
#include "runtime/codec/olive_steps.h"
#include "runtime/nn/group_codec.h"

namespace reprise::runtime::internal::nn {

using codec::kLeastOfGroup;
using codec::kOliveCandidates;
using codec::olive_numbers;
using codec::olive_steps;
using codec::OliveNumbers;
using runtime::nn::Encoded;

namespace {

// Returns the outliers that are nearest to these magnitudes, as numbers.
at::Tensor near_outliers(const OliveNumbers& olive, const at::Tensor& magnitudes) {
  const auto [share, exponent] = at::frexp(magnitudes.clamp_min(1));
  const at::Tensor base = share.mul(2 << olive.mantissa_bits).add(0.5).floor();
  return at::ldexp(base, exponent - (1 + olive.mantissa_bits))
      .clamp(olive.first_outlier(), olive.last_outlier());
}

at::Tensor outlier_codes(const OliveNumbers& olive, const at::Tensor& numbers) {
  const auto [share, exponent] = at::frexp(near_outliers(olive, numbers.abs()));
  const at::Tensor base = share.mul(2 << olive.mantissa_bits).to(at::kInt);
  const at::Tensor places = exponent.to(at::kInt) - (1 + olive.mantissa_bits + olive.bias);
  const at::Tensor magnitude = places * (1 << olive.mantissa_bits) + base;
  return magnitude - (1 << olive.mantissa_bits) + numbers.lt(0).to(at::kInt) * olive.identifier();
}

at::Tensor normal_numbers(const OliveNumbers& olive, const at::Tensor& numbers) {
  const at::Tensor bounded = numbers.clamp(-olive.largest_normal, olive.largest_normal);
  return at::trunc(bounded + at::where(bounded.lt(0), -0.5, 0.5));
}

// Returns the squared error of each group, whose elements are in steps: pairs in the last
// dimension.
at::Tensor squared_errors(const OliveNumbers& olive, const at::Tensor& pairs) {
  const at::Tensor sizes = pairs.abs();
  const at::Tensor large = sizes.amax(2), small = sizes.amin(2);
  const at::Tensor of_outlier = (large - near_outliers(olive, large)).square() + small.square();
  const at::Tensor of_normal = (sizes - normal_numbers(olive, sizes)).square().sum(2);
  return at::where(large.gt(olive.threshold()), of_outlier, of_normal).sum(1);
}

// At how many steps the largest element of each group lies. `pairs` are over the largest element.
at::Tensor steps_to_largest(const OliveNumbers& olive, const at::Tensor& pairs) {
  const float most = codec::most_outliers(2 * pairs.size(1));
  at::Tensor best, least, tried;
  for (int k = 0; k < kOliveCandidates; ++k) {
    const float steps = olive_steps(olive, k);
    const at::Tensor errors = squared_errors(olive, pairs * steps) / (steps * steps);
    if (k == 0) {
      best = at::full_like(errors, steps);
      least = errors;
      tried = at::ones_like(errors, at::kBool);
      continue;
    }
    const at::Tensor outliers = pairs.abs().gt(olive.threshold() / steps).sum({1, 2});
    tried = tried.logical_and(outliers.le(most));
    const at::Tensor falls = tried.logical_and(errors.lt(least));
    best = at::where(falls, steps, best);
    least = at::where(falls, errors, least);
  }
  return best;
}

std::pair<at::Tensor, at::Tensor> of_bytes(const OliveNumbers& olive, const at::Tensor& bytes) {
  const at::Tensor codes = bytes.to(at::kInt);
  if (olive.bits == 4) {
    return {at::bitwise_and(codes, 15), at::bitwise_right_shift(codes, 4)};
  }
  const at::Tensor pairs = codes.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

at::Tensor outliers_of(const OliveNumbers& olive, const at::Tensor& codes) {
  const at::Tensor magnitude = at::bitwise_and(codes, olive.identifier() - 1);
  const at::Tensor mantissa = at::bitwise_and(magnitude, (1 << olive.mantissa_bits) - 1);
  const at::Tensor places = at::bitwise_right_shift(magnitude, olive.mantissa_bits) + olive.bias;
  const at::Tensor numbers = at::bitwise_left_shift(mantissa + (1 << olive.mantissa_bits), places);
  return at::where(codes.ge(olive.identifier()), numbers.neg(), numbers);
}

}  // namespace

void encode_olive_by_operations(const at::Tensor& x, Encoded& encoded) {
  const OliveNumbers& olive = olive_numbers(encoded.codec.bits);
  const int64_t elements = x.numel(), group = encoded.codec.group;
  const int64_t groups = codec::groups_in(elements, group);
  const at::Tensor numbers =
      at::constant_pad_nd(flat(x).to(at::kFloat), {0, groups * group - elements})
          .view({groups, group});
  const at::Tensor finite = numbers.isfinite().all(1), most = numbers.abs().amax(1);
  const at::Tensor has_steps = finite.logical_and(most.gt(kLeastOfGroup));
  const at::Tensor whole = at::where(has_steps, most, 1.0);
  const at::Tensor rows = at::where(has_steps.view({-1, 1}), numbers, 0.0);
  const at::Tensor shares = (rows / whole.view({-1, 1})).view({groups, group / 2, 2});
  const at::Tensor steps = steps_to_largest(olive, shares);
  const double wrong = std::numeric_limits<double>::quiet_NaN();
  encoded.step = at::where(finite, at::where(has_steps, whole / steps, 0.0), wrong);

  const at::Tensor in_steps = (rows * (steps / whole).view({-1, 1})).view({-1, 2});
  const at::Tensor sizes = in_steps.abs(), left = sizes.select(1, 0), right = sizes.select(1, 1);
  const at::Tensor left_out = left.gt(olive.threshold()).logical_and(left.ge(right));
  const at::Tensor right_out = right.gt(olive.threshold()).logical_and(left_out.logical_not());
  const at::Tensor normal =
      at::bitwise_and(normal_numbers(olive, in_steps).to(at::kInt), (1 << olive.bits) - 1);
  const at::Tensor outlier = outlier_codes(olive, in_steps);
  const auto codes_of = [&](int64_t side, const at::Tensor& is_out, const at::Tensor& is_victim) {
    return at::where(is_out, outlier.select(1, side),
                     normal.select(1, side).masked_fill(is_victim, olive.identifier()));
  };
  const at::Tensor first = codes_of(0, left_out, right_out),
                   second = codes_of(1, right_out, left_out);
  const at::Tensor bytes = olive.bits == 4 ? first + second * 16 : at::stack({first, second}, 1);
  encoded.codes = bytes.to(at::kByte)
                      .view({-1})
                      .slice(0, 0, codec::bytes_of_codes(elements, encoded.codec))
                      .clone();
  const at::Tensor back = flat(decode_olive_by_operations(encoded));
  constexpr double kOfDifference = 1 + 0x1p-20;
  encoded.error =
      (back.to(at::kFloat) - flat(x).to(at::kFloat)).abs().amax().mul(kOfDifference).view({1});
}

at::Tensor decode_olive_by_operations(const Encoded& encoded) {
  const OliveNumbers& olive = olive_numbers(encoded.codec.bits);
  const auto [left, right] = of_bytes(olive, encoded.codes);
  const at::Tensor left_is_victim = left.eq(olive.identifier()),
                   right_is_victim = right.eq(olive.identifier());
  const auto normal = [&](const at::Tensor& codes) {
    return at::bitwise_xor(codes, olive.identifier()) - olive.identifier();
  };
  const auto numbers_of = [&](const at::Tensor& codes, const at::Tensor& is_victim,
                              const at::Tensor& is_out) {
    return at::where(is_out, outliers_of(olive, codes), normal(codes)).masked_fill(is_victim, 0);
  };
  const at::Tensor numbers = at::stack({numbers_of(left, left_is_victim, right_is_victim),
                                        numbers_of(right, right_is_victim, left_is_victim)},
                                       1)
                                 .view({-1});
  const at::Tensor x = at::empty_strided(encoded.sizes, encoded.strides,
                                         encoded.codes.options().dtype(encoded.type));
  const int64_t group = encoded.codec.group, groups = encoded.step.numel();
  const at::Tensor rows =
      at::constant_pad_nd(numbers, {0, groups * group - numbers.numel()}).view({groups, group});
  const double most = codec::with_element(encoded.type, []<class Element>(Element*) {
    return static_cast<double>(codec::largest_of<Element>());
  });
  const at::Tensor values = (rows.to(at::kFloat) * encoded.step.view({-1, 1})).clamp(-most, most);
  flat(x).copy_(values.view({-1}).slice(0, 0, x.numel()));
  return x;
}

}  // namespace reprise::runtime::internal::nn
