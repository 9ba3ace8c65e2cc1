#include "report/axis.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace reprise::report {

namespace {

constexpr std::array<AxisUnit, 5> kByteUnits = {
    {{"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}};
constexpr std::array<AxisUnit, 4> kTimeUnits = {{{"ns", 1}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}}};

template <size_t n>
AxisUnit unit_for(double value, const std::array<AxisUnit, n>& units) {
  AxisUnit best = units[0];
  for (const AxisUnit& unit : units) {
    if (value >= unit.size) best = unit;
  }
  return best;
}

}  // namespace

AxisUnit byte_unit(double value) { return unit_for(value, kByteUnits); }
AxisUnit time_unit(double value) { return unit_for(value, kTimeUnits); }

double nice_step(double span, double unit, int ticks) {
  const double rough = span / unit / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power * unit;
  }
  return 10.0 * power * unit;
}

std::vector<double> Axis::ticks() const {
  std::vector<double> values;
  for (auto k = static_cast<int64_t>(std::ceil(from / step)); static_cast<double>(k) * step <= to;
       ++k) {
    values.push_back(static_cast<double>(k) * step);
  }
  return values;
}

std::string Axis::label(double value) const { return fmt::format("{:g}", value / unit.size); }

}  // namespace reprise::report
