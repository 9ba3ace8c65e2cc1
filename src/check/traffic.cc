#include "check/traffic.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr Wide kNanosPerSecond = 1'000'000'000;

// Divides exactly as copy_time() does, and cannot overflow.
Wide time_on(const Channel& channel, Bytes bytes) {
  const Wide rate = channel.bytes_per_second;
  const Wide scaled = Wide{bytes.count()} * kNanosPerSecond;
  return channel.latency.count() + scaled / rate + (scaled % rate != 0 ? 1 : 0);
}

}  // namespace

Traffic::Traffic(const Graph& graph, const Machine& machine)
    : graph_(graph), machine_(machine), clocks_(machine.memories.size(), 0) {}

Wide Traffic::now() const { return *std::max_element(clocks_.begin(), clocks_.end()); }

const Traffic::Copy* Traffic::last_into(const Place& place) const {
  const auto found = into_.find(place);
  return found == into_.end() ? nullptr : &copies_.at(found->second);
}

// A copy depends on what its two ends have done, on the copy before it in its queue, on the copy
// that makes what it reads, and on the copies that it names. What neither end computes comes after
// the runs of the first device.
void Traffic::copy(int64_t action, const BoundAction& copy) {
  std::vector<int64_t> before = copy.after;
  const int32_t queue = queue_of(machine_, copy.channel);
  if (const auto last = last_in_queue_.find(queue); last != last_in_queue_.end()) {
    before.push_back(last->second);
  }
  if (const auto maker = into_.find({copy.target, copy.at}); maker != into_.end()) {
    before.push_back(maker->second);
  }
  Wide start = std::max(clocks_[copy.at], clocks_[copy.to]);
  if (!computes(machine_, copy.at) && !computes(machine_, copy.to)) {
    start = std::max(start, clocks_[0]);
  }
  for (const int64_t earlier : before) {
    // A copy that was refused before has no end.
    if (const auto found = copies_.find(earlier); found != copies_.end()) {
      start = std::max(start, found->second.end);
    }
  }
  const Wide time = time_on(machine_.channels[copy.channel], graph_.values[copy.target].bytes);
  copies_[action] = {copy.target, copy.at, copy.to, start + time};
  into_[{copy.target, copy.to}] = action;
  out_of_[{copy.target, copy.at}].push_back(action);
  last_in_queue_[queue] = action;
}

void Traffic::wait(ValueIndex value, int32_t memory) {
  const auto found = into_.find({value, memory});
  if (found == into_.end()) return;
  Copy& copy = copies_.at(found->second);
  copy.waited = true;
  Wide& clock = clocks_[waiting_device(machine_, copy.from, copy.to)];
  clock = std::max(clock, copy.end);
}

bool Traffic::arriving(ValueIndex value, int32_t memory) const {
  const Copy* copy = last_into({value, memory});
  return copy != nullptr && !copy->waited;
}

bool Traffic::leaving(ValueIndex value, int32_t memory) const {
  const auto found = out_of_.find({value, memory});
  return found != out_of_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](int64_t action) { return !copies_.at(action).waited; });
}

void Traffic::forget(ValueIndex value, int32_t memory) {
  const auto hold_up = [&](int64_t action) {
    const Copy& copy = copies_.at(action);
    if (copy.waited) clocks_[memory] = std::max(clocks_[memory], copy.end);
  };
  if (const auto in = into_.find({value, memory}); in != into_.end()) hold_up(in->second);
  if (const auto out = out_of_.find({value, memory}); out != out_of_.end()) {
    for (const int64_t action : out->second) hold_up(action);
  }
  into_.erase({value, memory});
  out_of_.erase({value, memory});
}

}  // namespace reprise
