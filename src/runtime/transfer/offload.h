// Opens the memories that OffloadOptions name.
#pragma once

#include <memory>

#include "reprise/runtime/offload.h"
#include "runtime/transfer/disk.h"
#include "runtime/transfer/host.h"

namespace reprise::runtime::internal::transfer {

struct OpenedMemory {
  Machine machine;  // the device is memory 0, and the opened one is memory 1
  std::shared_ptr<OffloadMemory> memory;
  Bytes device_bytes = {};  // that its buffers take of the device
};

// Opens the memory of options.to behind the device, and measures it if the options have no machine.
// Throws InputError for another text, for a memory that the device cannot have, for a machine of
// another memory, and if there can be no file.
OpenedMemory open_memory(const OffloadOptions& options, c10::Device device);

// Measures a disk on which nothing is under way. Channels that are much slower together than alone
// share a queue in the answer.
Machine measure(Disk& disk);

}  // namespace reprise::runtime::internal::transfer
