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

Range range_of(const float* x, int64_t count, int steps) {
  std::array<float, kGroupUnit> low, high, odd;
  low.fill(x[0]);
  high.fill(x[0]);
  odd.fill(0);
  for (int64_t i = 0; i < count; ++i) {
    const auto lane = static_cast<size_t>(i % kGroupUnit);
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
void encode_elements(const Element* x, int64_t elements, const GroupCodec& codec,
                     const Place& place) {
  const int64_t groups = groups_in(elements, codec.group);
  device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(codec.group));
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group, count = std::min(codec.group, elements - first);
      for (int64_t i = 0; i < count; ++i)
        numbers[static_cast<size_t>(i)] = static_cast<float>(x[first + i]);
      const Range range = range_of(numbers.data(), count, (1 << codec.bits) - 1);
      place.least[g] = range.least;
      place.step[g] = range.step;
      encode_group(numbers.data(), count, first, codec, range,
                   place.codes + first * codec.bits / 8);
    }
  });
}

template <class Element>
void decode_elements(const Place& place, int64_t elements, const GroupCodec& codec, Element* x) {
  const int per_byte = 8 / codec.bits, mask = (1 << codec.bits) - 1;
  const int64_t groups = groups_in(elements, codec.group);
  device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * codec.group, last = std::min(first + codec.group, elements);
      for (int64_t i = first; i < last; ++i) {
        const int code = place.codes[i / per_byte] >> (i % per_byte * codec.bits) & mask;
        // Halves: the range of numbers may be larger than the largest number.
        const float number =
            2 * (place.least[g] / 2 + static_cast<float>(code) * (place.step[g] / 2));
        x[i] = static_cast<Element>(std::clamp(number, -kLargestFloat, kLargestFloat));
      }
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
