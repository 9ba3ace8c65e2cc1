#include "runtime/transfer/offload.h"

#include <fmt/format.h>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::transfer {
namespace {

constexpr const char* kDisk = "disk";

std::string directory_of(const std::string& text) {
  const std::string prefix = std::string(kDisk) + ":";
  if (text.rfind(prefix, 0) == 0 && text.size() > prefix.size()) return text.substr(prefix.size());
  throw InputError(fmt::format(
      "values can be moved to \"disk:DIRECTORY\" (\"disk:/scratch\"), not to \"{}\"", text));
}

// Checks that the machine is the device with a disk, and puts the disk at position 1.
void require_disk(const Machine& machine) {
  validate(machine);
  const bool fits = machine.memories.size() == 2 && machine.memories[1].name == kDisk &&
                    find_channel(machine, 0, 1) >= 0 && find_channel(machine, 1, 0) >= 0;
  if (fits) return;
  throw InputError(
      "the machine of a model that moves values to a disk has two memories, the device and one "
      "named "
      "\"disk\", and a channel each way between them");
}

DiskOptions disk_options(const OffloadOptions& options) {
  return {.block = options.block.count(), .checked = options.checked};
}

}  // namespace

OpenedDisk open_disk(const OffloadOptions& options) {
  OpenedDisk opened;
  const std::string directory = directory_of(options.to);
  if (!options.machine.channels.empty()) require_disk(options.machine);
  opened.disk = std::make_shared<Disk>(directory, disk_options(options));
  opened.machine = options.machine.channels.empty() ? measure(*opened.disk) : options.machine;
  const int32_t out = find_channel(opened.machine, 0, 1), in = find_channel(opened.machine, 1, 0);
  opened.disk->share_queue(queue_of(opened.machine, out) == queue_of(opened.machine, in));
  return opened;
}

}  // namespace reprise::runtime::internal::transfer

namespace reprise::runtime {

Machine measure_disk(const std::string& directory, const OffloadOptions& options) {
  install_cpu_allocator();
  internal::transfer::Disk disk(directory, internal::transfer::disk_options(options));
  return internal::transfer::measure(disk);
}

}  // namespace reprise::runtime
