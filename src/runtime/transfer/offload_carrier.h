// Carries values between the device and host memory or a disk behind it, in chain mode and graph
// mode.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/transfer/carrier.h"

namespace reprise::runtime::internal::transfer {

// Returns, by value, whether the program copies it out of the device or into it. Throws InputError
// for copies that do not begin or end at the device.
std::vector<bool> moved_by(const Program& program, size_t values);

// The device takes memory for a value when its copy begins. The value has it when the copy has been
// waited for.
class OffloadCarrier final : public Carrier {
 public:
  // The residency outlives the carrier.
  OffloadCarrier(std::shared_ptr<OffloadMemory> memory, Residency& residency)
      : memory_(std::move(memory)), residency_(residency) {}
  ~OffloadCarrier() override { end(); }
  OffloadCarrier(const OffloadCarrier&) = delete;
  OffloadCarrier& operator=(const OffloadCarrier&) = delete;

  void copy(const CopyAction& copy) override { copy.from == 0 ? out(copy) : in(copy); }
  void wait(ValueIndex value, int32_t memory) override;
  void free(ValueIndex value, int32_t memory) override;
  void end() noexcept override;

  // Returns whether the memory has the value, or will have it.
  bool has(ValueIndex value) const { return copies_.contains(value); }

 private:
  // A HostCopy is a value in the memory.
  struct HostCopy {
    ParcelPtr parcel;
    TicketPtr out;
    std::vector<c10::Storage> held;  // until `out` has been waited for
    std::vector<int64_t> sizes;      // of the storages, in bytes
    int64_t bytes = 0;               // of all of them
    c10::Device device = c10::kCPU;
  };
  struct Coming {
    TicketPtr ticket;
    std::vector<c10::DataPtr> blocks;
  };

  void out(const CopyAction& copy);
  void in(const CopyAction& copy);
  static HostCopy copy_of(const std::vector<Resident>& residents);
  std::vector<TicketPtr> tickets_of(const std::vector<int64_t>& actions) const;

  const std::shared_ptr<OffloadMemory> memory_;
  Residency& residency_;
  std::map<ValueIndex, HostCopy> copies_;
  std::map<ValueIndex, Coming> coming_;
  std::map<int64_t, TicketPtr> tickets_;  // by action
};

}  // namespace reprise::runtime::internal::transfer
