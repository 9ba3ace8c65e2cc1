// Measures the bandwidths of a disk while something computes, as in a step.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "runtime/device/median.h"
#include "runtime/device/stopwatch.h"
#include "runtime/transfer/offload.h"

namespace reprise::runtime::internal::transfer {

using device::median;
using device::wall_clock;

namespace {

constexpr int64_t kParcel = 8 << 20;  // bytes of one copy
constexpr size_t kMostParcels = 16;   // in each direction and phase
constexpr Nanos kPhase{150'000'000};  // a slow disk copies fewer
constexpr int kSmallCopies = 9;       // for the latency
constexpr int64_t kSmall = TemporaryFile::kAlignment;
constexpr int64_t kWidth = 192;  // of the matrices of the computation
// Two directions at the same time count as independent from this share of the bandwidth alone on.
constexpr double kIndependent = 0.75;

// Multiplies matrices on all threads of the user until it is told to stop.
class Computation {
 public:
  void once() { at::mm_out(c_, a_, a_); }

 private:
  const at::Tensor a_ = at::ones({kWidth, kWidth});
  at::Tensor c_ = at::empty({kWidth, kWidth});
};

class Measure {
 public:
  explicit Measure(Disk& disk) : disk_(disk) {
    auto* bytes = static_cast<unsigned char*>(memory_.mutable_data_ptr());
    for (int64_t i = 0; i < memory_.numel(); ++i)
      bytes[i] = static_cast<unsigned char>(i * 37 >> 3);
  }

  // If something fails, copies may be under way that use the memory.
  ~Measure() {
    for (const TicketPtr& ticket : begun_) ticket->cancel();
  }
  Measure(const Measure&) = delete;
  Measure& operator=(const Measure&) = delete;

  Machine run() {
    warm_up();
    const Nanos small_out = latency(true), small_in = latency(false);
    const int64_t out = alone(true), in = alone(false);
    const auto [both_out, both_in] = together();
    const bool independent =
        static_cast<double>(both_out) >= kIndependent * static_cast<double>(out) &&
        static_cast<double>(both_in) >= kIndependent * static_cast<double>(in);
    Machine machine;
    machine.memories.push_back({"disk", Bytes(disk_.free_bytes())});
    machine.channels = {{.from = 0,
                         .to = 1,
                         .bytes_per_second = independent ? both_out : out,
                         .latency = small_out},
                        {.from = 1,
                         .to = 0,
                         .bytes_per_second = independent ? both_in : in,
                         .latency = small_in,
                         .shares = independent ? -1 : 0}};
    validate(machine);
    return machine;
  }

 private:
  // The memory is read or written again and again, so that measuring takes little of it. Copies out
  // read its first half, and copies back write the second.
  std::vector<Block> blocks(bool out, int64_t bytes) {
    char* const from = static_cast<char*>(memory_.mutable_data_ptr()) + (out ? 0 : half_);
    std::vector<Block> all;
    for (int64_t done = 0; done < bytes; done += half_) {
      all.push_back({from, std::min(bytes - done, half_)});
    }
    return all;
  }
  TicketPtr begin(const ParcelPtr& parcel, bool out, int64_t bytes) {
    begun_.push_back(out ? disk_.out(blocks(out, bytes), parcel, {})
                         : disk_.in(parcel, blocks(out, bytes), {}));
    return begun_.back();
  }
  static int64_t rate(int64_t bytes, Nanos time) {
    return std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(bytes) * 1e9 /
                                static_cast<double>(std::max<int64_t>(1, time.count()))));
  }

  // Writes every place once, because a file system takes longer over the first time. There are as
  // many places as take about the time of a phase.
  void warm_up() {
    const Nanos start = wall_clock();
    while (written_.size() < kMostParcels &&
           (written_.size() < 2 || wall_clock() - start < kPhase)) {
      for (auto* places : {&written_, &read_}) {
        places->push_back(disk_.place(kParcel));
        begin(places->back(), true, kParcel)->wait();
      }
    }
  }

  // Returns the time that a small copy takes.
  Nanos latency(bool out) {
    std::vector<Nanos> times;
    for (int k = 0; k < kSmallCopies; ++k) {
      const ParcelPtr place = disk_.place(kSmall);
      begin(place, true, kSmall)->wait();
      const Nanos start = wall_clock();
      begin(place, out, kSmall)->wait();
      times.push_back(wall_clock() - start);
    }
    return median(times);
  }

  // Multiplies matrices until all copies are over. Returns when each of them was.
  std::vector<Nanos> compute_until(const std::vector<TicketPtr>& tickets) {
    std::vector<Nanos> ends(tickets.size());
    for (size_t left = tickets.size(); left > 0;) {
      computation_.once();
      for (size_t k = 0; k < tickets.size(); ++k) {
        if (ends[k] != Nanos() || !tickets[k]->is_over()) continue;
        ends[k] = wall_clock();
        --left;
      }
    }
    for (const TicketPtr& ticket : tickets) ticket->wait();  // throws what made one fail
    return ends;
  }

  // Begins a copy of every parcel, and returns the last.
  TicketPtr begin_all(bool out) {
    TicketPtr last;
    for (const ParcelPtr& place : out ? written_ : read_) last = begin(place, out, kParcel);
    return last;
  }

  int64_t alone(bool out) {
    const Nanos start = wall_clock();
    const Nanos end = compute_until({begin_all(out)})[0];
    return rate(bytes(), end - start);
  }

  // The rates of both directions, each up to its own end.
  std::array<int64_t, 2> together() {
    const Nanos start = wall_clock();
    const TicketPtr out = begin_all(true), in = begin_all(false);
    const std::vector<Nanos> ends = compute_until({out, in});
    return {rate(bytes(), ends[0] - start), rate(bytes(), ends[1] - start)};
  }

  int64_t bytes() const { return static_cast<int64_t>(written_.size()) * kParcel; }

  Disk& disk_;
  const int64_t half_ = std::min(disk_.block_bytes(), kParcel);
  at::Tensor memory_ = at::empty({2 * half_}, at::kByte);
  Computation computation_;
  std::vector<ParcelPtr> written_, read_;
  std::vector<TicketPtr> begun_;
};

}  // namespace

Machine measure(Disk& disk) {
  disk.share_queue(false);
  return Measure(disk).run();
}

}  // namespace reprise::runtime::internal::transfer
