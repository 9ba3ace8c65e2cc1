// Tests OliVe's codec: what each code stands for, the nearest numbers, pairs, odd lengths, special
// numbers, and the same by operations.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/group_codec.h"
#include "runtime/codec/olive_numbers.h"
#include "runtime/codec/olive_steps.h"
#include "runtime/nn/group_codec.h"

namespace reprise::runtime::nn {
namespace {

using internal::codec::abfloat;
using internal::codec::abfloat_code;
using internal::codec::kOlive4;
using internal::codec::kOlive8;
using internal::codec::normal_of;
using internal::codec::OliveNumbers;
using internal::codec::pair_codes;
using internal::codec::pair_of;

GroupCodec olive(int bits, int64_t group = 256) {
  return {.bits = bits, .group = group, .kind = CodecKind::kOlive};
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// These are the magnitudes of the paper's E2M1 with bias 2, written out.
TEST(OliveNumbers, FourBitsAreThoseOfThePaper) {
  const std::vector<int> outliers{0, 12, 16, 24, 32, 48, 64, 96};
  for (int code = 1; code < 8; ++code) {
    EXPECT_EQ(abfloat(kOlive4, code), outliers[static_cast<size_t>(code)]);
    EXPECT_EQ(abfloat(kOlive4, code | 8), -outliers[static_cast<size_t>(code)]);
  }
  EXPECT_EQ(kOlive4.identifier(), 8);
  EXPECT_EQ(kOlive4.first_outlier(), 12);
  EXPECT_EQ(kOlive4.last_outlier(), 96);
  EXPECT_EQ(kOlive8.identifier(), 128);
  EXPECT_EQ(kOlive8.first_outlier(), 9 << 4);
  EXPECT_EQ(kOlive8.last_outlier(), 15 << 19);
  EXPECT_EQ(abfloat(kOlive8, 0x85), -13 * 16);  // sign, e = 0, m = 5
}

// All codes of both widths: an outlier's code is that of its own number, and codes are in order.
TEST(OliveNumbers, EachCodeIsTheNearestOfItsNumber) {
  for (const OliveNumbers& numbers : {kOlive4, kOlive8}) {
    std::map<int, int> code_of;  // by number
    for (int code = 0; code < 2 * numbers.identifier(); ++code) {
      if ((code & (numbers.identifier() - 1)) == 0) continue;  // no outlier
      const int number = abfloat(numbers, code);
      EXPECT_EQ(abfloat_code(numbers, static_cast<float>(number)), code) << number;
      EXPECT_TRUE(code_of.emplace(number, code).second) << number;
    }
    EXPECT_EQ(code_of.size(), static_cast<size_t>(2 * numbers.identifier() - 2));
    // Between two outliers of a sign the code is that of the nearer one; the middle goes outwards.
    for (auto next = std::next(code_of.begin()); next != code_of.end(); ++next) {
      const auto [low, low_code] = *std::prev(next);
      const auto [high, high_code] = *next;
      if (low < 0 && high > 0) continue;
      const double middle = (static_cast<double>(low) + high) / 2;
      const auto code_at = [&](double x) { return abfloat_code(numbers, static_cast<float>(x)); };
      const double little = (static_cast<double>(high) - low) / 64;
      EXPECT_EQ(code_at(middle - little), low_code) << middle;
      EXPECT_EQ(code_at(middle + little), high_code) << middle;
      EXPECT_EQ(code_at(middle), low < 0 ? low_code : high_code) << middle;
    }
    EXPECT_EQ(abfloat_code(numbers, 1e30f), numbers.identifier() - 1);
    EXPECT_EQ(abfloat_code(numbers, -1e30f), 2 * numbers.identifier() - 1);
    for (int n = -numbers.largest_normal; n <= numbers.largest_normal; ++n) {
      EXPECT_EQ(normal_of(numbers, static_cast<float>(n) + 0.49f), n);
      EXPECT_EQ(normal_of(numbers, static_cast<float>(n) - 0.49f), n);
    }
    EXPECT_EQ(normal_of(numbers, 1e30f), numbers.largest_normal);
  }
}

// Every pair of codes decodes to a pair that has these codes, or to one without an outlier.
TEST(OliveNumbers, PairsOfAllCodes) {
  for (const OliveNumbers& numbers : {kOlive4, kOlive8}) {
    const int codes = 2 * numbers.identifier(), identifier = numbers.identifier();
    for (int left = 0; left < codes; ++left) {
      for (int right = 0; right < codes; ++right) {
        const auto pair = pair_of(numbers, left, right);
        const int outlier = left == identifier ? right : right == identifier ? left : 1;
        if ((outlier & (identifier - 1)) == 0) continue;  // codes that no encoder makes
        const auto back =
            pair_codes(numbers, static_cast<float>(pair[0]), static_cast<float>(pair[1]));
        ASSERT_EQ(back[0], left) << left << " " << right;
        ASSERT_EQ(back[1], right) << left << " " << right;
      }
    }
    const auto near_threshold = pair_codes(numbers, numbers.threshold(), -numbers.threshold());
    EXPECT_EQ(pair_of(numbers, near_threshold[0], near_threshold[1])[0], numbers.largest_normal);
    // Of two outliers the larger one stays; of two equal ones the first.
    EXPECT_EQ(pair_codes(numbers, 200, -400)[0], identifier);
    EXPECT_EQ(pair_codes(numbers, -400, 200)[1], identifier);
    EXPECT_EQ(pair_codes(numbers, 400, -400)[1], identifier);
  }
}

// Returns the squared error with a step, by the formulas and without the codec's loops.
double error_by_hand(const std::vector<double>& x, const OliveNumbers& numbers, double step) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); i += 2) {
    const double right = i + 1 < x.size() ? x[i + 1] : 0;
    const auto codes =
        pair_codes(numbers, static_cast<float>(x[i] / step), static_cast<float>(right / step));
    const auto pair = pair_of(numbers, codes[0], codes[1]);
    sum += std::pow(x[i] - pair[0] * step, 2) + std::pow(right - pair[1] * step, 2);
  }
  return sum;
}

