// These are the numbers of OliVe: a code of 4 or 8 bits and what it stands for, in steps of its
// group.
//
// Of a pair of neighbours, the code of a normal number is an integer in two's complement. The code
// that would be the least integer is the identifier: it says that its element is a victim, which is
// zero, and that the other code of the pair is an outlier. The code of an outlier is an abfloat: a
// sign, an exponent e and a mantissa m stand for +-(2^mantissa_bits + m) << (e + bias). The codes
// with e = m = 0 are no outliers, so that no outlier looks like the identifier.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace reprise::runtime::internal::codec {

struct OliveNumbers {
  int bits, mantissa_bits, bias;
  int largest_normal;

  constexpr int identifier() const { return 1 << (bits - 1); }
  // These functions return the least and the largest magnitude of an outlier.
  constexpr int first_outlier() const { return ((1 << mantissa_bits) + 1) << bias; }
  constexpr int last_outlier() const {
    const int exponents = 1 << (bits - 1 - mantissa_bits);
    return ((2 << mantissa_bits) - 1) << (exponents - 1 + bias);
  }
  // A larger number is nearer to an outlier than to a normal number.
  constexpr float threshold() const {
    return static_cast<float>(largest_normal + first_outlier()) / 2;
  }
};

// 4 bits: integers up to 7, and E2M1 with bias 2, from 12 to 96. 8 bits: integers up to 127, and E4M3
// with bias 4, from 144 on.
constexpr OliveNumbers kOlive4{.bits = 4, .mantissa_bits = 1, .bias = 2, .largest_normal = 7};
constexpr OliveNumbers kOlive8{.bits = 8, .mantissa_bits = 3, .bias = 4, .largest_normal = 127};

inline const OliveNumbers& olive_numbers(int bits) { return bits == 4 ? kOlive4 : kOlive8; }

// Returns the number that an outlier's code stands for.
inline int abfloat(const OliveNumbers& numbers, int code) {
  const int magnitude = code & (numbers.identifier() - 1);
  const int mantissa = magnitude & ((1 << numbers.mantissa_bits) - 1);
  const int exponent = magnitude >> numbers.mantissa_bits;
  const int number = ((1 << numbers.mantissa_bits) + mantissa) << (exponent + numbers.bias);
  return (code & numbers.identifier()) != 0 ? -number : number;
}

// Returns the code of the outlier that is nearest to x, which is a number (algorithm 2 of the
// paper).
inline int abfloat_code(const OliveNumbers& numbers, float x) {
  const float magnitude = std::fabs(x);
  const int sign = x < 0 ? numbers.identifier() : 0;
  if (magnitude <= static_cast<float>(numbers.first_outlier())) return sign | 1;
  if (magnitude >= static_cast<float>(numbers.last_outlier())) {
    return sign | (numbers.identifier() - 1);
  }
  int exponent = std::ilogb(magnitude) - numbers.mantissa_bits;
  int base = static_cast<int>(std::lround(std::ldexp(magnitude, -exponent)));
  if (base == 2 << numbers.mantissa_bits) {
    ++exponent;
    base >>= 1;
  }
  const int mantissa = base - (1 << numbers.mantissa_bits);
  return sign | (exponent - numbers.bias) << numbers.mantissa_bits | mantissa;
}

// Returns the normal number that is nearest to x.
inline int normal_of(const OliveNumbers& numbers, float x) {
  const auto most = static_cast<float>(numbers.largest_normal);
  const float bounded = x < -most ? -most : x > most ? most : x;
  return static_cast<int>(bounded + (bounded < 0 ? -0.5f : 0.5f));
}

// Returns the codes of a pair (algorithm 1 of the paper). Of two outliers the larger one stays.
inline std::array<int, 2> pair_codes(const OliveNumbers& numbers, float left, float right) {
  const float a = std::fabs(left), b = std::fabs(right), threshold = numbers.threshold();
  if (a > threshold && a >= b) return {abfloat_code(numbers, left), numbers.identifier()};
  if (b > threshold) return {numbers.identifier(), abfloat_code(numbers, right)};
  const int mask = (1 << numbers.bits) - 1;
  return {normal_of(numbers, left) & mask, normal_of(numbers, right) & mask};
}

inline std::array<int, 2> pair_of(const OliveNumbers& numbers, int left, int right) {
  const int identifier = numbers.identifier();
  const auto normal = [&](int code) { return (code ^ identifier) - identifier; };
  if (left == identifier) return {0, right == identifier ? 0 : abfloat(numbers, right)};
  if (right == identifier) return {abfloat(numbers, left), 0};
  return {normal(left), normal(right)};
}

}  // namespace reprise::runtime::internal::codec
