// This is the part of the page that shows the copies between memories.
#pragma once

#include <cstddef>
#include <string>

#include "report/facts.h"
#include "reprise/model/machine.h"

namespace reprise::report {

// Returns "device -> host".
std::string channel_name(const Machine& machine, size_t channel);

// Returns a <section> with a lane for each channel, a lane for the times in which runs wait, and
// tables of the channels and of the values that move. The text is empty for a plan
// without a machine that has channels.
std::string channels_section(const Facts& facts);

}  // namespace reprise::report
