// Where a planned model may move values that nothing reads for a while.
//
//   auto model = rt::remat(stages, sample, {.budget = "700 MiB", .offload = {"disk:/scratch"}});
//
// The values lie in a temporary file that has no name, so that nothing is left of it however the
// process ends. Reads and writes go past the page cache (O_DIRECT) where the file system allows it,
// on threads of their own, while the step computes. The plan decides for each value whether it stays,
// is made again, or moves. docs/memories.md says when moving pays.
#pragma once

#include <string>

#include "reprise/model/machine.h"
#include "reprise/model/units.h"

namespace reprise::runtime {

struct OffloadOptions {
  // "disk:DIRECTORY" for models on the CPU, "host" for models on other devices, or empty: values stay
  // on the device or are made again. "host" is pinned memory of the host, and copies run on streams of
  // their own.
  //
  // "auto" plans without a second memory and with one, and takes the memory only where it pays: the
  // step must be predicted to be faster by more than the measurement can tell. It is "host" on a
  // device. On the CPU it is a disk in the temporary directory, or with "auto:DIRECTORY" in that one,
  // unless its files lie in memory themselves (a tmpfs). Reports say what was picked, and why. Where
  // nothing moves, no file is kept.
  std::string to = {};
  // The machine to plan for: the device, and one memory with that name and a channel each way. Without
  // channels it is measured when the model is: the bandwidth of both directions, alone and at the
  // same time, while something computes. A captured step on several devices takes their machine here,
  // without a memory to move to (CaptureOptions::other_devices).
  Machine machine = {};
  // The bytes of one read or write, a multiple of 4096. Each direction has a buffer of this size,
  // which counts in the budget.
  Bytes block{1 << 20};
  // If true, each block that comes back must have the checksum with which it was written. A wrong
  // checksum ends the step with an InputError, and all is as before the step.
  bool checked = true;

  bool operator==(const OffloadOptions&) const = default;
};

// Measures the disk of a directory, as remat() does. Throws InputError if there can be no file.
// It takes up to a second on a slow disk.
Machine measure_disk(const std::string& directory, const OffloadOptions& options = {});

}  // namespace reprise::runtime
