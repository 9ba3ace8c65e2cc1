// Finds where the caller's program is, for messages.
#pragma once

#include <string>

namespace reprise::runtime::internal::step {

// Returns the file and the line of the caller's program that runs now, as the finder of
// find_sources_with() knows them. The text is empty if there is no finder.
std::string source_place();

}  // namespace reprise::runtime::internal::step
