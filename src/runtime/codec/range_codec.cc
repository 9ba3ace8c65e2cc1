// Chen et al., arXiv 2104.14129, section 4.1. The names of the paper and of this file, for each group:
//
//   Z_i = min, R_i = max - min, B = 2^b - 1       least, B * step
//   h^ = floor(B (h - Z) / R + 1/2)               codes; with `stochastic` 1/2 is a random number
//   h  = h^ R / B + Z                             decode()
//
// Tests: tests/runtime/group_codec_test.cc.
#include <array>
#include <cmath>
#include <vector>

#include "runtime/codec/kinds.h"
#include "runtime/codec/random_share.h"
#include "runtime/device/parallel.h"

namespace reprise::runtime::internal::codec {
namespace {

constexpr float kLeastStep = 1e-36f;
constexpr float kLargestFloat = std::numeric_limits<float>::max();

struct Range {
  float least = 0, step = 0;
};

// `x` has room for a multiple of kGroupUnit elements; those behind `count` are written.
Range range_of(float* x, int64_t count, int steps) {
  for (int64_t i = count; i % kGroupUnit != 0; ++i) x[i] = x[count - 1];
  std::array<float, kGroupUnit> low, high, odd;
  low.fill(x[0]);
  high.fill(x[0]);
  odd.fill(0);
  for (int64_t i = 0; i < count; i += kGroupUnit) {
    for (size_t lane = 0; lane < kGroupUnit; ++lane) {
      const float one = x[i + static_cast<int64_t>(lane)];
      low[lane] = one < low[lane] ? one : low[lane];
      high[lane] = one > high[lane] ? one : high[lane];
      odd[lane] += one - one;  // NaN unless finite
    }
  }
  float all = 0;
  for (const float one : odd) all += one;
  const float least = *std::min_element(low.begin(), low.end());
  const float most = *std::max_element(high.begin(), high.end());
  if (all != 0) return {all, all};  // NaN
  return {least, most / static_cast<float>(steps) - least / static_cast<float>(steps)};
}

// Loops of constant length are what a compiler makes vectors of.
template <int kBits, bool kStochastic>
void encode_group(const float* x, int64_t count, int64_t first, const GroupCodec& codec,
                  const Range& range, uint8_t* codes) {
  constexpr int kSteps = (1 << kBits) - 1, kPerByte = 8 / kBits;
  // A step that is almost zero counts as zero, and the comparison is false for NaN.
  if (!(range.step > kLeastStep)) {
    std::fill(codes, codes + (count + kPerByte - 1) / kPerByte, uint8_t{0});
    return;
  }
  // Halves: the range of numbers may be larger than the largest number.
  const float scale = 2 / range.step, least = range.least / 2;
  std::array<float, kGroupUnit> some;
  std::array<int32_t, kGroupUnit> code;
  for (int64_t begin = 0; begin < count; begin += kGroupUnit) {
    const int64_t left = std::min(kGroupUnit, count - begin);
    some.fill(range.least);  // code 0
    std::copy(x + begin, x + begin + left, some.begin());
    for (size_t i = 0; i < kGroupUnit; ++i) {
      const float share =
          kStochastic ? random_share(codec.seed, first + begin + static_cast<int64_t>(i)) : 0.5f;
      const auto number = static_cast<int32_t>((some[i] / 2 - least) * scale + share);
      code[i] = number < kSteps ? number : kSteps;
    }
    std::array<uint8_t, kGroupUnit / kPerByte> bytes;
    for (size_t byte = 0; byte < bytes.size(); ++byte) {
      int32_t packed = 0;
      for (size_t p = 0; p < kPerByte; ++p) {
        packed |= code[byte * kPerByte + p] << (static_cast<int>(p) * kBits);
      }
      bytes[byte] = static_cast<uint8_t>(packed);
    }
    std::copy(bytes.begin(), bytes.begin() + (left + kPerByte - 1) / kPerByte,
              codes + begin / kPerByte);
  }
}

using EncodeGroup = void (*)(const float*, int64_t, int64_t, const GroupCodec&, const Range&,
                             uint8_t*);

EncodeGroup group_encoder(const GroupCodec& codec) {
  switch (codec.bits) {
    case 8:
      return codec.stochastic ? encode_group<8, true> : encode_group<8, false>;
    case 4:
      return codec.stochastic ? encode_group<4, true> : encode_group<4, false>;
    default:
      return codec.stochastic ? encode_group<2, true> : encode_group<2, false>;
  }
}

template <int kBits, class Element>
void decode_group_of_range(const uint8_t* codes, int64_t count, const Range& range, Element* x) {
  constexpr int kMask = (1 << kBits) - 1, kPerByte = 8 / kBits;
  // Halves: the range of numbers may be larger than the largest number.
  const float least = range.least / 2, step = range.step / 2;
  std::array<float, kGroupUnit> numbers;
  for (int64_t begin = 0; begin < count; begin += kGroupUnit) {
    const int64_t left = std::min(kGroupUnit, count - begin);
    std::array<uint8_t, kGroupUnit / kPerByte> bytes{};
    std::copy(codes + begin / kPerByte, codes + (begin + left + kPerByte - 1) / kPerByte,
              bytes.begin());
    for (size_t byte = 0; byte < bytes.size(); ++byte) {
      for (size_t p = 0; p < kPerByte; ++p) {
        const int code = bytes[byte] >> (static_cast<int>(p) * kBits) & kMask;
        const float number = 2 * (least + static_cast<float>(code) * step);
        const float above = number < -kLargestFloat ? -kLargestFloat : number;
        numbers[byte * kPerByte + p] = above > kLargestFloat ? kLargestFloat : above;
      }
    }
    for (int64_t i = 0; i < left; ++i) {
      x[begin + i] = static_cast<Element>(numbers[i]);
    }
  }
}

template <class Element>
void encode_elements(const Element* x, int64_t elements, const GroupCodec& codec,
                     const Place& place) {
  const int64_t groups = groups_in(elements, codec.group);
  const EncodeGroup encode_one = group_encoder(codec);
  device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(codec.group));
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group, count = std::min(codec.group, elements - first);
      for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(x[first + i]);
      const Range range = range_of(numbers.data(), count, (1 << codec.bits) - 1);
      place.least[g] = range.least;
      place.step[g] = range.step;
      encode_one(numbers.data(), count, first, codec, range, place.codes + first * codec.bits / 8);
    }
  });
}

