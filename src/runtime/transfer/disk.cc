#include "runtime/transfer/disk.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/transfer/checksum.h"

namespace reprise::runtime::internal::transfer {
namespace {

constexpr int64_t aligned(int64_t bytes) {
  constexpr int64_t kUnit = TemporaryFile::kAlignment;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

int64_t total(const std::vector<Block>& blocks) {
  int64_t sum = 0;
  for (const Block& block : blocks) sum += block.bytes;
  return sum;
}

// Walks through blocks that lie one behind the other, as if they were one.
class Cursor {
 public:
  explicit Cursor(std::vector<Block> blocks) : blocks_(std::move(blocks)) {}

  // Calls copy(address, offset, bytes) for the next `bytes` bytes, block by block.
  template <class Copy>
  void next(int64_t bytes, Copy&& copy) {
    for (int64_t done = 0; done < bytes;) {
      const Block& block = blocks_[at_];
      const int64_t here = std::min(bytes - done, block.bytes - within_);
      if (here > 0) copy(static_cast<char*>(block.data) + within_, done, static_cast<size_t>(here));
      done += here;
      within_ += here;
      if (within_ == block.bytes) {
        ++at_;
        within_ = 0;
      }
    }
  }

 private:
  std::vector<Block> blocks_;
  size_t at_ = 0;
  int64_t within_ = 0;
};

}  // namespace

class Disk::Place final : public Parcel {
 public:
  // The space must be locked.
  Place(std::shared_ptr<Space> space, int64_t size)
      : bytes(size),
        taken_(std::max(aligned(size), TemporaryFile::kAlignment)),
        space_(std::move(space)) {
    offset = space_->ranges.take(taken_);
  }
  ~Place() override {
    const std::scoped_lock lock(space_->mutex);
    space_->ranges.give_back(offset, taken_);
  }

  const int64_t bytes;
  int64_t offset = 0;          // in the file
  std::vector<uint64_t> sums;  // by block of the disk; the thread that copies uses them

 private:
  const int64_t taken_;
  const std::shared_ptr<Space> space_;
};

Disk::Disk(const std::string& directory, const DiskOptions& options)
    : options_(options), process_(::getpid()), directory_(directory) {
  if (options_.block < TemporaryFile::kAlignment ||
      options_.block % TemporaryFile::kAlignment != 0) {
    throw InputError(fmt::format("the block of a disk must be a multiple of {} bytes, not {}",
                                 TemporaryFile::kAlignment, options_.block));
  }
  file_ = std::make_shared<TemporaryFile>(directory, file_calls());
  buffers_ = at::empty({2 * options_.block + TemporaryFile::kAlignment}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(buffers_.mutable_data_ptr());
  const auto past =
      static_cast<int64_t>(address % static_cast<uintptr_t>(TemporaryFile::kAlignment));
  out_buffer_ = static_cast<char*>(buffers_.mutable_data_ptr()) + (aligned(past) - past);
  in_buffer_ = out_buffer_ + options_.block;
  out_ = std::make_unique<CopyThread>("reprise-out");
  in_ = std::make_unique<CopyThread>("reprise-in");
}

Disk::~Disk() {
  if (::getpid() == process_) return;
  // A child process of fork() has none of the threads: there is nobody to wait for.
  static_cast<void>(out_.release());
  static_cast<void>(in_.release());
}

void Disk::require_this_process() const {
  if (::getpid() == process_) return;
  throw InputError(
      "this process is a child of fork(), and the threads that copy to the disk are its parent's; "
      "make the planned model in the process that trains");
}

int64_t Disk::device_bytes() const {
  return device::counted_bytes(static_cast<int64_t>(buffers_.nbytes()), c10::kCPU);
}

bool Disk::empty() const {
  const std::scoped_lock lock(space_->mutex);
  return space_->ranges.empty();
}

ParcelPtr Disk::place(int64_t bytes) {
  require_this_process();
  std::shared_ptr<Place> place;
  int64_t end = 0;
  {
    const std::scoped_lock lock(space_->mutex);
    place = std::make_shared<Place>(space_, bytes);
    end = space_->ranges.end();
  }
  file_->reserve(end);
  return place;
}

Disk::Place& Disk::place_of(const ParcelPtr& parcel, const std::vector<Block>& blocks) const {
  auto& place = static_cast<Place&>(*parcel);
  if (total(blocks) != place.bytes) {
    throw InternalError(fmt::format("{} bytes are copied, and their place on the disk has {}",
                                    total(blocks), place.bytes));
  }
  return place;
}

TicketPtr Disk::out(std::vector<Block> from, ParcelPtr to, std::vector<TicketPtr> after) {
  require_this_process();
  Place& place = place_of(to, from);
  auto copy = [this, file = file_, to = std::move(to), &place, cursor = Cursor(std::move(from)),
               buffer = out_buffer_, done = int64_t{0}]() mutable {
    if (done == 0) place.sums.clear();
    const int64_t bytes = std::min(options_.block, place.bytes - done), whole = aligned(bytes);
    cursor.next(bytes, [&](const char* data, int64_t at, size_t size) {
      std::memcpy(buffer + at, data, size);
    });
    std::memset(buffer + bytes, 0, static_cast<size_t>(whole - bytes));
    if (options_.checked) place.sums.push_back(checksum(buffer, static_cast<size_t>(bytes)));
    file->write(buffer, whole, place.offset + done);
    done += bytes;
    return done < place.bytes;
  };
  return out_->begin(std::move(copy), std::move(after));
}

TicketPtr Disk::in(ParcelPtr from, std::vector<Block> to, std::vector<TicketPtr> after) {
  require_this_process();
  Place& place = place_of(from, to);
  auto copy = [this, file = file_, from = std::move(from), &place, cursor = Cursor(std::move(to)),
               buffer = in_buffer_, done = int64_t{0}]() mutable {
    const int64_t bytes = std::min(options_.block, place.bytes - done);
    file->read(buffer, aligned(bytes), place.offset + done);
    const auto block = static_cast<size_t>(done / options_.block);
    if (options_.checked && (block >= place.sums.size() ||
                             checksum(buffer, static_cast<size_t>(bytes)) != place.sums[block])) {
      throw InputError(fmt::format(
          "the temporary file in '{}' where values of a step wait returned other bytes than were "
          "written ({} bytes at {}, checksum); the disk or its driver is at fault: see the "
          "system's "
          "log, and name a directory on another disk",
          directory_, bytes, place.offset + done));
    }
    cursor.next(bytes,
                [&](char* data, int64_t at, size_t size) { std::memcpy(data, buffer + at, size); });
    done += bytes;
    return done < place.bytes;
  };
  CopyThread& thread = options_.one_queue ? *out_ : *in_;
  return thread.begin(std::move(copy), std::move(after));
}

}  // namespace reprise::runtime::internal::transfer
