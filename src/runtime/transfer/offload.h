// Opens the memories that OffloadOptions name.
#pragma once

#include <memory>

#include "reprise/runtime/offload.h"
#include "runtime/transfer/disk.h"

namespace reprise::runtime::internal::transfer {

struct OpenedDisk {
  Machine machine;  // the device is memory 0, and the disk is memory 1
  std::shared_ptr<Disk> disk;
};

// Opens the disk of options.to, and measures it if the options have no machine. Throws InputError
// for a text that names no directory, for a machine that is none of a disk, and if there can be no
// file.
OpenedDisk open_disk(const OffloadOptions& options);

// Measures a disk on which nothing is under way. Channels that are much slower together than alone
// share a queue in the answer.
Machine measure(Disk& disk);

}  // namespace reprise::runtime::internal::transfer
