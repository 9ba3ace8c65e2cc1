// A Power says what a device draws, so that a plan's energy can be computed: the plan's time times
// the static power, the time of each run times its dynamic power, and the bytes of copies times the
// energy of a byte.
//
// All numbers are integers. A nanosecond at one milliwatt is one picojoule, so that energies are
// exact sums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise {

using Picojoules = Quantity<struct PicojoulesUnit>;

// An OpPower is the dynamic power of one op, or of one of its variants.
struct OpPower {
  std::string op;            // the id in the graph; in that of a chain "F0", "loss" or "B0"
  std::string variant = {};  // empty: every variant that has no row of its own
  int64_t dynamic_mw = 0;

  bool operator==(const OpPower&) const = default;
};

struct Power {
  int64_t static_mw = 0;         // drawn all the time
  int64_t dynamic_mw = 0;        // drawn in addition while an op runs
  int64_t copy_pj_per_byte = 0;  // of a copy between two memories
  std::vector<OpPower> ops = {};

  bool operator==(const Power&) const = default;
};

// Throws InputError, with a JSON pointer, for a number below 0 or a power above 1 GW, and for two
// rows of one op and variant.
void validate(const Power& power);

// Reads the short form "static=20W,dynamic=45W,copy=60pJ/B". Powers are in W, mW or kW, and
// energies in pJ/B or nJ/B. Each part may be left out. Throws InputError for any other text.
Power parse_watts(std::string_view text);

// Returns the dynamic power of every variant, by the positions of op and variant, in milliwatts.
// Throws InputError if the graph has no op or variant that a row names.
std::vector<std::vector<int64_t>> dynamic_power(const Graph& graph, const Power& power);

// Prints three significant digits: "12.3 J", "450 mJ".
std::string format_energy(Picojoules energy);
// Prints a power as parse_watts() reads it: "20W", "1.5W".
std::string format_power(int64_t milliwatts);

}  // namespace reprise
