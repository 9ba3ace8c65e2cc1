// These tables say in text what a plan moves between memories.
#pragma once

#include <cstddef>
#include <string>

#include "reprise/check/explain.h"

namespace reprise::report {

// Returns one row for each device of a machine with several.
std::string devices_table(const Explanation& explanation);
// Returns one row for each channel: what it carries, and how long runs wait for it.
std::string channels_table(const Explanation& explanation);
// Returns the share of a channel's busy time in which no run waits for it: "80.0 %".
std::string hidden_share(const ChannelUse& use);

// Returns one row for each value that moves, those that runs wait for longest first. If there are
// more than `rows` values, the last row sums up the others.
std::string moved_table(const Explanation& explanation, size_t rows);

}  // namespace reprise::report
