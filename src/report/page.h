// These functions make the parts of a report's page, in the order in which the parts stand there.
// Each part is a <section>, or empty if there is nothing to say.
#pragma once

#include <string>

#include "report/facts.h"
#include "report/step_chart.h"

namespace reprise::report {

std::string page_header(const Facts& facts);
std::string memory_section(const Facts& facts);
std::string schedule_section(const Facts& facts);
std::string frontier_section(const Facts& facts);
std::string decisions_section(const Facts& facts);
std::string measured_section(const Facts& facts);
std::string arena_section(const Facts& facts);
std::string notes_section(const Facts& facts);
std::string page_footer(const Facts& facts);

// Returns the data for the script: bytes and names at every moment of the memory pictures, as JSON
// for a <script>.
std::string hover_data(const Facts& facts);

// Returns the axis of all pictures over time. It is as long as the longer of plan and plain
// training.
TimeScale time_scale(const Facts& facts);

// The most rows of a table; the rows that are left out are summed up.
inline constexpr size_t kMostRows = 300;

}  // namespace reprise::report
