// Finds the best piecewise constant approximation of a derivative, by dynamic programming.
//
// Novikov et al., arXiv 2202.00441, section 3: minimize the integral of (f'(x) - y_i)^2 over the
// boundaries s_i and the levels y_i. Between two boundaries the best level is the mean of f'. With
// n cells on the range,
//
//   D[m][j] = min over i < j of D[m - 1][i] + C(i, j)
//   C(i, j) = integral of f'^2 from i to j - (integral of f' from i to j)^2 / (length of i to j)
//
//   n, K, s, y             StepOptions::cells, 2^bits, StepTable::boundaries, StepTable::levels
//   the integrals of C     Sums, by prefix sums over cells (Gauss-Legendre, three points a cell)
//
// Time O(n^2 K), memory O(n K). Tests: tests/runtime/few_bit_test.cc (an exhaustive search).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/few_bit.h"

namespace reprise::runtime::nn {
namespace {

constexpr int kMostBits = 5;
constexpr int kMostCells = 30'000;  // a cell's number has 16 bits

struct Sums {
  std::vector<double> first{0}, second{0};  // up to each boundary of cells: of f' and of f'^2
  double width = 0;                         // of a cell

  double mean(size_t i, size_t j) const {
    return (first[j] - first[i]) / (width * static_cast<double>(j - i));
  }
  double cost(size_t i, size_t j) const {
    return std::max(0.0, second[j] - second[i] - (first[j] - first[i]) * mean(i, j));
  }
};

Sums sums_of(const std::function<double(double)>& derivative, const StepOptions& options) {
  constexpr std::array<double, 3> kWeights = {5.0 / 18, 8.0 / 18, 5.0 / 18};
  const double offset = std::sqrt(0.6) / 2;
  const std::array<double, 3> places = {0.5 - offset, 0.5, 0.5 + offset};
  Sums sums;
  sums.width = (options.high - options.low) / options.cells;
  for (int cell = 0; cell < options.cells; ++cell) {
    double first = 0, second = 0;
    for (size_t p = 0; p < places.size(); ++p) {
      const double x = options.low + sums.width * (cell + places[p]);
      const double value = derivative(x);
      if (!std::isfinite(value)) {
        throw InputError("the derivative is not finite at " + std::to_string(x));
      }
      first += kWeights[p] * value;
      second += kWeights[p] * value * value;
    }
    sums.first.push_back(sums.first.back() + sums.width * first);
    sums.second.push_back(sums.second.back() + sums.width * second);
  }
  return sums;
}

// Returns the ends of the steps, in cells: 0, ..., cells.
std::vector<size_t> best_ends(const Sums& sums, size_t cells, size_t steps) {
  const size_t row = steps + 1;
  std::vector<double> least((cells + 1) * row, std::numeric_limits<double>::infinity());
  std::vector<uint16_t> from((cells + 1) * row, 0);
  least[0] = 0;
  for (size_t j = 1; j <= cells; ++j) {
    double* const here = &least[j * row];
    uint16_t* const chosen = &from[j * row];
    for (size_t i = 0; i < j; ++i) {
      const double cost = sums.cost(i, j);
      const double* const before = &least[i * row];
      for (size_t m = 1; m <= steps; ++m) {
        const double value = before[m - 1] + cost;
        const bool better = value < here[m];
        here[m] = better ? value : here[m];
        chosen[m] = better ? static_cast<uint16_t>(i) : chosen[m];
      }
    }
  }
  std::vector<size_t> ends{cells};
  for (size_t m = steps; m > 0; --m) ends.push_back(from[ends.back() * row + m]);
  std::reverse(ends.begin(), ends.end());
  return ends;
}

void check(const StepOptions& options) {
  if (options.bits < 1 || options.bits > kMostBits) {
    throw InputError("bits: " + std::to_string(options.bits) + " is not 1 to 5");
  }
  if (!(options.low < options.high) || !std::isfinite(options.high - options.low)) {
    throw InputError("the range of the steps is empty or not finite: low must be below high");
  }
  if (options.cells < 1 << options.bits || options.cells > kMostCells) {
    throw InputError("cells: " + std::to_string(options.cells) +
                     " is not between the number of steps, " + std::to_string(1 << options.bits) +
                     ", and " + std::to_string(kMostCells));
  }
}

}  // namespace

StepTable best_steps(const std::function<double(double)>& derivative, const StepOptions& options) {
  check(options);
  if (!derivative) throw InputError("there is no derivative to approximate");
  const Sums sums = sums_of(derivative, options);
  const auto ends = best_ends(sums, static_cast<size_t>(options.cells), size_t{1} << options.bits);
  StepTable table;
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const double level = sums.mean(ends[s], ends[s + 1]);
    if (s > 0) table.boundaries.push_back(options.low + sums.width * static_cast<double>(ends[s]));
    table.levels.push_back(level);
    table.squared_error += sums.cost(ends[s], ends[s + 1]);
    for (size_t edge = ends[s]; edge <= ends[s + 1]; ++edge) {
      const double x = options.low + sums.width * static_cast<double>(edge);
      table.largest_error = std::max(table.largest_error, std::abs(derivative(x) - level));
    }
  }
  return table;
}

}  // namespace reprise::runtime::nn