template <class Element>
void decode_elements(const Place& place, int64_t elements, const GroupCodec& codec, Element* x) {
  const int64_t groups = groups_in(elements, codec.group);
  const auto decode_one = codec.bits == 8   ? decode_group_of_range<8, Element>
                          : codec.bits == 4 ? decode_group_of_range<4, Element>
                                            : decode_group_of_range<2, Element>;
  device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group;
      decode_one(place.codes + first * codec.bits / 8, std::min(codec.group, elements - first),
                 {.least = place.least[g], .step = place.step[g]}, x + first);
    }
  });
}

}  // namespace

double range_bound(double least, double step, at::ScalarType type, const GroupCodec& codec) {
  const double share = codec.stochastic ? 1 : 0.5;
  const double unit = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0x1p-22;
  const double large = std::max(std::abs(least), std::abs(least + step * ((1 << codec.bits) - 1)));
  constexpr double kOfSmallSteps = 1e-33;
  return step * share + large * unit + kOfSmallSteps;
}

Stated encode_range(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
                    const Place& place) {
  with_element(type, [&]<class Element>(Element*) {
    encode_elements(static_cast<const Element*>(x), elements, codec, place);
  });
  Stated stated;
  const int64_t groups = groups_in(elements, codec.group);
  for (int64_t g = 0; g < groups; ++g) {
    const double least = place.least[g], step = place.step[g];
    const double bound = range_bound(least, step, type, codec);
    if (std::isnan(bound)) return {bound, bound};
    stated.bound = std::max(stated.bound, bound);
    const double most = least + step * ((1 << codec.bits) - 1);
    stated.largest = std::max({stated.largest, std::abs(least), std::abs(most)});
  }
  return stated;
}

void decode_range(at::ScalarType type, const Place& place, int64_t elements,
                  const GroupCodec& codec, void* x) {
  with_element(type, [&]<class Element>(Element*) {
    decode_elements(place, elements, codec, static_cast<Element*>(x));
  });
}

}  // namespace reprise::runtime::internal::codec
