// These are the values of a step that a plan moves out of the device's memory and back.
//
// A value keeps its storages, and only their memory goes: autograd's graph, the step, and whoever
// else holds a tensor of the value hold the same storages all the time. So nothing of the graph is
// taken apart, and version counters stay as they are. Until the bytes are back, an access to such a
// storage throws.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/run/interpreter.h"
#include "runtime/device/made_storages.h"
#include "runtime/transfer/offload_carrier.h"

namespace reprise::runtime::internal::chain {

// The functions are called in the order of the plan, on one thread at a time. The destructor ends the
// copies that are under way.
class MovedValues final : public transfer::Residency {
 public:
  // `moves` says by value whether the plan moves it (transfer::moved_by()).
  MovedValues(std::vector<bool> moves, std::shared_ptr<transfer::OffloadMemory> memory)
      : moves_(std::move(moves)), carrier_(std::move(memory), *this) {}

  bool moves(ValueIndex value) const { return moves_[value]; }
  // A run has written the value, which moves.
  void set(ValueIndex value, std::vector<device::WeakStorage> storages);
  // Frees the memory of a value on the device. Returns false, and does nothing, if the value is
  // nowhere else.
  bool leave(ValueIndex value);

  transfer::Carrier& carrier() { return carrier_; }
  const transfer::MovedBytes& moved() const { return carrier_.moved(); }

  std::vector<transfer::Resident> residents(ValueIndex value, int32_t memory) override;
  void arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) override;

 private:
  const std::vector<bool> moves_;
  std::map<ValueIndex, std::vector<device::WeakStorage>> storages_;
  transfer::OffloadCarrier carrier_;
};

}  // namespace reprise::runtime::internal::chain
