#include "runtime/transfer/host.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/device/device.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::transfer {

using device::synchronize;
using device::wall_clock;

namespace {

constexpr int64_t kMeasured = 32 << 20;  // bytes of a measured copy
constexpr int kCopies = 3;               // of which the fastest counts
constexpr Nanos kLatency{10'000};

c10::impl::VirtualGuardImpl streams_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Stream current_stream(c10::Device device) { return streams_of(device).getStream(device); }

c10::Device checked(c10::Device device) {
  if (device.is_cpu()) {
    throw InputError(
        "values move to \"host\" from another device than the CPU, and this model lies on the CPU: "
        "take a disk (\"disk:/scratch\"), or leave it out");
  }
  return device;
}

struct PinnedBytes final : Parcel {
  at::Tensor bytes;
};

// A CopyTicket is an event on one of the streams.
class CopyTicket final : public Ticket {
 public:
  CopyTicket(c10::Device device, c10::Stream stream) : device_(device), event_(device.type()) {
    event_.record(stream);
  }
  void wait() override { event_.block(current_stream(device_)); }
  bool is_over() override { return event_.query(); }
  // A copy that has begun cannot be ended, so the host waits for it.
  void cancel() noexcept override {
    try {
      event_.synchronize();
    } catch (const std::exception&) {
      // The device has failed. Its own error reaches the caller at the next operation.
    }
  }
  void hold_up(c10::Stream stream) { event_.block(stream); }

 private:
  const c10::Device device_;
  c10::Event event_;
};

}  // namespace

Host::Host(c10::Device device)
    : device_(checked(device)),
      out_(streams_of(device).getStreamFromGlobalPool(device)),
      in_(streams_of(device).getStreamFromGlobalPool(device)) {}

ParcelPtr Host::place(int64_t bytes) {
  auto parcel = std::make_shared<PinnedBytes>();
  parcel->bytes = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return parcel;
}

TicketPtr Host::copy(const std::vector<Block>& blocks, const ParcelPtr& parcel, bool out,
                     const std::vector<TicketPtr>& after) const {
  const at::NoGradGuard no_grad;
  const c10::Stream on = stream(out);
  c10::Event ready(device_.type());
  ready.record(current_stream(device_));
  ready.block(on);
  for (const TicketPtr& ticket : after) static_cast<CopyTicket&>(*ticket).hold_up(on);
  const at::Tensor& host = static_cast<const PinnedBytes&>(*parcel).bytes;
  const c10::StreamGuard guard(on);
  int64_t begin = 0;
  for (const Block& block : blocks) {
    if (block.bytes == 0) continue;
    const at::Tensor device = at::for_blob(block.data, {block.bytes})
                                  .options(at::TensorOptions(device_).dtype(at::kByte))
                                  .target_device(device_)
                                  .make_tensor();
    const at::Tensor part = host.narrow(0, begin, block.bytes);
    if (out) {
      part.copy_(device, /*non_blocking=*/true);
    } else {
      device.copy_(part, /*non_blocking=*/true);
    }
    begin += block.bytes;
  }
  return std::make_shared<CopyTicket>(device_, on);
}

TicketPtr Host::out(std::vector<Block> from, ParcelPtr to, std::vector<TicketPtr> after) {
  return copy(from, to, /*out=*/true, after);
}

TicketPtr Host::in(ParcelPtr from, std::vector<Block> to, std::vector<TicketPtr> after) {
  return copy(to, from, /*out=*/false, after);
}

Machine machine_of(int64_t bytes, const CopyTimes& times) {
  const auto rate = [bytes](Nanos time) {
    return std::max<int64_t>(
        1, static_cast<int64_t>(1e9 * static_cast<double>(bytes) /
                                static_cast<double>(std::max<int64_t>(1, time.count()))));
  };
  // The time of both is between that of the slower one, where each direction has a link of its own,
  // and their sum, where they take turns.
  const Nanos slower = std::max(times.out, times.in);
  const bool shares = times.both - slower > times.out + times.in - times.both;
  const Nanos out = shares ? times.out : std::max(times.out, times.both),
              in = shares ? times.in : std::max(times.in, times.both);
  Machine machine;
  machine.memories.push_back({"host"});
  machine.channels = {{0, 1, rate(out), kLatency, -1}, {1, 0, rate(in), kLatency, shares ? 0 : -1}};
  return machine;
}

Machine measure(Host& host) {
  const at::Tensor memory =
      at::empty({2 * kMeasured}, at::TensorOptions(host.device()).dtype(at::kByte));
  char* const data = static_cast<char*>(memory.mutable_data_ptr());
  const std::vector<Block> from = {{data, kMeasured}}, to = {{data + kMeasured, kMeasured}};
  const ParcelPtr there = host.place(kMeasured), back = host.place(kMeasured);
  host.share_queue(false);
  const auto time_of = [&](bool out, bool in) {
    synchronize(host.device());
    const Nanos before = wall_clock();
    if (out) host.out(from, there, {});
    if (in) host.in(back, to, {});
    synchronize(host.device());
    return wall_clock() - before;
  };
  constexpr Nanos kNever(std::numeric_limits<int64_t>::max());
  CopyTimes times{kNever, kNever, kNever};
  for (int copy = 0; copy < 1 + kCopies; ++copy) {  // The first one is slower.
    times.out = std::min(times.out, time_of(true, false));
    times.in = std::min(times.in, time_of(false, true));
    times.both = std::min(times.both, time_of(true, true));
  }
  return machine_of(kMeasured, times);
}

}  // namespace reprise::runtime::internal::transfer
