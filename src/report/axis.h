// This header has the axes of pictures: their units, and ticks at round numbers.
#pragma once

#include <string>
#include <vector>

namespace reprise::report {

struct AxisUnit {
  const char* name = "";
  double size = 1;
};

// These functions return the largest unit in which `value` is at least 1.
AxisUnit byte_unit(double value);  // B, KiB, ...
AxisUnit time_unit(double value);  // ns, µs, ms, s; `value` in ns

// Returns 1, 2 or 5 times a power of ten units, for about `ticks` ticks.
double nice_step(double span, double unit, int ticks);

struct Axis {
  double from = 0, to = 1;    // range of the data, in bytes or nanoseconds
  double start = 0, end = 1;  // pixels
  AxisUnit unit;
  double step = 1;  // between ticks

  double pixel(double value) const { return start + (value - from) / (to - from) * (end - start); }
  std::vector<double> ticks() const;
  std::string label(double value) const;  // without the unit
};

}  // namespace reprise::report
