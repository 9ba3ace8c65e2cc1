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
// goes to the next end. Each memory is an actor that does its part of the actions in their order. A
// device runs operations; any memory lets copies begin that come to it or leave it, and gives back
// bytes when no copy of the value is under way.
class Events {
 public:
  Events(const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
         const Duration& duration)
      : graph_(graph), machine_(machine), actions_(actions), duration_(duration) {
    for (const Value& value : graph.values) {
      bytes_[value.id] = value.bytes.count();
      if (value.kind == ValueKind::kInput) hold({value.id, memory(value.home)});
    }
    for (const Op& op : graph.ops) ops_[op.id] = &op;
    level_[first()] += graph.fixed.count();
    hand_out();
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
    for (const auto& [name, actor] : actors_) {
      if (actor.next < actor.parts.size() || actor.running) {
        throw std::logic_error("the machine is stuck");
      }
    }
    for (const Memory& memory : machine_.memories) {
      result_.peaks.push_back(most_[memory.name]);
    }
    return result_;
  }

 private:
  struct Actor {
    std::vector<size_t> parts;  // its actions
    size_t next = 0;
    bool running = false;
  };

  const std::string& first() const { return machine_.memories[0].name; }
  std::string memory(const std::string& name) const { return name.empty() ? first() : name; }
  bool is_device(const std::string& name) const {
    return name == first() || std::any_of(machine_.memories.begin(), machine_.memories.end(),
                                          [&](const Memory& memory) {
                                            return memory.name == name && memory.computes;
                                          });
  }
  const Variant& variant(const Action& action) const {
    const std::vector<Variant>& all = ops_.at(action.id)->variants;
    return *std::find_if(all.begin(), all.end(),
                         [&](const Variant& v) { return v.name == action.variant; });
  }

  // Says who does an action. A send and a receive are the two halves of a copy, done apart. Both ends
  // of a copy must have got to it. If neither is a device, the
  // first device must have, too; and such a wait is its, as well.
  void hand_out() {
    std::map<Place, std::string> came_from;
    std::map<Place, size_t> halves;  // by target: a send or a receive whose partner is to come
    for (size_t a = 0; a < actions_.size(); ++a) {
      const Action& action = actions_[a];
      std::set<std::string> whose;
      const std::string at = memory(action.at);
      switch (action.kind) {
        case ActionKind::kRun:
          whose = {memory(variant(action).at)};
          break;
        case ActionKind::kFree:
          whose = {at};
          break;
        case ActionKind::kCopy:
          whose = {at, memory(action.to)};
          if (!is_device(at) && !is_device(memory(action.to))) whose.insert(first());
          came_from[{action.id, memory(action.to)}] = at;
          queues_[queue_of(machine_, channel(action))].push_back(a);
          missing_[a] = whose.size();
          break;
        case ActionKind::kSend:
        case ActionKind::kReceive: {
          const Place target{action.id, memory(action.to)};
          const bool sends = action.kind == ActionKind::kSend;
          whose = {sends ? at : target.second};
          came_from[target] = at;
          if (sends) queues_[queue_of(machine_, channel(action))].push_back(a);
          if (const auto half = halves.find(target); half == halves.end()) {
            halves[target] = a;
          } else {
            send_of_[a] = send_of_[half->second] = sends ? a : half->second;
            missing_[send_of_[a]] = 2;
            halves.erase(half);
          }
          break;
        }
        case ActionKind::kWait: {
          const auto from = came_from.find({action.id, at});
          if (is_device(at)) {
            whose = {at};
          } else if (from != came_from.end() && is_device(from->second)) {
            whose = {from->second};
          } else {
            whose = {first()};
          }
          break;
        }
      }
      for (const std::string& name : whose) actors_[name].parts.push_back(a);
    }
  }

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

  bool act() {
    for (auto& [name, actor] : actors_) {
      if (step(name, actor)) return true;
    }
    return start_copy();
  }

  bool is_busy(const Place& place) const {
    return coming_.count(place) > 0 || going_.count(place) > 0;
  }

  // A memory begins its next action, if it can.
  bool step(const std::string& name, Actor& actor) {
    if (actor.running || actor.next == actor.parts.size()) return false;
    const size_t index = actor.parts[actor.next];
    const Action& action = actions_[index];
    switch (action.kind) {
      case ActionKind::kRun:
        return begin_run(action, index, name, actor);
      case ActionKind::kFree:
        if (is_busy({action.id, name})) return false;
        note();
        drop({action.id, name});
        break;
      case ActionKind::kCopy:
        if (name == memory(action.at)) going_.insert({action.id, name});
        if (name == memory(action.to)) coming_.insert({action.id, name});
        if (--missing_[index] == 0) reached_.insert(index);
        break;
      case ActionKind::kSend:
      case ActionKind::kReceive:
        if (action.kind == ActionKind::kSend) {
          going_.insert({action.id, name});
        } else {
          coming_.insert({action.id, name});
          hold({action.id, name});
        }
        if (--missing_.at(send_of_.at(index)) == 0) reached_.insert(send_of_.at(index));
        break;
      case ActionKind::kWait:
        // The copy may not have been reached by its other end.
        if (!over({action.id, memory(action.at)}, index)) return false;
        if (!gone({action.id, memory(action.at)}, index)) return false;
        break;
    }
    note();
    ++actor.next;
    result_.time = std::max(result_.time, now_);
    return true;
  }

