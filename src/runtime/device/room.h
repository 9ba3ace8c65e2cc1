// This is room for a request that would exceed the limit of its device's allocator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace reprise::runtime::internal::device {

// A RoomMaker gives memory back at the moment when a request would exceed the limit. The allocator is
// not locked meanwhile.
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

// Returns the maker that serves this thread, or null.
RoomMaker* room_maker();

// Returns the most bytes of the device that were live at once since the last call of this function.
// It leaves memory_count() as it is. On a device other than the CPU it knows the requests under a
// limit.
int64_t take_recent_peak(c10::Device device);

}  // namespace reprise::runtime::internal::device
