// The backend has the functions that LibTorch asks of a type of devices.
#pragma once

namespace sim {

// Registers the device guard, the hooks of an accelerator and the name "sim".
void register_backend();

}  // namespace sim
