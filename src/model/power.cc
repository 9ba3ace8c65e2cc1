#include "reprise/model/power.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <unordered_map>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

constexpr int64_t kMostMilliwatts = 1'000'000'000'000;  // a gigawatt

struct PowerUnit {
  std::string_view name;
  double factor;
};
constexpr PowerUnit kPowers[] = {{"mW", 1}, {"kW", 1e6}, {"W", 1e3}};
constexpr PowerUnit kCopies[] = {{"pJ/B", 1}, {"nJ/B", 1e3}};

void check_power_number(int64_t number, const std::string& pointer) {
  if (number < 0) throw InputError("must not be negative", {.pointer = pointer});
  if (number > kMostMilliwatts) {
    throw InputError(fmt::format("must not be above {}", kMostMilliwatts), {.pointer = pointer});
  }
}

template <size_t kCount>
int64_t parse_amount(std::string_view text, const PowerUnit (&units)[kCount],
                     std::string_view whole) {
  for (const PowerUnit& unit : units) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.name.size());
    double amount = 0;
    const auto [end, error] = std::from_chars(number.begin(), number.end(), amount);
    if (error == std::errc() && end == number.end() && amount >= 0 &&
        amount * unit.factor <= static_cast<double>(kMostMilliwatts)) {
      return std::llround(amount * unit.factor);
    }
    break;
  }
  throw InputError(
      fmt::format("\"{}\" in \"{}\" is no amount of 0 or more with a unit; write it "
                  "like static=20W,dynamic=45W,copy=60pJ/B",
                  text, whole));
}

}  // namespace

void validate(const Power& power) {
  check_power_number(power.static_mw, "/static_mw");
  check_power_number(power.dynamic_mw, "/dynamic_mw");
  check_power_number(power.copy_pj_per_byte, "/copy_pj_per_byte");
  std::set<std::pair<std::string_view, std::string_view>> rows;
  for (size_t k = 0; k < power.ops.size(); ++k) {
    const OpPower& row = power.ops[k];
    const std::string at = fmt::format("/ops/{}", k);
    check_power_number(row.dynamic_mw, at + "/dynamic_mw");
    if (row.op.empty()) throw InputError("must name an op", {.pointer = at + "/op"});
    if (!rows.emplace(row.op, row.variant).second) {
      throw InputError(fmt::format("there are two rows for op '{}'{}", row.op,
                                   row.variant.empty() ? "" : " and variant '" + row.variant + "'"),
                       {.pointer = at});
    }
  }
}

Power parse_watts(std::string_view text) {
  Power power;
  std::set<std::string_view> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    const bool ends_in_comma = comma + 1 == rest.size();
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals);
    const std::string_view amount = part.substr(std::min(equals + 1, part.size()));
    if (ends_in_comma) throw InputError(fmt::format("\"{}\" ends in a comma", text));
    if (!seen.insert(key).second) {
      throw InputError(fmt::format("\"{}\" gives \"{}\" twice", text, key));
    }
    if (key == "static") {
      power.static_mw = parse_amount(amount, kPowers, text);
    } else if (key == "dynamic") {
      power.dynamic_mw = parse_amount(amount, kPowers, text);
    } else if (key == "copy") {
      power.copy_pj_per_byte = parse_amount(amount, kCopies, text);
    } else {
      throw InputError(
          fmt::format("\"{}\" in \"{}\" is not static, dynamic or copy; write a power "
                      "like static=20W,dynamic=45W,copy=60pJ/B",
                      key, text));
    }
  }
  if (seen.empty()) {
    throw InputError("an empty text is no power; write it like static=20W,dynamic=45W");
  }
  return power;
}

std::vector<std::vector<int64_t>> dynamic_power(const Graph& graph, const Power& power) {
  std::vector<std::vector<int64_t>> result;
  std::unordered_map<std::string_view, size_t> position;
  for (size_t k = 0; k < graph.ops.size(); ++k) {
    position.emplace(graph.ops[k].id, k);
    result.emplace_back(graph.ops[k].variants.size(), power.dynamic_mw);
  }
  for (const bool whole_ops : {true, false}) {  // rows of single variants win
    for (size_t row = 0; row < power.ops.size(); ++row) {
      const OpPower& one = power.ops[row];
      const Location at{.pointer = fmt::format("/ops/{}", row)};
      const auto found = position.find(one.op);
      if (found == position.end()) {
        throw InputError(fmt::format("the power names the op '{}', which \"{}\" does not have",
                                     one.op, graph.name),
                         at);
      }
      if (one.variant.empty() != whole_ops) continue;
      const Op& op = graph.ops[found->second];
      bool known = whole_ops;
      for (size_t v = 0; v < op.variants.size(); ++v) {
        if (!whole_ops && op.variants[v].name != one.variant) continue;
        result[found->second][v] = one.dynamic_mw;
        known = true;
      }
      if (!known) {
        throw InputError(fmt::format("the power names the variant '{}' of op '{}', which it does "
                                     "not have",
                                     one.variant, one.op),
                         at);
      }
    }
  }
  return result;
}

std::string format_energy(Picojoules energy) {
  const auto joules = static_cast<double>(energy.count()) * 1e-12;
  struct Scale {
    double unit;
    const char* name;
  };
  for (const Scale& scale :
       {Scale{1e3, "kJ"}, {1, "J"}, {1e-3, "mJ"}, {1e-6, "uJ"}, {1e-9, "nJ"}}) {
    if (joules >= 0.9995 * scale.unit) {
      const double amount = joules / scale.unit;
      const int digits = amount < 9.995 ? 2 : amount < 99.95 ? 1 : 0;
      return fmt::format("{:.{}f} {}", amount, digits, scale.name);
    }
  }
  return fmt::format("{} pJ", energy.count());
}

std::string format_power(int64_t milliwatts) {
  return fmt::format("{:g}W", static_cast<double>(milliwatts) / 1e3);
}

}  // namespace reprise
