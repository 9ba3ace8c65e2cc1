// Chen et al., arXiv 2104.14129, section 4.1. The names of the paper and of this file, for each group:
//
//   Z_i = min, R_i = max - min, B = 2^b - 1       least, B * step
//   h^ = floor(B (h - Z) / R + 1/2)               codes; with `stochastic` 1/2 is a random number
//   h  = h^ R / B + Z                             decode()
//
// Tests: tests/runtime/group_codec_test.cc.
#include "runtime/nn/group_codec.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "reprise/model/errors.h"
#include "runtime/device/parallel.h"
#include "runtime/step/record.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

using runtime::nn::Encoded;
using runtime::nn::GroupCodec;

constexpr int64_t kGroupUnit = 16;
constexpr float kLeastStep = 1e-36f;

int64_t groups_in(int64_t elements, int64_t group) { return (elements + group - 1) / group; }

// A random number in [0, 1) for each element: the finalizer of MurmurHash3 (A. Appleby, public domain)
// of its number and the seed.
uint32_t mixed(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  h *= 0xc2b2ae35U;
  return h ^ h >> 16;
}

float random_share(uint64_t seed, int64_t element) {
  const auto place = static_cast<uint64_t>(element);
  const uint32_t low = mixed(static_cast<uint32_t>(place) ^ static_cast<uint32_t>(seed));
  const uint32_t high = static_cast<uint32_t>(place >> 32) + static_cast<uint32_t>(seed >> 32);
  return static_cast<float>(mixed(low + 0x9e3779b9U * (high + 1)) >> 8) * 0x1p-24f;
}

constexpr float kLargestFloat = std::numeric_limits<float>::max();

struct Range {
  float least = 0, step = 0;
};

Range range_of(const float* x, int64_t count, int steps) {
  std::array<float, kGroupUnit> low, high, odd;
  low.fill(x[0]);
  high.fill(x[0]);
  odd.fill(0);
  for (int64_t i = 0; i < count; ++i) {
    const size_t lane = static_cast<size_t>(i % kGroupUnit);
    low[lane] = x[i] < low[lane] ? x[i] : low[lane];
    high[lane] = x[i] > high[lane] ? x[i] : high[lane];
    odd[lane] += x[i] - x[i];  // NaN unless finite
  }
  float all = 0;
  for (const float one : odd) all += one;
  const float least = *std::min_element(low.begin(), low.end());
  const float most = *std::max_element(high.begin(), high.end());
  if (all != 0) return {all, all};  // NaN
  return {least, most / static_cast<float>(steps) - least / static_cast<float>(steps)};
}

// One group on the host: `x` as float32 to `codes`.
void encode_group(const float* x, int64_t count, int64_t first, const GroupCodec& codec,
                  const Range& range, uint8_t* codes) {
  const int steps = (1 << codec.bits) - 1, per_byte = 8 / codec.bits;
  // Halves: the range of numbers may be larger than the largest number. A step that is almost zero counts
  // as zero, and the comparison is false for NaN.
  const float scale = range.step > kLeastStep ? 2 / range.step : 0;
  std::array<int32_t, kGroupUnit> code;
  for (int64_t begin = 0; begin < count; begin += kGroupUnit) {
    const int64_t some = std::min(kGroupUnit, count - begin);
    code.fill(0);
    for (int64_t i = 0; i < some; ++i) {
      const float share = codec.stochastic ? random_share(codec.seed, first + begin + i) : 0.5f;
      const float number = scale > 0 ? (x[begin + i] / 2 - range.least / 2) * scale + share : 0;
      code[static_cast<size_t>(i)] = std::min(static_cast<int32_t>(number), steps);
    }
    const int64_t bytes = (some + per_byte - 1) / per_byte;
    for (int64_t byte = 0; byte < bytes; ++byte) {
      int32_t packed = 0;
      for (int p = 0; p < per_byte; ++p) {
        packed |= code[static_cast<size_t>(byte * per_byte + p)] << (p * codec.bits);
      }
      codes[(begin + byte * per_byte) / per_byte] = static_cast<uint8_t>(packed);
    }
  }
}

