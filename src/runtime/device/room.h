// This is room for a request that would exceed the limit of the CPU allocator.
#pragma once

#include <cstdint>
#include <string>

namespace reprise::runtime::internal::device {

// A RoomMaker gives memory back at the moment when a request of its thread would exceed the limit.
// The allocator is not locked meanwhile.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  // Gives blocks back until `bytes` more fit, or until there is nothing left to give. The function
  // must not ask for memory of tensors. If it fails, it returns what holds the memory, in words for
  // the message of the refused request, else an empty text.
  virtual std::string make_room(int64_t bytes) = 0;
};

// Lets a maker make room for the requests of this thread for a scope.
class RoomMakerScope {
 public:
  explicit RoomMakerScope(RoomMaker& maker);
  ~RoomMakerScope();
  RoomMakerScope(const RoomMakerScope&) = delete;
  RoomMakerScope& operator=(const RoomMakerScope&) = delete;

 private:
  RoomMaker* before_;
};

// Returns the most bytes of the CPU that were live at once since the last call of this function. It
// leaves memory_count() as it is.
int64_t take_recent_cpu_peak();

}  // namespace reprise::runtime::internal::device
