#include "check/traffic.h"

#include <algorithm>
#include <iterator>

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
  Wide start = std::max(clocks_[copy.at], clocks_[copy.to]);
  if (!computes(machine_, copy.at) && !computes(machine_, copy.to)) {
    start = std::max(start, clocks_[0]);
  }
  copies_[action] = {.value = copy.target, .from = copy.at, .to = copy.to};
  carry(action, copy.channel, start, copy.after);
  into_[{copy.target, copy.to}] = action;
  out_of_[{copy.target, copy.at}].push_back(action);
}

void Traffic::carry(int64_t action, int32_t channel, Wide start,
                    const std::vector<int64_t>& after) {
  Copy& copy = copies_.at(action);
  std::vector<int64_t> before = after;
  const int32_t queue = queue_of(machine_, channel);
  if (const auto last = last_in_queue_.find(queue); last != last_in_queue_.end()) {
    before.push_back(last->second);
  }
  if (const auto maker = into_.find({copy.value, copy.from}); maker != into_.end()) {
    before.push_back(maker->second);
  }
  for (const int64_t earlier : before) {
    // A copy that was refused before has no end.
    if (const auto found = copies_.find(earlier); found != copies_.end()) {
      start = std::max(start, found->second.end.value_or(0));
    }
  }
  copy.end = start + time_on(machine_.channels[channel], graph_.values[copy.value].bytes);
  last_in_queue_[queue] = action;
}

bool Traffic::message(int64_t action, const BoundAction& end) {
  const auto [half, fresh] = halves_.try_emplace({end.target, end.to}, action);
  const int64_t message = half->second;
  if (fresh) {
    copies_[message] = {
        .value = end.target, .from = end.at, .to = end.to, .end = {}, .message = true};
  }
  Copy& copy = copies_.at(message);
  const bool sends = end.kind == ActionKind::kSend;
  std::optional<Wide>& reached = sends ? copy.sent : copy.posted;
  if (reached || copy.from != end.at) return false;
  reached = clocks_[sends ? end.at : end.to];
  std::deque<int64_t>& waiting = sent_[queue_of(machine_, end.channel)];
  if (sends) {
    out_of_[{end.target, end.at}].push_back(message);
    waiting.push_back(message);
  } else {
    into_[{end.target, end.to}] = message;
  }
  if (!fresh) halves_.erase(half);
  for (; !waiting.empty(); waiting.pop_front()) {
    const Copy& first = copies_.at(waiting.front());
    if (!first.posted) break;
    carry(waiting.front(), find_channel(machine_, first.from, first.to),
          std::max(*first.sent, *first.posted), {});
  }
  return true;
}

bool Traffic::wait(ValueIndex value, int32_t memory) {
  std::vector<int64_t> awaited;
  int32_t from = 0;
  if (const auto in = into_.find({value, memory}); in != into_.end()) {
    Copy& arriving = copies_.at(in->second);
    arriving.arrived = arriving.end.has_value();
    awaited.push_back(in->second);
    from = arriving.from;
  }
  if (const auto out = out_of_.find({value, memory}); out != out_of_.end()) {
    std::ranges::copy_if(out->second, std::back_inserter(awaited),
                         [&](int64_t action) { return copies_.at(action).message; });
  }
  Wide& clock = clocks_[waiting_device(machine_, from, memory)];
  bool fine = true;
  for (const int64_t action : awaited) {
    Copy& copy = copies_.at(action);
    fine = fine && copy.end;
    copy.waited = copy.waited || copy.end;
    clock = std::max(clock, copy.end.value_or(0));
  }
  return fine;
}

bool Traffic::open(ValueIndex value, int32_t memory) const {
  const Copy* copy = last_into({value, memory});
  return copy != nullptr && !copy->end;
}

bool Traffic::blocked(int32_t channel) const {
  const auto found = sent_.find(queue_of(machine_, channel));
  return found != sent_.end() && !found->second.empty();
}

std::vector<int64_t> Traffic::halves() const {
  std::vector<int64_t> actions;
  for (const auto& [place, action] : halves_) actions.push_back(action);
  std::sort(actions.begin(), actions.end());
  return actions;
}

bool Traffic::arriving(ValueIndex value, int32_t memory) const {
  const Copy* copy = last_into({value, memory});
  return copy != nullptr && !copy->arrived;
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
    if (copy.waited) clocks_[memory] = std::max(clocks_[memory], *copy.end);
  };
  if (const auto in = into_.find({value, memory}); in != into_.end()) hold_up(in->second);
  if (const auto out = out_of_.find({value, memory}); out != out_of_.end()) {
    for (const int64_t action : out->second) hold_up(action);
  }
  into_.erase({value, memory});
  out_of_.erase({value, memory});
}

}  // namespace reprise
