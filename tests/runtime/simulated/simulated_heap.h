// Lets arenas of the runtime serve blocks of the simulated devices.
#pragma once

namespace reprise::runtime::testing {

// Puts a heap for the devices in force, for as long as the process lives. install() comes first.
void install_simulated_heap();

}  // namespace reprise::runtime::testing
