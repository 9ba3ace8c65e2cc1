// This is a memory behind the device, as what executes a plan sees it: copies begin, and are waited
// for.
//
// The interface knows nothing of chains or graphs, and little of devices: blocks are addresses in
// the device's memory. A disk behind a host is one implementation (disk.h). Host memory behind an
// accelerator is another: there a ticket is an event on a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace reprise::runtime::internal::transfer {

// Bytes in the memory of the device.
struct Block {
  void* data = nullptr;
  int64_t bytes = 0;

  bool operator==(const Block&) const = default;
};

// A place in a far memory, and what was copied there. The end of the object gives the place back;
// no copy may be under way then.
class Parcel {
 public:
  virtual ~Parcel() = default;
};

// A Ticket is a copy. It may be over, under way, or wait for its turn.
class Ticket {
 public:
  virtual ~Ticket() = default;
  // Returns when the copy is over. Throws what made it fail, each time.
  virtual void wait() = 0;
  virtual bool is_over() = 0;
  // Ends the copy as soon as possible, and returns when nothing reads or writes its blocks any more.
  virtual void cancel() noexcept = 0;
};

using ParcelPtr = std::shared_ptr<Parcel>;
using TicketPtr = std::shared_ptr<Ticket>;

// The copies of each direction run one after the other, in the order in which they were begun; with
// one queue for both directions, all of them do. A copy also waits for those of `after`, which were
// begun before. The blocks must stay until the copy is over.
//
// One thread at a time may call these functions.
class OffloadMemory {
 public:
  virtual ~OffloadMemory() = default;
  // Takes a place for this many bytes. Throws InputError if there is no room.
  virtual ParcelPtr place(int64_t bytes) = 0;
  // Begins to copy the blocks, one behind the other, to a place of their size.
  virtual TicketPtr out(std::vector<Block> from, ParcelPtr to, std::vector<TicketPtr> after) = 0;
  // Begins to copy what is in a place into blocks of the same size in all.
  virtual TicketPtr in(ParcelPtr from, std::vector<Block> to, std::vector<TicketPtr> after) = 0;
};

}  // namespace reprise::runtime::internal::transfer
