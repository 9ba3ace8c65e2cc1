// A measured problem, with how it was measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"

namespace reprise {

// Spread of one measured time, in ns.
struct TimeSpread {
  std::string op;       // "F3", "B3", "loss"
  std::string variant;  // "fast" or an option
  int64_t repeats = 0;
  Nanos min, median, max;

  bool operator==(const TimeSpread&) const = default;
};

struct Profile {
  std::variant<Chain, Graph> problem;
  std::string device;                           // "cpu", "cuda:0"
  std::map<std::string, std::string> versions;  // "torch": "2.13.0", "reprise": "0.1.0"
  int64_t threads = 0;
  std::vector<std::string> inputs;  // "float32[64, 1, 28, 28]", one per input tensor
  std::string signature;            // of the model: changes when the plan would no longer fit
  std::vector<TimeSpread> spread;

  bool operator==(const Profile&) const = default;
};

}  // namespace reprise
