#include "runtime/device/room.h"

#include <utility>

namespace reprise::runtime::internal::device {

namespace {
thread_local RoomMaker* maker_of_this_thread = nullptr;
}

RoomMakerScope::RoomMakerScope(RoomMaker& maker)
    : before_(std::exchange(maker_of_this_thread, &maker)) {}
RoomMakerScope::~RoomMakerScope() { maker_of_this_thread = before_; }

RoomMaker* room_maker() { return maker_of_this_thread; }

}  // namespace reprise::runtime::internal::device