template <class Element>
void encode_on_host(const Element* x, Encoded& encoded, int64_t elements) {
  const GroupCodec& codec = encoded.codec;
  float* const least = encoded.least.mutable_data_ptr<float>();
  float* const step = encoded.step.mutable_data_ptr<float>();
  uint8_t* const codes = encoded.codes.mutable_data_ptr<uint8_t>();
  const int64_t grain = std::max<int64_t>(1, 32'768 / codec.group);
  device::parallel_ranges(groups_in(elements, codec.group), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(codec.group));
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group, count = std::min(codec.group, elements - first);
      for (int64_t i = 0; i < count; ++i)
        numbers[static_cast<size_t>(i)] = static_cast<float>(x[first + i]);
      const Range range = range_of(numbers.data(), count, (1 << codec.bits) - 1);
      least[g] = range.least;
      step[g] = range.step;
      encode_group(numbers.data(), count, first, codec, range, codes + first * codec.bits / 8);
    }
  });
}

template <class Element>
void decode_on_host(const Encoded& encoded, Element* x, int64_t elements) {
  const GroupCodec& codec = encoded.codec;
  const float* const least = encoded.least.const_data_ptr<float>();
  const float* const step = encoded.step.const_data_ptr<float>();
  const uint8_t* const codes = encoded.codes.const_data_ptr<uint8_t>();
  const int per_byte = 8 / codec.bits, mask = (1 << codec.bits) - 1;
  const int64_t grain = std::max<int64_t>(1, 32'768 / codec.group);
  device::parallel_ranges(groups_in(elements, codec.group), grain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group, last = std::min(first + codec.group, elements);
      for (int64_t i = first; i < last; ++i) {
        const int code = codes[i / per_byte] >> (i % per_byte * codec.bits) & mask;
        // Halves: the range of numbers may be larger than the largest number.
        const float number = 2 * (least[g] / 2 + static_cast<float>(code) * (step[g] / 2));
        x[i] = static_cast<Element>(std::clamp(number, -kLargestFloat, kLargestFloat));
      }
    }
  });
}

// Calls `work` with a null pointer to the type of the elements.
template <class Work>
void with_element(at::ScalarType type, const Work& work) {
  switch (type) {
    case at::kDouble:
      return work(static_cast<double*>(nullptr));
    case at::kHalf:
      return work(static_cast<at::Half*>(nullptr));
    case at::kBFloat16:
      return work(static_cast<at::BFloat16*>(nullptr));
    default:
      return work(static_cast<float*>(nullptr));
  }
}

bool on_host(const at::Tensor& x) { return x.is_cpu() && !step::is_recording(); }

at::Tensor flat(const at::Tensor& x) { return x.as_strided({x.numel()}, {1}, x.storage_offset()); }

at::Tensor counted_from_zero(int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kInt));
}

}  // namespace

void encode_by_operations(const at::Tensor& x, Encoded& encoded) {
  const GroupCodec& codec = encoded.codec;
  const int64_t elements = x.numel(), groups = groups_in(elements, codec.group);
  const int64_t per_byte = 8 / codec.bits, steps = (1 << codec.bits) - 1;
  const at::Tensor last = flat(x).slice(0, elements - 1).to(at::kFloat);
  const at::Tensor filled = last.expand({groups * codec.group - elements});  // changes no range
  const at::Tensor rows = at::cat({flat(x).to(at::kFloat), filled}).view({groups, codec.group});
  const at::Tensor finite = rows.isfinite().all(1);
  const at::Tensor low = rows.amin(1), high = rows.amax(1);
  const double wrong = std::numeric_limits<double>::quiet_NaN();
  encoded.least = at::where(finite, low, wrong);
  encoded.step = at::where(finite, high.div(steps).sub(low.div(steps)), wrong);
  const at::Tensor scale =
      at::where(encoded.step.gt(kLeastStep), encoded.step.reciprocal().mul(2), 0.0);
  at::Tensor share = at::full({1}, 0.5, rows.options());
  if (codec.stochastic) {
    share = at::empty({groups, codec.group}, at::TensorOptions(at::kFloat));
    float* const shares = share.mutable_data_ptr<float>();
    for (int64_t i = 0; i < share.numel(); ++i) shares[i] = random_share(codec.seed, i);
    share = share.to(rows.device());
  }
  const at::Tensor numbers = (rows / 2 - low.view({-1, 1}) / 2) * scale.view({-1, 1}) + share;
  const at::Tensor codes = at::where(finite.logical_and(scale.gt(0)).view({-1, 1}), numbers, 0.0)
                               .to(at::kInt)
                               .clamp_max(steps)
                               .view({-1, per_byte});
  const at::Tensor places = counted_from_zero(per_byte, codes).mul(codec.bits).view({1, -1});
  const at::Tensor bytes = at::bitwise_left_shift(codes, places).sum({1}).to(at::kByte);
  encoded.codes = bytes.slice(0, 0, (elements + per_byte - 1) / per_byte).clone();
}