TEST(OliveCodec, ErrorsAreThoseOfTheFormula) {
  at::manual_seed(1);
  for (const int bits : {8, 4}) {
    const OliveNumbers& numbers = internal::codec::olive_numbers(bits);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const int64_t elements : {1961, 512, 17}) {
        SCOPED_TRACE(fmt::format("{} bits, {}, {} elements", bits, c10::toString(type), elements));
        at::Tensor x = at::randn({elements});
        x.slice(0, 5, elements, 97).mul_(40);  // outliers, some beside each other
        x.slice(0, 6, elements, 194).mul_(30);
        x = x.to(type);
        const Encoded encoded = encode(x, olive(bits));
        const at::Tensor decoded = decode(encoded);
        EXPECT_EQ(decoded.scalar_type(), type);
        EXPECT_EQ(largest_difference(decoded, x), encoded.largest_error());
        EXPECT_LE(encoded.bytes(), (elements + 1) * bits / 8 + 4 * ((elements + 255) / 256) + 8);
        const at::Tensor wide = x.to(at::kDouble), back = decoded.to(at::kDouble);
        for (int64_t first = 0; first < elements; first += 256) {
          const at::Tensor some = wide.slice(0, first, first + 256),
                           near = back.slice(0, first, first + 256);
          const std::vector<double> list(some.data_ptr<double>(),
                                         some.data_ptr<double>() + some.numel());
          const double most = some.abs().max().item<double>();
          const double taken = (some - near).square().sum().item<double>();
          // The codec chose the best of all candidates, up to the rounding of the type.
          for (int k = 0; k < internal::codec::kOliveCandidates; ++k) {
            const double step = most / internal::codec::olive_steps(numbers, k);
            if ((some.abs() > step * numbers.threshold()).sum().item<int64_t>() > 256 / 16) break;
            EXPECT_LE(taken, error_by_hand(list, numbers, step) * 1.05 + 1e-4 * most * most);
          }
          // Nothing lies beyond the range: the largest element is off by at most a fifth.
          EXPECT_LE((some - near).abs().index({some.abs() == most}).max().item<double>(),
                    most / 4.9);
        }
        // Operations of PyTorch do the same, up to ties of rounding.
        Encoded other = encoded;
        internal::nn::encode_by_operations(x, other);
        EXPECT_LE(largest_difference(other.step, encoded.step),
                  1e-6 * encoded.step.max().item<double>());
        EXPECT_LE((other.codes != encoded.codes).sum().item<int64_t>(), 2);
        EXPECT_TRUE(at::equal(internal::nn::decode_by_operations(encoded), decoded));
        EXPECT_GE(other.largest_error(),
                  largest_difference(internal::nn::decode_by_operations(other), x) * (1 - 1e-6));
      }
    }
  }
}

