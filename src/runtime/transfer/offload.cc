#include "runtime/transfer/offload.h"

#include <fmt/format.h>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::transfer {
namespace {

const std::string kDisk = "disk", kHost = "host";

// Returns the directory of "disk:DIRECTORY", or an empty text for any other text.
std::string directory_of(const std::string& text) {
  const std::string prefix = kDisk + ":";
  return text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : "";
}

// Checks that the machine is the device with one more memory of this name.
void require_memory(const Machine& machine, const std::string& name) {
  validate(machine);
  const bool fits = machine.memories.size() == 2 && machine.memories[1].name == name &&
                    find_channel(machine, 0, 1) >= 0 && find_channel(machine, 1, 0) >= 0;
  if (fits) return;
  throw InputError(
      fmt::format("the machine of a model that moves values to \"{0}\" has two memories, the "
                  "device and one named \"{0}\", and a channel each way between them",
                  name));
}

bool one_queue(const Machine& machine) {
  return queue_of(machine, find_channel(machine, 0, 1)) ==
         queue_of(machine, find_channel(machine, 1, 0));
}

DiskOptions disk_options(const OffloadOptions& options) {
  return {.block = options.block.count(), .checked = options.checked};
}

template <class Memory>
OpenedMemory opened(std::shared_ptr<Memory> memory, const Machine& machine) {
  OpenedMemory result{machine.channels.empty() ? measure(*memory) : machine, memory,
                      Bytes(memory->device_bytes())};
  memory->share_queue(one_queue(result.machine));
  return result;
}

}  // namespace

OpenedMemory open_memory(const OffloadOptions& options, c10::Device device) {
  const std::string directory = directory_of(options.to);
  const std::string name = directory.empty() ? options.to : kDisk;
  if (name != kHost && directory.empty()) {
    throw InputError(fmt::format(
        "values can be moved to \"disk:DIRECTORY\" (\"disk:/scratch\") from the CPU, and to "
        "\"host\" from other devices, not to \"{}\"",
        options.to));
  }
  if (!options.machine.channels.empty()) require_memory(options.machine, name);
  if (name == kHost) return opened(std::make_shared<Host>(device), options.machine);
  if (!device.is_cpu()) {
    throw InputError(
        fmt::format("values move to a disk in models on the CPU only, and this one is on {}: take "
                    "\"host\", or leave the disk out",
                    device.str()));
  }
  return opened(std::make_shared<Disk>(directory, disk_options(options)), options.machine);
}

}  // namespace reprise::runtime::internal::transfer

namespace reprise::runtime {

Machine measure_disk(const std::string& directory, const OffloadOptions& options) {
  install_cpu_allocator();
  internal::transfer::Disk disk(directory, internal::transfer::disk_options(options));
  return internal::transfer::measure(disk);
}

}  // namespace reprise::runtime
