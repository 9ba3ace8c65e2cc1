// Bytes and Nanos are strong 64-bit integers with checked arithmetic. The functions below parse and
// print them as people write them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

namespace internal {
[[noreturn]] void throw_overflow();  // Throws InputError: a sum of sizes or times exceeds 64 bits.
}

// A Quantity is an integer count of one unit. Sums, differences and multiples throw InputError on
// overflow, so that a hostile file can never wrap a size around. A difference may be negative.
template <class Unit>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }

  constexpr auto operator<=>(const Quantity&) const = default;

  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.count_, b.count_, &sum)) internal::throw_overflow();
    return Quantity(sum);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    int64_t difference = 0;
    if (__builtin_sub_overflow(a.count_, b.count_, &difference)) internal::throw_overflow();
    return Quantity(difference);
  }
  friend constexpr Quantity operator*(Quantity a, int64_t times) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a.count_, times, &product)) internal::throw_overflow();
    return Quantity(product);
  }
  constexpr Quantity& operator+=(Quantity other) { return *this = *this + other; }
  constexpr Quantity& operator-=(Quantity other) { return *this = *this - other; }

 private:
  int64_t count_ = 0;
};

using Bytes = Quantity<struct BytesUnit>;
using Nanos = Quantity<struct NanosUnit>;

// Parses texts like "700MiB", "8 GiB", "1.5GB", "123456" and "0.5 KiB". The units are B, KB, MB,
// GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024), in upper or lower case. A
// fraction of a byte is rounded down. Throws InputError for any other text.
Bytes parse_bytes(std::string_view text);

// Parses texts like "10s", "250ms", "1.5 min", "100us", "80ns" and "2h". A number alone is seconds.
// Throws InputError for any other text.
Nanos parse_duration(std::string_view text);

// Prints three or four significant digits in binary units: "700.0 MiB", "64 B".
std::string format_bytes(Bytes bytes);
// Prints the exact number too, where it matters: "700.0 MiB (734003200 B)".
std::string format_bytes_exact(Bytes bytes);
// Prints three significant digits: "12.3 ms", "1.50 s".
std::string format_duration(Nanos time);

// A Budget is a limit on device bytes: a number, or a share of what plain training needs.
class Budget {
 public:
  Budget() = default;             // There is no limit.
  Budget(Bytes bytes);            // NOLINT: A number of bytes is a budget.
  Budget(std::string_view text);  // NOLINT: "8 GiB", "60%". Throws InputError otherwise.
  Budget(const char* text) : Budget(std::string_view(text)) {}         // NOLINT
  Budget(const std::string& text) : Budget(std::string_view(text)) {}  // NOLINT

  bool unlimited() const { return kind_ == Kind::kUnlimited; }
  bool relative() const { return kind_ == Kind::kShare; }
  // Returns the limit in bytes. A share is a share of `baseline`, rounded down to a byte. Without a
  // limit, returns the largest Bytes.
  Bytes resolve(Bytes baseline) const;

  bool operator==(const Budget&) const = default;

 private:
  enum class Kind { kUnlimited, kBytes, kShare };
  Kind kind_ = Kind::kUnlimited;
  int64_t amount_ = 0;   // the bytes, or the numerator of the share
  int64_t divisor_ = 1;  // the denominator of the share
};

}  // namespace reprise
