// Reprise against periodic recomputation at the peaks of the periodic settings.
#pragma once

#include <cstddef>
#include <vector>

#include "bench_model.h"

namespace reprise::bench {

struct Comparison {
  const Request* request = nullptr;
  size_t periodic = 0;  // whose peak it is
  size_t best =
      0;  // the fastest periodic setting within that peak, by the rounds; 0 (plain) if none
  std::vector<double> ratio;  // of Reprise's time over the best one's; empty if infeasible
  bool pairs = false;         // the ratios are of neighbouring samples, not of rounds
};

// One for each distinct peak. Pairs, where they were measured, replace the rounds.
std::vector<Comparison> comparisons(const ModelResult& result);

// How a setting compares with another, from the ratios of many rounds or pairs: "slower" and "faster" if at
// least three quarters of them say so, "same" otherwise.
const char* verdict(const std::vector<double>& ratios);

}  // namespace reprise::bench
