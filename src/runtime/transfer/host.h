// This file has host memory as a memory behind a device: pinned memory, and copies on streams of
// their own.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "reprise/model/machine.h"
#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::transfer {

// Each direction has a stream. A copy begins when the device has done what was asked of this thread's
// current stream so far, and a ticket is an event behind the copy: wait() lets the current stream
// wait for it, and not the host. So what a step computes after a wait finds the bytes.
class Host final : public OffloadMemory {
 public:
  // Throws InputError for the CPU, whose memory this is, and if the device has no streams.
  explicit Host(c10::Device device);

  ParcelPtr place(int64_t bytes) override;
  TicketPtr out(std::vector<Block> from, ParcelPtr to, std::vector<TicketPtr> after) override;
  TicketPtr in(ParcelPtr from, std::vector<Block> to, std::vector<TicketPtr> after) override;

  c10::Device device() const { return device_; }
  int64_t device_bytes() const { return 0; }  // Pinned memory is the host's.
  // Lets the directions take turns from now on, or not. No copy may be under way.
  void share_queue(bool one_queue) { one_queue_ = one_queue; }

 private:
  c10::Stream stream(bool out) const { return out || one_queue_ ? out_ : in_; }
  TicketPtr copy(const std::vector<Block>& blocks, const ParcelPtr& parcel, bool out,
                 const std::vector<TicketPtr>& after) const;

  const c10::Device device_;
  const c10::Stream out_, in_;
  bool one_queue_ = false;
};

// The times of a copy out, of a copy in, and of both at once.
struct CopyTimes {
  Nanos out = {}, in = {}, both = {};
};

// Returns the link on which copies of so many bytes took these times. Its directions take turns, if
// both at once took about as long as one after the other.
Machine machine_of(int64_t bytes, const CopyTimes& times);

// Measures the link with copies of 32 MiB, each direction alone and both at once, while the device
// computes nothing.
Machine measure(Host& host);

}  // namespace reprise::runtime::internal::transfer
