// This is the name of this machine's processor.
#pragma once

#include <string>

namespace reprise::runtime::internal::device {

// Returns the name that the system gives the processor: "AMD EPYC 9654 96-Core Processor". The
// name is empty if the system gives none.
std::string processor_name();

}  // namespace reprise::runtime::internal::device
