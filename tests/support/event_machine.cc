#include "support/event_machine.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

namespace reprise::testing {
namespace {

using Place = std::pair<std::string, std::string>;  // value, memory

int64_t transfer_time(const Channel& channel, int64_t bytes) {
  __extension__ using Wide = __int128;
  const Wide whole = Wide{bytes} * 1'000'000'000;
  int64_t time = static_cast<int64_t>(whole / channel.bytes_per_second);
  if (whole % channel.bytes_per_second != 0) ++time;
  return time + channel.latency.count();
}

// Everything goes by name; actors poll until nothing more can happen at this moment, then the clock
// goes to the next end.
class Events {
 public:
  Events(const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
         const Duration& duration)
      : machine_(machine), actions_(actions), duration_(duration) {
    for (const Value& value : graph.values) {
      bytes_[value.id] = value.bytes.count();
      if (value.kind == ValueKind::kInput) hold({value.id, memory(value.home)});
    }
    for (const Op& op : graph.ops) ops_[op.id] = &op;
    graph_ = &graph;
    level_[device()] += graph.fixed.count();
    note();
  }

  EventResult run() {
    while (true) {
      while (act()) {
      }
      if (ends_.empty()) break;
      now_ = ends_.begin()->first;
      const std::function<void()> happen = ends_.begin()->second;
      ends_.erase(ends_.begin());
      happen();
      note();
    }
    if (next_ < actions_.size() || running_) throw std::logic_error("the machine is stuck");
    for (const Memory& memory : machine_.memories) {
      result_.peaks.push_back(most_[memory.name]);
    }
    return result_;
  }

 private:
  const std::string& device() const { return machine_.memories[0].name; }
  std::string memory(const std::string& name) const { return name.empty() ? device() : name; }

  void hold(const Place& place) {
    if (held_.insert(place).second) level_[place.second] += bytes_.at(place.first);
  }
  void drop(const Place& place) {
    if (held_.erase(place) > 0) level_[place.second] -= bytes_.at(place.first);
  }
  void note() {
    for (const Memory& memory : machine_.memories) {
      most_[memory.name] = std::max(most_[memory.name], level_[memory.name]);
    }
  }
  void at(int64_t time, std::function<void()> happen) { ends_.emplace(time, std::move(happen)); }

  bool act() { return step() || start_copy(); }

  // The compute stream begins its next action, if it can.
  bool step() {
    if (running_ || next_ == actions_.size()) return false;
    const Action& action = actions_[next_];
    switch (action.kind) {
      case ActionKind::kRun:
        begin_run(action);
        return true;
      case ActionKind::kFree:
        note();
        drop({action.id, memory(action.at)});
        break;
      case ActionKind::kCopy:
        queue_of_channel(action).push_back(next_);
        pending_.insert({action.id, memory(action.to)});
        break;
      case ActionKind::kWait:
        if (pending_.count({action.id, memory(action.at)}) > 0) {
          note();
          return false;
        }
        break;
    }
    note();
    ++next_;
    note();
    result_.time = now_;
    return true;
  }

  void begin_run(const Action& action) {
    const Op& op = *ops_.at(action.id);
    const auto variant = std::find_if(op.variants.begin(), op.variants.end(),
                                      [&](const Variant& v) { return v.name == action.variant; });
    const auto place = [&](ValueIndex v) { return Place{graph_->values[v].id, device()}; };
    for (const ValueIndex v : variant->consumes) drop(place(v));
    for (const auto& pair : variant->reuses) drop(place(pair.second));
    int64_t extra = variant->workspace.count();
    for (const ValueIndex v : variant->writes) {
      if (held_.count(place(v)) > 0) extra += graph_->values[v].bytes.count();
      hold(place(v));
    }
    level_[device()] += extra;
    const size_t index = next_++;
    running_ = true;
    note();
    at(now_ + duration_(index, variant->time.count()), [this, extra] {
      note();
      level_[device()] -= extra;
      running_ = false;
      result_.time = now_;
    });
  }

  std::vector<size_t>& queue_of_channel(const Action& action) {
    return queues_[queue_of(machine_, channel(action))];
  }
  int32_t channel(const Action& action) const {
    return find_channel(machine_, find_memory(machine_, action.at),
                        find_memory(machine_, action.to));
  }

  // A channel begins the first copy of its queue, if the value is there and others are over.
  bool start_copy() {
    for (auto& [queue, waiting] : queues_) {
      if (waiting.empty() || busy_.count(queue) > 0) continue;
      const size_t index = waiting.front();
      const Action& action = actions_[index];
      if (pending_.count({action.id, memory(action.at)}) > 0) continue;
      const auto over = [&](int64_t earlier) { return done_.count(earlier) > 0; };
      if (!std::all_of(action.after.begin(), action.after.end(), over)) continue;
      waiting.erase(waiting.begin());
      busy_.insert(queue);
      const Place target{action.id, memory(action.to)};
      hold(target);
      note();
      const int64_t usual = transfer_time(machine_.channels[channel(action)], bytes_.at(action.id));
      at(now_ + duration_(index, usual), [this, queue = queue, index, target] {
        busy_.erase(queue);
        done_.insert(static_cast<int64_t>(index));
        pending_.erase(target);
      });
      return true;
    }
    return false;
  }

  const Graph* graph_ = nullptr;
  const Machine& machine_;
  const std::vector<Action>& actions_;
  const Duration& duration_;
  std::map<std::string, int64_t> bytes_;
  std::map<std::string, const Op*> ops_;
  std::map<std::string, int64_t> level_, most_;  // by memory
  std::set<Place> held_, pending_;
  std::map<int32_t, std::vector<size_t>> queues_;  // copies that have been reached
  std::set<int32_t> busy_;
  std::set<int64_t> done_;
  std::multimap<int64_t, std::function<void()>> ends_;
  int64_t now_ = 0;
  size_t next_ = 0;
  bool running_ = false;
  EventResult result_;
};

}  // namespace

EventResult run_events(const Graph& graph, const Machine& machine,
                       const std::vector<Action>& actions, const Duration& duration) {
  return Events(graph, machine, actions, duration).run();
}

}  // namespace reprise::testing
