// A Machine lists the memories of a computer and the channels between them. Plans for a machine may
// move values: out of the device while nothing reads them, and back in time.
//
// Memory 0 is the first device: operations run there, and budgets speak of it. Other memories that
// compute are devices, too, each with a clock of its own. The memories that do not compute lie
// behind the devices: the host's memory behind an accelerator, a disk behind a host. A channel
// carries bytes from one memory to another, one copy after the other, in the order of the plan. A
// copy takes the channel's latency and its bytes over the bandwidth.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

struct Memory {
  std::string name;
  // Without it, the memory is unlimited. The first memory has none.
  std::optional<Bytes> capacity = {};
  // Operations run here: variants may name the memory (Variant::at). The first memory computes,
  // whatever this says.
  bool computes = false;

  bool operator==(const Memory&) const = default;
};

struct Channel {
  int32_t from = 0;  // positions in Machine::memories
  int32_t to = 0;
  int64_t bytes_per_second = 1;
  Nanos latency = {};
  // The position of an earlier channel with which this one takes turns (half duplex), or -1.
  int32_t shares = -1;

  bool operator==(const Channel&) const = default;
};

// The default is the device alone.
struct Machine {
  std::vector<Memory> memories = {{"device"}};
  std::vector<Channel> channels = {};

  bool operator==(const Machine&) const = default;
};

inline constexpr size_t kMostMemories = 4096;

// Throws InputError, with a JSON pointer, unless there are 1..4096 memories with different names that
// are not empty, the first has no capacity, and every channel joins two different memories, has a
// bandwidth, and is the only one of its direction. The cost is O(channels^2).
void validate(const Machine& machine);

// Returns the position of a memory, or -1. The empty name is that of the first memory.
int32_t find_memory(const Machine& machine, std::string_view name);
// Returns the position of the channel of this direction, or -1.
int32_t find_channel(const Machine& machine, int32_t from, int32_t to);
// Returns the first of the channels that take turns with this one. They share one queue.
int32_t queue_of(const Machine& machine, int32_t channel);

// Says whether operations run in this memory.
bool computes(const Machine& machine, int32_t memory);
// Says whether the machine has more than one device.
bool has_devices(const Machine& machine);
// Returns the device whose runs a wait holds up, for a copy from one memory to another. It is the
// device where the value arrives, or else the one that the copy reads from, or else the first.
int32_t waiting_device(const Machine& machine, int32_t from, int32_t to);

// Returns latency + bytes / bandwidth, rounded up to a nanosecond. Throws InputError if that does
// not fit 64 bits.
Nanos copy_time(const Channel& channel, Bytes bytes);

// Reads the short form of a machine with one more memory: "host=12GB/s" is a memory "host" with
// 12 GB/s in each direction, both at once. "disk=1.1GB/s,0.65GB/s" gives the bandwidth out of the
// device first. The latency is 10 us. Throws InputError for any other text.
Machine parse_offload(std::string_view text);

}  // namespace reprise
