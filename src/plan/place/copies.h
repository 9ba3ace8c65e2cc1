// A CopyLayout lays out what moves between the actions of a plan: copies, waits and frees.
//
//     before slot k   copies out | waits and frees of what leaves | copies back | waits for them
//
// The channels get the copies out first, so that they work while the device waits. What comes back
// finds the bytes free of what has left.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::internal::place {

class CopyLayout {
 public:
  CopyLayout(const Machine& machine, size_t slots)
      : device_(machine.memories[0].name), slots_(slots) {}

  // The value is copied to the memory.
  void send(size_t slot, const std::string& value, const std::string& memory) {
    slots_[slot][0].push_back({ActionKind::kCopy, value, "", device_, memory});
  }
  // The value is freed on the device, after its copy to the memory if one is named.
  void leave(size_t slot, const std::string& value, const std::string& memory) {
    std::vector<Action>& actions = slots_[slot][1];
    if (!memory.empty()) actions.push_back({ActionKind::kWait, value, "", memory});
    actions.push_back({ActionKind::kFree, value, ""});
  }
  // The value is copied back from the memory.
  void bring(size_t slot, const std::string& value, const std::string& memory) {
    slots_[slot][2].push_back({ActionKind::kCopy, value, "", memory, device_});
  }
  // The value must have come back. If a memory is named, it is freed there.
  void need(size_t slot, const std::string& value, const std::string& memory) {
    std::vector<Action>& actions = slots_[slot][3];
    actions.push_back({ActionKind::kWait, value, "", device_});
    if (!memory.empty()) actions.push_back({ActionKind::kFree, value, "", memory});
  }

  // Appends what stands before the slot to the plan, each kind in the order in which it was added.
  void write(size_t slot, std::vector<Action>& plan) const {
    for (const std::vector<Action>& actions : slots_[slot]) {
      plan.insert(plan.end(), actions.begin(), actions.end());
    }
  }

 private:
  std::string device_;
  std::vector<std::array<std::vector<Action>, 4>> slots_;
};

}  // namespace reprise::internal::place
