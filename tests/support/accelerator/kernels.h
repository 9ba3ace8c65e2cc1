// This file has the kernels of the devices.
#pragma once

#include <cstdint>

namespace sim {

// Gives every operator of ATen that has a kernel for the CPU one for the devices: the same kernel, on
// the device's bytes. Operators of other libraries get theirs by a fallback.
void register_kernels(bool check_operands);

// These functions register the operators that no kernel of the CPU can serve: making tensors, sharing
// storages, copies between devices.
void register_factories();  // factories.cc
void register_copies();     // copies.cc

uint64_t kernels_called();

}  // namespace sim
