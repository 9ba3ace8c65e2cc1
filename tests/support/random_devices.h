// Makes random machines with several devices, graphs whose ops run on any of them, and plans that
// use them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "support/random_copies.h"

namespace reprise::testing {

// The second memory computes, and a third one may, too. Channels join all memories.
inline Machine random_devices(std::mt19937_64& random, const RandomMachineOptions& options = {}) {
  Machine machine = random_machine(random, options);
  machine.memories[1].computes = true;
  if (machine.memories.size() > 2) machine.memories[2].computes = random() % 2 == 0;
  return machine;
}

// Gives each variant twins on the other devices, which take another time and workspace. Some ops of
// `rarely` : 1 get none.
inline Graph spread(std::mt19937_64& random, Graph graph, const Machine& machine, int rarely = 5) {
  for (Op& op : graph.ops) {
    if (random() % static_cast<uint64_t>(rarely) == 0) continue;
    const std::vector<Variant> variants = op.variants;
    for (size_t m = 1; m < machine.memories.size(); ++m) {
      if (!machine.memories[m].computes) continue;
      for (Variant variant : variants) {
        variant.at = machine.memories[m].name;
        variant.name += "@" + variant.at;
        variant.time = Nanos(
            static_cast<int64_t>(random() % static_cast<uint64_t>(2 * variant.time.count() + 2)));
        variant.workspace = Bytes(static_cast<int64_t>(random() % 6));
        op.variants.push_back(variant);
      }
    }
  }
  return graph;
}

// Makes a plan of plain training's runs, each on a random device that has a twin of its variant,
// with copies, waits and frees at random moments that are valid. Some forward ops run again.
class RandomPlacing {
 public:
  RandomPlacing(std::mt19937_64& random, const Graph& graph, const Machine& machine)
      : random_(random), graph_(graph), machine_(machine) {}

  std::vector<Action> make() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ValueKind::kInput) places_[{index(v), 0}] = {};
    }
    const std::vector<Run> runs = plain_runs(graph_);
    for (size_t r = 0; r < runs.size(); ++r) {
      run(runs[r]);
      if (chance(4)) run_again(runs[random_() % (r + 1)]);
      forget(runs, r + 1);
    }
    for (const ValueIndex result : graph_.results) bring(result, 0);
    while (!places_.empty()) {
      const auto place = places_.begin()->first;
      if (place.second == 0 && stays(place.first)) {
        wait(place.first, 0);
        places_.erase(places_.begin());
      } else {
        give_back(place.first, place.second);
      }
    }
    return actions_;
  }

 private:
  struct Place {
    bool arriving = false;
    std::set<int32_t> leaving = {};  // memories to which copies are under way
  };
  using Where = std::pair<ValueIndex, int32_t>;

  static ValueIndex index(size_t v) { return static_cast<ValueIndex>(v); }
  bool chance(uint64_t of) { return random_() % of == 0; }
  const std::string& id(ValueIndex v) const { return graph_.values[static_cast<size_t>(v)].id; }
  const std::string& name(int32_t m) const {
    return machine_.memories[static_cast<size_t>(m)].name;
  }
  bool is_input(ValueIndex v) const {
    return graph_.values[static_cast<size_t>(v)].kind == ValueKind::kInput;
  }
  bool stays(ValueIndex v) const {
    return is_input(v) || std::count(graph_.results.begin(), graph_.results.end(), v) > 0;
  }
  bool there(ValueIndex v, int32_t m) const { return places_.count({v, m}) > 0; }
  bool anywhere(ValueIndex v) const {
    const auto found = places_.lower_bound({v, 0});
    return found != places_.end() && found->first.first == v;
  }

  // Any twin of the variant, by its name before the "@".
  const Variant& twin(const Run& run) {
    const std::vector<Variant>& all = graph_.ops[static_cast<size_t>(run.op)].variants;
    const std::string& plain = all[static_cast<size_t>(run.variant)].name;
    std::vector<const Variant*> twins;
    for (const Variant& variant : all) {
      if (variant.name.substr(0, variant.name.find('@')) == plain) twins.push_back(&variant);
    }
    return *twins[random_() % twins.size()];
  }

  void run(const Run& run) { run_variant(run, twin(run)); }

  void run_again(const Run& run) {
    const Op& op = graph_.ops[static_cast<size_t>(run.op)];
    const Variant& variant = twin(run);
    if (op.once || op.phase != Phase::kForward || variant.role != Role::kAny) return;
    if (!variant.consumes.empty() || !variant.reuses.empty()) return;
    for (const ValueIndex v : variant.reads) {
      if (!anywhere(v)) return;
    }
    run_variant(run, variant);
  }

  void run_variant(const Run& run, const Variant& variant) {
    const int32_t device = find_memory(machine_, variant.at);
    for (const ValueIndex v : variant.reads) bring(v, device);
    for (const ValueIndex v : variant.consumes) take(v, device);
    for (const auto& pair : variant.reuses) take(pair.second, device);
    actions_.push_back(
        {ActionKind::kRun, graph_.ops[static_cast<size_t>(run.op)].id, variant.name});
    for (const ValueIndex v : variant.writes) {
      places_[{v, device}];
      if (chance(2)) send(v, device);
    }
  }

  // Copies the value to a random memory where it is not.
  void send(ValueIndex v, int32_t from) {
    const auto to = static_cast<int32_t>(random_() % machine_.memories.size());
    if (!there(v, to)) copy(v, from, to);
  }

  void copy(ValueIndex v, int32_t from, int32_t to) {
    Action action{ActionKind::kCopy, id(v), "", name(from), name(to)};
    if (!copies_.empty() && chance(6)) action.after = {copies_[random_() % copies_.size()]};
    copies_.push_back(static_cast<int64_t>(actions_.size()));
    actions_.push_back(action);
    places_[{v, from}].leaving.insert(to);
    places_[{v, to}].arriving = true;
  }

  void wait(ValueIndex v, int32_t m) {
    Place& place = places_.at({v, m});
    if (!place.arriving) return;
    actions_.push_back({ActionKind::kWait, id(v), "", name(m)});
    place.arriving = false;
    for (auto& [where, other] : places_) {
      if (where.first == v) other.leaving.erase(m);
    }
  }

  void bring(ValueIndex v, int32_t device) {
    if (!there(v, device)) {
      std::vector<int32_t> sources;
      for (const auto& [where, place] : places_) {
        if (where.first == v) sources.push_back(where.second);
      }
      copy(v, sources[random_() % sources.size()], device);
    }
    wait(v, device);
  }

  // Waits for all copies of the value in this memory, and out of it.
  void take(ValueIndex v, int32_t m) {
    wait(v, m);
    const std::set<int32_t> leaving = places_.at({v, m}).leaving;
    for (const int32_t to : leaving) wait(v, to);
    places_.erase({v, m});
  }

  void give_back(ValueIndex v, int32_t m) {
    take(v, m);
    actions_.push_back({ActionKind::kFree, id(v), "", m == 0 ? "" : name(m)});
  }

  // Gives back at random what no later run reads, or what is in another memory, too.
  void forget(const std::vector<Run>& runs, size_t next) {
    std::set<ValueIndex> needed(graph_.results.begin(), graph_.results.end());
    for (size_t r = next; r < runs.size(); ++r) {
      const auto& variants = graph_.ops[static_cast<size_t>(runs[r].op)].variants;
      for (const Variant& variant : variants) {
        needed.insert(variant.reads.begin(), variant.reads.end());
      }
    }
    std::vector<Where> all;
    for (const auto& [where, place] : places_) all.push_back(where);
    for (const Where& where : all) {
      if (!there(where.first, where.second)) continue;
      if (where.second == 0 && is_input(where.first)) continue;
      int others = 0;
      for (const auto& [other, place] : places_) others += other.first == where.first;
      const bool is_needed = needed.count(where.first) > 0;
      if (is_needed ? others > 1 && chance(4) : !chance(4)) give_back(where.first, where.second);
    }
  }

  std::mt19937_64& random_;
  const Graph& graph_;
  const Machine& machine_;
  std::map<Where, Place> places_;
  std::vector<int64_t> copies_;
  std::vector<Action> actions_;
};

