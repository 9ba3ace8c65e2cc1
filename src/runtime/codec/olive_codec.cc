// Guo et al., "OliVe: Accelerating Large Language Models via Hardware-friendly Outlier-Victim Pair
// Quantization", ISCA 2023, arXiv 2304.07493. The numbers are in olive_numbers.h.
//
// The paper takes one step for a tensor: it begins at three standard deviations and looks for the
// least squared error around. Here each group has a step. The candidates are the steps with which
// the group's largest element lies at 7, 11.8, 19.8, ... steps (127, 213.6, ... with 8 bits), the
// first of which makes no outliers. Of those that make at most a sixteenth of the elements outliers,
// the one with the least squared error is taken. So no element lies beyond the outliers' range.
//
// Two things differ from the paper. An element between the normal numbers and the outliers takes the
// nearer one, and not always an outlier. And outliers of 8 bits go up to their largest code: the
// paper cuts them off at 2^15, because its accumulators have 32 bits.
//
// Tests: tests/runtime/olive_codec_test.cc.
#include <array>
#include <cmath>
#include <vector>

#include "runtime/codec/kinds.h"
#include "runtime/codec/olive_numbers.h"
#include "runtime/codec/olive_steps.h"
#include "runtime/device/parallel.h"

namespace reprise::runtime::internal::codec {
namespace {

using Lanes = std::array<float, kGroupUnit>;

float sum_of(const Lanes& lanes) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Returns the largest absolute value; NaN unless all are finite.
float largest_in(const std::vector<float>& x) {
  Lanes most{}, odd{};
  for (size_t i = 0; i < x.size(); i += kGroupUnit) {
    for (size_t lane = 0; lane < kGroupUnit; ++lane) {
      const float size = std::fabs(x[i + lane]);
      most[lane] = size > most[lane] ? size : most[lane];
      odd[lane] += x[i + lane] - x[i + lane];
    }
  }
  if (sum_of(odd) != 0) return std::numeric_limits<float>::quiet_NaN();
  return *std::max_element(most.begin(), most.end());
}

float elements_above(const std::vector<float>& sizes, float limit) {
  Lanes count{};
  for (size_t i = 0; i < sizes.size(); i += kGroupUnit) {
    for (size_t lane = 0; lane < kGroupUnit; ++lane)
      count[lane] += sizes[i + lane] > limit ? 1.0f : 0.0f;
  }
  return sum_of(count);
}

float squared(float x) { return x * x; }

float normal_error(float size, float most) {
  return squared(size - static_cast<float>(static_cast<int>(std::min(size, most) + 0.5f)));
}

float outlier_error(const OliveNumbers& olive, float size) {
  return squared(size - static_cast<float>(abfloat(olive, abfloat_code(olive, size))));
}

// A Search finds the step of a group.
class Search {
 public:
  // `sizes` are the absolute values of the elements over the largest one.
  Search(const OliveNumbers& olive, const std::vector<float>& sizes)
      : olive_(olive), sizes_(sizes) {
    const float most = most_outliers(static_cast<int64_t>(sizes.size()));
    while (candidates_ < kOliveCandidates && elements_above(sizes, limit(candidates_)) <= most) {
      ++candidates_;
    }
    // The pairs that may have an outlier with the finest of these steps.
    const float least = limit(candidates_ - 1) * 0.999f;
    for (size_t i = 0; i < sizes.size(); i += 2) {
      if (sizes[i] > least || sizes[i + 1] > least) pairs_.push_back(i);
    }
  }

  // Pairs that are not among these have no outlier.
  const std::vector<size_t>& pairs() const { return pairs_; }

  // Returns the number of steps at which the largest element lies.
  float steps_to_largest() const {
    float best = 0, least = 0;
    for (int k = 0; k < candidates_; ++k) {
      const float steps = olive_steps(olive_, k), error = squared_error(steps);
      if (k > 0 && !(error < least)) continue;
      least = error;
      best = steps;
    }
    return best;
  }

 private:
  float limit(int k) const { return olive_.threshold() / olive_steps(olive_, k); }

  float squared_error(float steps) const {
    const auto most = static_cast<float>(olive_.largest_normal);
    Lanes errors{};
    for (size_t i = 0; i < sizes_.size(); i += kGroupUnit) {
      for (size_t lane = 0; lane < kGroupUnit; ++lane) {
        errors[lane] += normal_error(sizes_[i + lane] * steps, most);
      }
    }
    float sum = sum_of(errors);
    for (const size_t i : pairs_) {
      const float a = sizes_[i] * steps, b = sizes_[i + 1] * steps;
      if (std::max(a, b) <= olive_.threshold()) continue;
      sum += outlier_error(olive_, std::max(a, b)) + squared(std::min(a, b)) -
             normal_error(a, most) - normal_error(b, most);
    }
    return sum / (steps * steps);
  }

