// Times that are measured while other programs take the processor are wrong by factors. A
// measurement notices such programs, and this header puts the finding into words.
#pragma once

#include <cstdint>
#include <string>

namespace reprise::runtime {

// Returns one line that says that the machine was busy while it measured, and what to do; empty for
// 100. `processor_percent` is that of the Profile.
std::string explain_busy_machine(int64_t processor_percent);

}  // namespace reprise::runtime
