// Measures what this machine draws, by the energy counters of its processors (RAPL).
#pragma once

#include <filesystem>

#include "reprise/model/power.h"

namespace reprise::cli {

inline constexpr const char* kPowercap = "/sys/class/powercap";  // of Linux

// The static power is the power while this program sleeps for half a second. The dynamic power is
// what comes on top while one thread a processor multiplies for half a second. Other programs
// count, too. Memory counts where the counters cover it. Throws InputError if no counter can be
// read, or if they stand still.
Power measure_power(const std::filesystem::path& folder);

}  // namespace reprise::cli