  const OliveNumbers& olive_;
  const std::vector<float>& sizes_;
  int candidates_ = 1;
  std::vector<size_t> pairs_;
};

// `inverse` is 1 over the step. Pairs with outliers are among `pairs`.
void pack(const OliveNumbers& olive, const std::vector<float>& x, int64_t count, float inverse,
          const std::vector<size_t>& pairs, std::vector<int>& scratch, uint8_t* codes) {
  const int mask = (1 << olive.bits) - 1;
  for (size_t i = 0; i < x.size(); ++i) scratch[i] = normal_of(olive, x[i] * inverse) & mask;
  for (const size_t i : pairs) {
    const std::array<int, 2> pair = pair_codes(olive, x[i] * inverse, x[i + 1] * inverse);
    scratch[i] = pair[0];
    scratch[i + 1] = pair[1];
  }
  const auto even = static_cast<size_t>(count + count % 2);
  if (olive.bits == 4) {
    for (size_t i = 0; i < even; i += 2) {
      codes[i / 2] = static_cast<uint8_t>(scratch[i] | scratch[i + 1] << 4);
    }
  } else {
    for (size_t i = 0; i < even; ++i) codes[i] = static_cast<uint8_t>(scratch[i]);
  }
}

template <class Element>
void decode_group(const OliveNumbers& numbers, const uint8_t* codes, int64_t count, float step,
                  Element* x) {
  const float most = largest_of<Element>();
  const auto put = [&](int64_t i, int number) {
    const float value = static_cast<float>(number) * step;
    x[i] = static_cast<Element>(std::clamp(value, -most, most));
  };
  for (int64_t i = 0; i < count; i += 2) {
    const bool has_right = i + 1 < count;
    const int left = numbers.bits == 4 ? codes[i / 2] & 15 : codes[i];
    const int right = numbers.bits == 4 ? codes[i / 2] >> 4 : codes[i + 1];
    const std::array<int, 2> pair = pair_of(numbers, left, right);
    put(i, pair[0]);
    if (has_right) put(i + 1, pair[1]);
  }
}

// The elements of one group that are being encoded, and zeros behind those of the last group.
template <class Element>
struct Group {
  explicit Group(const GroupCodec& codec)
      : numbers(static_cast<size_t>(codec.group)),
        sizes(numbers.size()),
        scratch(numbers.size()),
        decoded(numbers.size()) {}

  // Returns what the codec says about the group.
  Stated encode(const OliveNumbers& olive, const Element* x, int64_t count, float& step,
                uint8_t* codes) {
    std::fill(numbers.begin(), numbers.end(), 0.0f);
    for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(x[i]);
    const float most = largest_in(numbers);
    if (!(most > kLeastOfGroup)) {
      step = std::isnan(most) ? most : 0;
      std::fill(codes, codes + (count + count % 2) * olive.bits / 8, uint8_t{0});
      return {most, most};
    }
    for (size_t i = 0; i < numbers.size(); ++i) sizes[i] = std::fabs(numbers[i]) / most;
    const Search search(olive, sizes);
    const float steps = search.steps_to_largest();
    step = most / steps;
    pack(olive, numbers, count, steps / most, search.pairs(), scratch, codes);
    decode_group(olive, codes, count, step, decoded.data());
    double bound = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto back = static_cast<double>(decoded[i]);
      bound = std::max(bound, std::abs(static_cast<double>(x[i]) - back));
    }
    return {bound, most};
  }

  std::vector<float> numbers, sizes;
  std::vector<int> scratch;
  std::vector<Element> decoded;
};

}  // namespace

Stated encode_olive(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
                    const Place& place) {
  const OliveNumbers& olive = olive_numbers(codec.bits);
  const int64_t groups = groups_in(elements, codec.group);
  std::vector<Stated> all(static_cast<size_t>(groups));
  with_element(type, [&]<class Element>(Element*) {
    const auto* const from = static_cast<const Element*>(x);
    device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
      Group<Element> group(codec);
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g * codec.group, count = std::min(codec.group, elements - first);
        all[g] = group.encode(olive, from + first, count, place.step[g],
                              place.codes + first * codec.bits / 8);
      }
    });
  });
  Stated stated;
  for (const Stated& one : all) {
    if (std::isnan(one.bound)) return one;
    stated.bound = std::max(stated.bound, one.bound);
    stated.largest = std::max(stated.largest, one.largest);
  }
  return stated;
}

void decode_olive(at::ScalarType type, const Place& place, int64_t elements,
                  const GroupCodec& codec, void* x) {
  const OliveNumbers& olive = olive_numbers(codec.bits);
  with_element(type, [&]<class Element>(Element*) {
    auto* const to = static_cast<Element*>(x);
    const int64_t groups = groups_in(elements, codec.group);
    device::parallel_ranges(groups, grain_of(codec), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g * codec.group, count = std::min(codec.group, elements - first);
        decode_group(olive, place.codes + first * codec.bits / 8, count, place.step[g], to + first);
      }
    });
  });
}

}  // namespace reprise::runtime::internal::codec