// Says whether an action is about a value in a memory, or could be.
inline bool concerns(const Action& action, const std::string& value, const std::string& memory,
                     const Graph& graph) {
  if (action.kind != ActionKind::kRun) {
    return action.id == value && (action.at == memory || action.to == memory);
  }
  for (const Variant& variant :
       graph.ops[static_cast<size_t>(find_op(graph, action.id))].variants) {
    if (variant.name != action.variant) continue;
    for (const auto* list : {&variant.reads, &variant.writes}) {
      for (const ValueIndex v : *list) {
        if (graph.values[static_cast<size_t>(v)].id == value) return true;
      }
    }
  }
  return false;
}

// Makes messages of some copies: a receive up to eight actions before or behind the send, where the
// plan can still be simulated.
inline std::vector<Action> with_random_messages(std::mt19937_64& random, const Graph& graph,
                                                const Machine& machine,
                                                std::vector<Action> actions) {
  for (Action& action : actions) action.after.clear();
  for (size_t a = 0; a < actions.size(); ++a) {
    if (actions[a].kind != ActionKind::kCopy || random() % 4 == 0) continue;
    std::vector<Action> tried = actions;
    Action receive = tried[a];
    receive.kind = ActionKind::kReceive;
    tried[a].kind = ActionKind::kSend;
    const bool later = random() % 2 == 0;
    size_t at = later ? a + 1 : a;
    for (uint64_t steps = random() % 8; steps > 0; --steps) {
      if (later ? at == tried.size() : at == 0) break;
      if (concerns(tried[later ? at : at - 1], receive.id, receive.to, graph)) break;
      at += later ? 1 : -1;
    }
    tried.insert(tried.begin() + static_cast<std::ptrdiff_t>(at), receive);
    try {
      simulate(graph, tried, machine);
    } catch (const InputError&) {
      continue;  // A copy would stand behind the message, for example.
    }
    actions = std::move(tried);
  }
  return actions;
}

inline std::vector<Action> random_placing(std::mt19937_64& random, const Graph& graph,
                                          const Machine& machine) {
  return RandomPlacing(random, graph, machine).make();
}

}  // namespace reprise::testing