  // Says whether the last copy to the place before this action is over.
  bool over(const Place& place, size_t before) const {
    for (size_t a = before; a-- > 0;) {
      const Action& action = actions_[a];
      if (action.id != place.first || memory(action.to) != place.second) continue;
      if (action.kind == ActionKind::kCopy) return done_.count(static_cast<int64_t>(a)) > 0;
      if (action.kind != ActionKind::kReceive) continue;
      return done_.count(static_cast<int64_t>(send_of_.at(a))) > 0;
    }
    return true;
  }

  // Says whether all messages out of the place before this action are over.
  bool gone(const Place& place, size_t before) const {
    for (size_t a = 0; a < before; ++a) {
      const Action& action = actions_[a];
      if (action.kind != ActionKind::kSend || action.id != place.first) continue;
      if (memory(action.at) != place.second) continue;
      if (done_.count(static_cast<int64_t>(a)) == 0) return false;
    }
    return true;
  }

  bool begin_run(const Action& action, size_t index, const std::string& name, Actor& actor) {
    const Variant& what = variant(action);
    const auto place = [&](ValueIndex v) { return Place{graph_.values[v].id, name}; };
    for (const ValueIndex v : what.reads) {
      if (held_.count(place(v)) == 0 || coming_.count(place(v)) > 0) {
        throw std::logic_error("a run reads what is not there");
      }
    }
    for (const ValueIndex v : what.consumes) {
      if (is_busy(place(v))) return false;
    }
    for (const auto& pair : what.reuses) {
      if (is_busy(place(pair.second))) return false;
    }
    for (const ValueIndex v : what.consumes) drop(place(v));
    for (const auto& pair : what.reuses) drop(place(pair.second));
    int64_t extra = what.workspace.count();
    for (const ValueIndex v : what.writes) {
      if (held_.count(place(v)) > 0) extra += graph_.values[v].bytes.count();
      hold(place(v));
    }
    level_[name] += extra;
    ++actor.next;
    actor.running = true;
    note();
    at(now_ + duration_(index, what.time.count()), [this, extra, name, &actor] {
      note();
      level_[name] -= extra;
      actor.running = false;
      result_.time = std::max(result_.time, now_);
    });
    return true;
  }

  int32_t channel(const Action& action) const {
    return find_channel(machine_, find_memory(machine_, memory(action.at)),
                        find_memory(machine_, memory(action.to)));
  }

  // A channel begins the first copy of its queue, if its ends have got to it, the value is there
  // and others are over.
  bool start_copy() {
    for (auto& [queue, waiting] : queues_) {
      if (waiting.empty() || busy_.count(queue) > 0) continue;
      const size_t index = waiting.front();
      if (reached_.count(index) == 0) continue;
      const Action& action = actions_[index];
      const Place source{action.id, memory(action.at)}, target{action.id, memory(action.to)};
      if (!over(source, index)) continue;
      const auto is_over = [&](int64_t earlier) { return done_.count(earlier) > 0; };
      if (!std::all_of(action.after.begin(), action.after.end(), is_over)) continue;
      if (held_.count(source) == 0) throw std::logic_error("a copy of nothing");
      waiting.erase(waiting.begin());
      busy_.insert(queue);
      hold(target);
      note();
      const int64_t usual = transfer_time(machine_.channels[channel(action)], bytes_.at(action.id));
      at(now_ + duration_(index, usual), [this, queue = queue, index, source, target] {
        busy_.erase(queue);
        done_.insert(static_cast<int64_t>(index));
        coming_.erase(coming_.find(target));
        going_.erase(going_.find(source));
      });
      return true;
    }
    return false;
  }

  const Graph& graph_;
  const Machine& machine_;
  const std::vector<Action>& actions_;
  const Duration& duration_;
  std::map<std::string, int64_t> bytes_;
  std::map<std::string, const Op*> ops_;
  std::map<std::string, int64_t> level_, most_;  // by memory
  std::map<std::string, Actor> actors_;          // by memory
  std::set<Place> held_;
  std::multiset<Place> coming_, going_;            // where copies go, and where they come from
  std::map<int32_t, std::vector<size_t>> queues_;  // copies that have not begun
  std::map<size_t, size_t> missing_;               // how many have not got to a copy
  std::map<size_t, size_t> send_of_;               // by send or receive: the send of its message
  std::set<size_t> reached_;
  std::set<int32_t> busy_;
  std::set<int64_t> done_;
  std::multimap<int64_t, std::function<void()>> ends_;
  int64_t now_ = 0;
  EventResult result_;
};

}  // namespace

EventResult run_events(const Graph& graph, const Machine& machine,
                       const std::vector<Action>& actions, const Duration& duration) {
  if (const auto placed = as_placed(graph, actions)) {
    return run_events(*placed, machine, actions, duration);
  }
  return Events(graph, machine, actions, duration).run();
}

}  // namespace reprise::testing
