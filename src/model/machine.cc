#include "reprise/model/machine.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr Nanos kUsualLatency{10'000};

[[noreturn]] void refuse(const std::string& pointer, const std::string& message) {
  throw InputError(message, {.pointer = pointer});
}

void validate_memories(const std::vector<Memory>& memories) {
  if (memories.empty()) refuse("/memories", "a machine has at least one memory, the device");
  if (memories.size() > kMostMemories) {
    refuse("/memories", fmt::format("a machine has at most {} memories", kMostMemories));
  }
  std::set<std::string_view> names;
  for (size_t m = 0; m < memories.size(); ++m) {
    const std::string at = fmt::format("/memories/{}", m);
    if (memories[m].name.empty()) refuse(at + "/name", "a memory must have a name");
    if (!names.insert(memories[m].name).second) {
      refuse(at + "/name", fmt::format("two memories have the name \"{}\"", memories[m].name));
    }
    if (memories[m].capacity && *memories[m].capacity < Bytes(0)) {
      refuse(at + "/bytes", "a capacity must not be negative");
    }
  }
  if (memories[0].capacity) {
    refuse("/memories/0/bytes", "the bytes of the first memory are the budget of a plan");
  }
}

void validate_channel(const Machine& machine, size_t c) {
  const Channel& channel = machine.channels[c];
  const std::string at = fmt::format("/channels/{}", c);
  const auto memories = static_cast<int32_t>(machine.memories.size());
  const auto known = [&](int32_t memory) { return memory >= 0 && memory < memories; };
  if (!known(channel.from)) refuse(at + "/from", "the machine has no such memory");
  if (!known(channel.to)) refuse(at + "/to", "the machine has no such memory");
  if (channel.from == channel.to) refuse(at + "/to", "a channel joins two different memories");
  if (channel.bytes_per_second < 1) {
    refuse(at + "/bytes_per_second", "a channel carries at least one byte a second");
  }
  if (channel.latency < Nanos(0)) refuse(at + "/latency_ns", "a latency must not be negative");
  if (channel.shares < -1 || channel.shares >= static_cast<int32_t>(c)) {
    refuse(at + "/shares", "must be the position of an earlier channel");
  }
}

int64_t parse_bandwidth(std::string_view text, std::string_view whole) {
  constexpr std::string_view kPerSecond = "/s";
  if (text.ends_with(kPerSecond)) {
    const Bytes bytes = parse_bytes(text.substr(0, text.size() - kPerSecond.size()));
    if (bytes > Bytes(0)) return bytes.count();
  }
  throw InputError(
      fmt::format("\"{}\" in \"{}\" is no bandwidth; write it like 12GB/s", text, whole));
}

}  // namespace

void validate(const Machine& machine) {
  validate_memories(machine.memories);
  std::set<std::pair<int32_t, int32_t>> directions;
  for (size_t c = 0; c < machine.channels.size(); ++c) {
    validate_channel(machine, c);
    const Channel& channel = machine.channels[c];
    if (directions.emplace(channel.from, channel.to).second) continue;
    refuse(fmt::format("/channels/{}", c),
           fmt::format("there are two channels from \"{}\" to \"{}\"",
                       machine.memories[channel.from].name, machine.memories[channel.to].name));
  }
}

int32_t find_memory(const Machine& machine, std::string_view name) {
  if (name.empty()) return 0;
  for (size_t m = 0; m < machine.memories.size(); ++m) {
    if (machine.memories[m].name == name) return static_cast<int32_t>(m);
  }
  return -1;
}

int32_t find_channel(const Machine& machine, int32_t from, int32_t to) {
  for (size_t c = 0; c < machine.channels.size(); ++c) {
    if (machine.channels[c].from == from && machine.channels[c].to == to) {
      return static_cast<int32_t>(c);
    }
  }
  return -1;
}

int32_t queue_of(const Machine& machine, int32_t channel) {
  while (machine.channels[channel].shares >= 0) {
    channel = machine.channels[channel].shares;
  }
  return channel;
}

bool computes(const Machine& machine, int32_t memory) {
  return memory == 0 || machine.memories[memory].computes;
}

bool has_devices(const Machine& machine) {
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    if (machine.memories[m].computes) return true;
  }
  return false;
}

int32_t waiting_device(const Machine& machine, int32_t from, int32_t to) {
  if (computes(machine, to)) return to;
  return computes(machine, from) ? from : 0;
}

Nanos copy_time(const Channel& channel, Bytes bytes) {
  __extension__ using Wide = __int128;
  const Wide rate = channel.bytes_per_second;
  const Wide time = (Wide{bytes.count()} * kNanosPerSecond + rate - 1) / rate;
  if (time > std::numeric_limits<int64_t>::max()) internal::throw_overflow();
  return channel.latency + Nanos(static_cast<int64_t>(time));
}

Machine parse_offload(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    throw InputError(
        fmt::format("\"{}\" names no memory with its bandwidth; write \"host=12GB/s\" or "
                    "\"disk=1.1GB/s,0.65GB/s\" (out of the device, and back)",
                    text));
  }
  const std::string_view rates = text.substr(equals + 1);
  const size_t comma = rates.find(',');
  const int64_t out = parse_bandwidth(rates.substr(0, comma), text);
  const int64_t in =
      comma == std::string_view::npos ? out : parse_bandwidth(rates.substr(comma + 1), text);
  Machine machine;
  machine.memories.push_back({std::string(text.substr(0, equals))});
  machine.channels = {{0, 1, out, kUsualLatency}, {1, 0, in, kUsualLatency}};
  validate(machine);
  return machine;
}

}  // namespace reprise
