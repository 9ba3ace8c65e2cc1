// Compares Reprise with periodic recomputation at the peaks of the periodic settings.
#pragma once

#include <cstddef>
#include <vector>

#include "bench_model.h"

namespace reprise::bench {

struct Comparison {
  const Request* request = nullptr;
  size_t periodic = 0;  // index of the setting whose peak it is
  size_t best =
      0;  // the fastest periodic setting within that peak, by the rounds; 0 (plain) if none
  std::vector<double> ratio;  // Reprise's time over the best one's; empty if infeasible
  bool pairs = false;         // true: ratios of neighbouring samples; false: of rounds
};

// Returns a comparison for each distinct peak. Pairs replace the rounds where they were measured.
std::vector<Comparison> comparisons(const ModelResult& result);

// Says how a setting compares with another, from the ratios of many rounds or pairs. It is "slower"
// or "faster" if at least three quarters of them say so, and otherwise "same".
const char* verdict(const std::vector<double>& ratios);

}  // namespace reprise::bench
