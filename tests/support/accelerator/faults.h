// This is the handler of faults.
#pragma once

namespace sim {

// Puts a handler of SIGSEGV in front of the one that is there. A touch of pinned memory goes to
// PinnedMemory::touched(). A touch of a device's memory is explained on the error output, and then
// handled as it would have been without the devices: usually the process ends. All other faults go to
// the handler before.
void install_fault_handler();

}  // namespace sim