at::Tensor decode_by_operations(const Encoded& encoded) {
  const GroupCodec& codec = encoded.codec;
  const int64_t per_byte = 8 / codec.bits, groups = encoded.least.numel();
  const at::Tensor places =
      counted_from_zero(per_byte, encoded.codes).mul(codec.bits).view({1, -1});
  const at::Tensor codes =
      at::bitwise_and(at::bitwise_right_shift(encoded.codes.to(at::kInt).view({-1, 1}), places),
                      (1 << codec.bits) - 1)
          .view({-1});
  const at::Tensor rows = at::constant_pad_nd(codes, {0, groups * codec.group - codes.numel()})
                              .view({groups, codec.group});
  const at::Tensor numbers =
      ((encoded.least / 2).view({-1, 1}) + rows.to(at::kFloat) * (encoded.step / 2).view({-1, 1}))
          .mul(2)
          .clamp(-kLargestFloat, kLargestFloat);
  const at::Tensor x = at::empty_strided(encoded.sizes, encoded.strides,
                                         encoded.codes.options().dtype(encoded.type));
  flat(x).copy_(numbers.view({-1}).slice(0, 0, x.numel()));
  return x;
}

}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;

int64_t Encoded::bytes() const {
  return static_cast<int64_t>(codes.nbytes() + least.nbytes() + step.nbytes());
}

double Encoded::largest_error() const {
  if (step.numel() == 0) return 0;
  const at::Tensor width = step.to(at::kCPU, at::kDouble), low = least.to(at::kCPU, at::kDouble);
  const double share = codec.stochastic ? 1 : 0.5;
  const double unit = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0x1p-22;
  const at::Tensor large = at::max(low.abs(), (low + width * ((1 << codec.bits) - 1)).abs());
  constexpr double kOfSmallSteps = 1e-33;
  return (width * share + large * unit + kOfSmallSteps).max().item<double>();
}

Encoded encode(const at::Tensor& x, const GroupCodec& codec) {
  if (codec.bits != 8 && codec.bits != 4 && codec.bits != 2) {
    throw InputError(c10::str("a codec has 8, 4 or 2 bits, not ", codec.bits));
  }
  if (codec.group < in::kGroupUnit || codec.group % in::kGroupUnit != 0) {
    throw InputError(
        c10::str("a group of a codec is a multiple of 16 elements, not ", codec.group));
  }
  if (!x.defined() || x.layout() != at::kStrided || !x.is_floating_point() || x.is_neg()) {
    throw InputError("a codec takes a plain dense tensor of real numbers");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x.detach() : x.detach().contiguous();
  Encoded encoded{.codec = codec,
                  .sizes = dense.sizes().vec(),
                  .strides = dense.strides().vec(),
                  .type = dense.scalar_type(),
                  .codes = {},
                  .least = {},
                  .step = {}};
  const int64_t elements = dense.numel(), groups = in::groups_in(elements, codec.group);
  if (elements > 0 && !in::on_host(dense)) {
    in::encode_by_operations(dense, encoded);
    return encoded;
  }
  encoded.codes = at::empty({(elements * codec.bits + 7) / 8}, dense.options().dtype(at::kByte));
  encoded.least = at::empty({groups}, dense.options().dtype(at::kFloat));
  encoded.step = at::empty({groups}, dense.options().dtype(at::kFloat));
  in::with_element(encoded.type, [&]<class Element>(Element*) {
    in::encode_on_host(dense.const_data_ptr<Element>(), encoded, elements);
  });
  return encoded;
}

at::Tensor decode(const Encoded& encoded) {
  const at::NoGradGuard no_grad;
  if (!in::on_host(encoded.codes)) return in::decode_by_operations(encoded);
  const at::Tensor x = at::empty_strided(encoded.sizes, encoded.strides,
                                         encoded.codes.options().dtype(encoded.type));
  in::with_element(encoded.type, [&]<class Element>(Element*) {
    in::decode_on_host(encoded, x.mutable_data_ptr<Element>(), x.numel());
  });
  return x;
}

}  // namespace nn
}  // namespace reprise::runtime