// One large element in a group makes all the others of a range codec coarse, and costs OliVe one
// neighbour.
TEST(OliveCodec, AnOutlierCostsItsNeighbourAlone) {
  at::manual_seed(2);
  at::Tensor x = at::rand({256}) * 2 - 1;
  x[40] = 30;
  const auto squared = [&](const GroupCodec& codec) {
    return (decode(encode(x, codec)) - x).square().mean().item<double>();
  };
  const at::Tensor decoded = decode(encode(x, olive(4)));
  EXPECT_EQ(decoded[41].item<float>(), 0);
  EXPECT_LT(std::abs(decoded[40].item<float>() - 30), 30.0 / 5);
  EXPECT_LT(10 * squared(olive(4)), squared({.bits = 4}));
}

TEST(OliveCodec, SpecialGroups) {
  for (const int bits : {8, 4}) {
    at::Tensor wrong = at::randn({1024});
    wrong[300] = std::numeric_limits<float>::infinity();
    wrong[900] = std::nanf("");
    const Encoded encoded = encode(wrong, olive(bits));
    const at::Tensor decoded = decode(encoded);
    EXPECT_TRUE(std::isnan(encoded.largest_error()));
    EXPECT_TRUE(decoded.slice(0, 256, 512).isnan().all().item<bool>());
    EXPECT_TRUE(decoded.slice(0, 768, 1024).isnan().all().item<bool>());
    EXPECT_TRUE(decoded.slice(0, 0, 256).isfinite().all().item<bool>());
    Encoded other = encoded;
    internal::nn::encode_by_operations(wrong, other);
    EXPECT_TRUE(at::equal(internal::nn::decode_by_operations(other).isnan(), decoded.isnan()));

    EXPECT_TRUE(at::equal(decode(encode(at::zeros({300}), olive(bits))), at::zeros({300})));
    const at::Tensor tiny = at::full({300}, 1e-40f);  // subnormal
    EXPECT_TRUE(at::equal(decode(encode(tiny, olive(bits))), at::zeros({300})));
    EXPECT_EQ(encode(tiny, olive(bits)).largest_error(), tiny[0].item<double>());
    const at::Tensor small = at::linspace(-1e-33, 1e-33, 256);
    EXPECT_LT(largest_difference(decode(encode(small, olive(bits))), small), 2e-34);
    const at::Tensor large = at::linspace(-3.4e38, 3.4e38, 256, at::kDouble).to(at::kFloat);
    EXPECT_TRUE(decode(encode(large, olive(bits))).isfinite().all().item<bool>());
    at::Tensor half = at::rand({256}, at::kHalf);
    half[7] = 65504;  // the largest number of the type
    EXPECT_TRUE(decode(encode(half, olive(bits))).isfinite().all().item<bool>());
    EXPECT_EQ(decode(encode(at::empty({0, 4}), olive(bits))).sizes(), at::IntArrayRef({0, 4}));
    at::Tensor odd = at::zeros({17});
    odd[16] = 5;  // an element without a neighbour
    EXPECT_LT(largest_difference(decode(encode(odd, olive(bits, 16))), odd), 1e-6);
    const at::Tensor last = at::randn({2, 8, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
    EXPECT_EQ(decode(encode(last, olive(bits))).strides(), last.strides());
  }
}

TEST(OliveCodec, WhatIsRefused) {
  const at::Tensor x = at::randn({8});
  EXPECT_THROW(encode(x, olive(2)), InputError);
  EXPECT_THROW(encode(x, {.bits = 4, .stochastic = true, .kind = CodecKind::kOlive}), InputError);
  EXPECT_THROW(encode(x, olive(4, 8)), InputError);
}

}  // namespace
}  // namespace reprise::runtime::nn
