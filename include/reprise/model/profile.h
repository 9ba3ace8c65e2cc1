// A Profile is a measured problem with a record of how it was measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"

namespace reprise {

// A TimeSpread is the spread of one measured time, by the wall clock.
struct TimeSpread {
  std::string op;       // the id of the op: "F3", "B3", "loss"
  std::string variant;  // the name of the variant: "fast" or that of an option
  int64_t repeats = 0;
  Nanos min, median, max;

  bool operator==(const TimeSpread&) const = default;
};

struct Profile {
  std::variant<Chain, Graph> problem;
  std::string device;                           // "cpu", "cuda:0"
  std::map<std::string, std::string> versions;  // "torch": "2.13.0", "reprise": "0.1.0"
  int64_t threads = 0;
  std::vector<std::string> inputs;  // one text for each input tensor: "float32[64, 1, 28, 28]"
  std::string signature;            // changes when a plan would no longer fit the model
  std::vector<TimeSpread> spread;
  // The share of the time in which the threads of the measurement had a processor when they needed
  // one; 100 on a machine that was not busy with other work.
  int64_t processor_percent = 100;

  bool operator==(const Profile&) const = default;
};

}  // namespace reprise
