#include "reprise/model/units.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <span>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

// Wide holds the product of two 64-bit counts.
using Wide = __int128;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// A Decimal holds the digits of a number as it was written, without leading zeros in the whole part
// and without trailing zeros in the fraction, so that equal numbers are equal structs. It is exact
// because it uses no floating point.
struct Decimal {
  std::string_view whole;
  std::string_view fraction;
};

struct UnitName {
  std::string_view name;  // in lower case
  int64_t size;
};

constexpr std::array<UnitName, 9> kByteUnits = {{{"b", 1},
                                                 {"kb", 1'000},
                                                 {"mb", 1'000'000},
                                                 {"gb", 1'000'000'000},
                                                 {"tb", 1'000'000'000'000},
                                                 {"kib", int64_t{1} << 10},
                                                 {"mib", int64_t{1} << 20},
                                                 {"gib", int64_t{1} << 30},
                                                 {"tib", int64_t{1} << 40}}};

constexpr std::array<UnitName, 6> kTimeUnits = {{{"ns", 1},
                                                 {"us", 1'000},
                                                 {"ms", 1'000'000},
                                                 {"s", 1'000'000'000},
                                                 {"min", 60'000'000'000},
                                                 {"h", 3'600'000'000'000}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

[[noreturn]] void fail(std::string_view text, std::string_view what, std::string_view hint) {
  throw InputError(fmt::format("\"{}\" {}; write {}", text, what, hint));
}

// Takes the number off the front of `rest`, which is a part of `text`.
Decimal take_number(std::string_view text, std::string_view& rest, std::string_view hint) {
  if (!rest.empty() && rest.front() == '-') fail(text, "is negative", hint);
  Decimal number;
  number.whole = take_digits(rest);
  bool any_digit = !number.whole.empty();
  if (any_digit && !rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    number.fraction = take_digits(rest);
    any_digit = !number.fraction.empty();
  }
  if (!any_digit) fail(text, "does not begin with a number", hint);
  while (!number.whole.empty() && number.whole.front() == '0') number.whole.remove_prefix(1);
  while (!number.fraction.empty() && number.fraction.back() == '0') {
    number.fraction.remove_suffix(1);
  }
  rest = trim(rest);
  return number;
}

// Returns floor(number * size). The size is at most 3.6e12.
int64_t scale(const Decimal& number, int64_t size, std::string_view text, std::string_view hint) {
  Wide total = 0;
  for (const char digit : number.whole) {
    total = total * 10 + Wide{digit - '0'} * size;
    if (total > kLargest) fail(text, "is too large for 64 bits", hint);
  }
  // Rounding down digit by digit, from the last digit on, is exact for any number of digits,
  // because floor((d + x) / 10) = floor((d + floor(x)) / 10).
  int64_t part = 0;
  for (auto digit = number.fraction.rbegin(); digit != number.fraction.rend(); ++digit) {
    part = ((*digit - '0') * size + part) / 10;
  }
  total += part;
  if (total > kLargest) fail(text, "is too large for 64 bits", hint);
  return static_cast<int64_t>(total);
}

// Returns the unit that is called `name`, in upper or lower case. Returns null if there is none.
const UnitName* find_unit(std::string_view name, std::span<const UnitName> units) {
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (const UnitName& unit : units) {
    if (unit.name == lower) return &unit;
  }
  return nullptr;
}

constexpr std::string_view kBytesHint = "bytes like \"700 MiB\", \"1.5GB\" or \"123456\"";
constexpr std::string_view kBudgetHint =
    "a budget like \"700 MiB\", \"1.5GB\", \"123456\" or \"60%\"";
constexpr std::string_view kTimeHint = "a duration like \"10s\", \"250 ms\" or \"1.5 min\"";

int64_t parse_byte_count(std::string_view text, std::string_view hint) {
  std::string_view rest = trim(text);
  const Decimal number = take_number(text, rest, hint);
  if (rest.empty() && !number.fraction.empty()) fail(text, "has a fraction but no unit", hint);
  const UnitName* unit = rest.empty() ? &kByteUnits[0] : find_unit(rest, kByteUnits);
  if (unit == nullptr) fail(text, fmt::format("has the unknown unit \"{}\"", rest), hint);
  return scale(number, unit->size, text, hint);
}

// A PrintUnit is a unit to print in. The next unit is `next` times as large.
struct PrintUnit {
  const char* name;
  uint64_t size;
  uint64_t next;
};

// Prints the count in the first unit in which the rounded number is below `next`; the last unit
// takes any number. In the smallest unit the number has no decimals. Otherwise it has two, one or
// none: as many as possible while its digits, read as one integer, stay below `digit_limit`.
std::string print(int64_t count, std::span<const PrintUnit> units, Wide digit_limit) {
  const char* sign = count < 0 ? "-" : "";
  const Wide magnitude = count < 0 ? -Wide{count} : Wide{count};
  if (magnitude < units[0].next) {
    return fmt::format("{}{} {}", sign, static_cast<int64_t>(magnitude), units[0].name);
  }
  for (const PrintUnit& unit : units.subspan(1)) {
    const bool last = &unit == &units.back();
    Wide power = 100;
    for (int decimals = 2; decimals >= 0; --decimals, power /= 10) {
      const Wide scaled = (magnitude * power + unit.size / 2) / unit.size;
      if (decimals > 0 && scaled >= digit_limit) continue;
      if (!last && scaled >= unit.next * power) break;
      const auto whole = static_cast<int64_t>(scaled / power);
      const auto fraction = static_cast<int64_t>(scaled % power);
      if (decimals == 0) return fmt::format("{}{} {}", sign, whole, unit.name);
      return fmt::format("{}{}.{:0{}} {}", sign, whole, fraction, decimals, unit.name);
    }
  }
  throw InternalError("no unit to print a number in");
}

}  // namespace

namespace internal {
void throw_overflow() {
  throw InputError("a sum of sizes or times does not fit 64 bits; use smaller numbers");
}
}  // namespace internal

Bytes parse_bytes(std::string_view text) { return Bytes(parse_byte_count(text, kBytesHint)); }

Nanos parse_duration(std::string_view text) {
  std::string_view rest = trim(text);
  const Decimal number = take_number(text, rest, kTimeHint);
  const UnitName* unit = find_unit(rest.empty() ? "s" : rest, kTimeUnits);
  if (unit == nullptr) fail(text, fmt::format("has the unknown unit \"{}\"", rest), kTimeHint);
  return Nanos(scale(number, unit->size, text, kTimeHint));
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<PrintUnit, 5> kUnits = {{{"B", 1, 1024},
                                                       {"KiB", uint64_t{1} << 10, 1024},
                                                       {"MiB", uint64_t{1} << 20, 1024},
                                                       {"GiB", uint64_t{1} << 30, 1024},
                                                       {"TiB", uint64_t{1} << 40, 1024}}};
  return print(bytes.count(), kUnits, 10'000);
}

std::string format_bytes_exact(Bytes bytes) {
  const std::string rounded = format_bytes(bytes);
  const std::string exact = fmt::format("{} B", bytes.count());
  return rounded == exact ? exact : fmt::format("{} ({})", rounded, exact);
}

std::string format_duration(Nanos time) {
  static constexpr std::array<PrintUnit, 6> kUnits = {{{"ns", 1, 1000},
                                                       {"us", 1'000, 1000},
                                                       {"ms", 1'000'000, 1000},
                                                       {"s", 1'000'000'000, 60},
                                                       {"min", 60'000'000'000, 60},
                                                       {"h", 3'600'000'000'000, 1}}};
  return print(time.count(), kUnits, 1'000);
}

Budget::Budget(Bytes bytes) : kind_(Kind::kBytes), amount_(bytes.count()) {
  if (amount_ < 0) {
    throw InputError(fmt::format("a budget of {} bytes is negative; give a number of bytes >= 0",
                                 bytes.count()));
  }
}

Budget::Budget(std::string_view text) {
  std::string_view rest = trim(text);
  if (rest.empty() || rest.back() != '%') {
    kind_ = Kind::kBytes;
    amount_ = parse_byte_count(text, kBudgetHint);
    return;
  }
  kind_ = Kind::kShare;
  rest.remove_suffix(1);
  const Decimal number = take_number(text, rest, kBudgetHint);
  if (!rest.empty()) fail(text, "is not a share", kBudgetHint);
  // Here amount / divisor = number / 100, and both stay below 1e18.
  if (number.whole.size() > 9) fail(text, "is too large a share", kBudgetHint);
  if (number.fraction.size() > 9) fail(text, "has more than nine decimals", kBudgetHint);
  divisor_ = 100;
  for (const char digit : number.whole) amount_ = amount_ * 10 + (digit - '0');
  for (const char digit : number.fraction) {
    amount_ = amount_ * 10 + (digit - '0');
    divisor_ *= 10;
  }
}

Bytes Budget::resolve(Bytes baseline) const {
  switch (kind_) {
    case Kind::kUnlimited:
      return Bytes(kLargest);
    case Kind::kBytes:
      return Bytes(amount_);
    case Kind::kShare:
      break;
  }
  if (baseline < Bytes(0)) throw InputError("a share of a negative number of bytes is no budget");
  const Wide limit = Wide{baseline.count()} * amount_ / divisor_;
  if (limit > kLargest) internal::throw_overflow();
  return Bytes(static_cast<int64_t>(limit));
}

}  // namespace reprise
