// Bytes and nanoseconds as strong 64-bit integers with checked arithmetic, and how people write them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

namespace internal {
[[noreturn]] void throw_overflow();  // InputError: a sum of sizes or times exceeds 64 bits
}

// An integer count of one unit. Sums, differences and multiples throw InputError on overflow, so a
// hostile file can never wrap a size around. Differences may be negative.
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

// "700MiB", "8 GiB", "1.5GB", "123456", "0.5 KiB". Units: B, KB, MB, GB, TB (powers of 1000), KiB, MiB,
// GiB, TiB (powers of 1024), any case. A fraction of a byte is rounded down. InputError otherwise.
Bytes parse_bytes(std::string_view text);

// "10s", "250ms", "1.5 min", "100us", "80ns", "2h"; a bare number is seconds. InputError otherwise.
Nanos parse_duration(std::string_view text);

// "700.0 MiB", "64 B": three or four significant digits in binary units.
std::string format_bytes(Bytes bytes);
// "700.0 MiB (734003200 B)": where the exact number matters.
std::string format_bytes_exact(Bytes bytes);
// "12.3 ms", "1.50 s".
std::string format_duration(Nanos time);

// A limit on device bytes, absolute or as a share of what plain training needs.
class Budget {
 public:
  Budget() = default;                          // no limit
  Budget(Bytes bytes);                         // NOLINT: a number of bytes is a budget
  Budget(std::string_view text);               // NOLINT: "8 GiB", "60%"; InputError otherwise
  Budget(const char* text) : Budget(std::string_view(text)) {}      // NOLINT
  Budget(const std::string& text) : Budget(std::string_view(text)) {}  // NOLINT

  bool unlimited() const { return kind_ == Kind::kUnlimited; }
  bool relative() const { return kind_ == Kind::kShare; }
  // The limit in bytes; shares are of `baseline`, rounded down. No limit: the largest Bytes.
  Bytes resolve(Bytes baseline) const;

  bool operator==(const Budget&) const = default;

 private:
  enum class Kind { kUnlimited, kBytes, kShare };
  Kind kind_ = Kind::kUnlimited;
  int64_t amount_ = 0;   // bytes, or the numerator of the share
  int64_t divisor_ = 1;  // of the share
};

}  // namespace reprise
