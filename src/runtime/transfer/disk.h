// This is a disk as a memory behind the device, on the CPU: one temporary file, and threads that
// copy while the step computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/transfer/copy_thread.h"
#include "runtime/transfer/file_space.h"
#include "runtime/transfer/offload_memory.h"
#include "runtime/transfer/temporary_file.h"

namespace reprise::runtime::internal::transfer {

struct DiskOptions {
  // The size of one read or write, in bytes: a multiple of TemporaryFile::kAlignment. Each thread has
  // a buffer of this size, which counts among the bytes of the device.
  int64_t block = 1 << 20;
  bool one_queue = false;  // the directions take turns
  bool checked = true;     // every block that is read must have the checksum of what was written
};

// All bytes go through an aligned buffer, since direct reads and writes need aligned memory. A copy
// of the contents of a block into the buffer is several times faster than a disk.
//
// In a child process of fork() there are no threads that copy: out() and in() throw InputError there.
class Disk final : public OffloadMemory {
 public:
  // Throws InputError if there can be no file in the directory, or no thread.
  explicit Disk(const std::string& directory, const DiskOptions& options = {});
  ~Disk() override;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  ParcelPtr place(int64_t bytes) override;
  TicketPtr out(std::vector<Block> from, ParcelPtr to, std::vector<TicketPtr> after) override;
  TicketPtr in(ParcelPtr from, std::vector<Block> to, std::vector<TicketPtr> after) override;

  bool is_direct() const { return file_->is_direct(); }
  int64_t free_bytes() const { return file_->free_bytes(); }
  int64_t block_bytes() const { return options_.block; }
  // Returns the bytes of the buffers, as the allocator counts them.
  int64_t device_bytes() const;
  // Lets the directions take turns from now on, or not. No copy may be under way.
  void share_queue(bool one_queue) { options_.one_queue = one_queue; }
  // Returns whether no place is in use.
  bool empty() const;

 private:
  class Place;
  struct Space {
    std::mutex mutex;
    FileSpace ranges;
  };

  void require_this_process() const;
  Place& place_of(const ParcelPtr& parcel, const std::vector<Block>& blocks) const;

  DiskOptions options_;
  const pid_t process_;
  const std::string directory_;
  std::shared_ptr<TemporaryFile> file_;
  std::shared_ptr<Space> space_ = std::make_shared<Space>();  // outlived by no place
  at::Tensor buffers_;                                        // of both threads
  char *out_buffer_ = nullptr, *in_buffer_ = nullptr;
  std::unique_ptr<CopyThread> out_, in_;
};

}  // namespace reprise::runtime::internal::transfer
