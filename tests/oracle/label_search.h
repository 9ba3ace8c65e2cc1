// LabelSearch is the search that both oracles of plans with copies share: A* over labels, each with
// a state and the times at which things are free or there. A label is dropped if another one of the
// same state is nowhere later. What a plan may do next is up to the class that derives from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct BestPlan {
  bool finished = false;             // else the search gave up at `most_labels`
  std::optional<int64_t> time = {};  // none if no plan fits
  std::vector<Action> actions = {};  // a plan of that time
};

// Says where a value is, in one memory.
enum Presence : char { kAbsent, kHere, kComing };

// State has an order and `ran`, by op. Times have nowhere_later().
template <class State, class Times>
class LabelSearch {
 public:
  LabelSearch(const Graph& graph, size_t most) : graph_(graph), most_(most) {}
  virtual ~LabelSearch() = default;

 protected:
  struct Label {
    State state;
    Times times;
    int64_t parent = -1;
    std::vector<Action> actions = {};  // since the parent
    bool dead = false;
  };

  // Adds the labels that may follow.
  virtual void expand(size_t parent) = 0;
  virtual bool done(const State& state) const = 0;

  // Returns the label of a plan of least time, or nothing: then no plan fits, or it gave up.
  std::optional<size_t> search() {
    while (!open_.empty()) {
      const auto index = static_cast<size_t>(open_.top().second);
      open_.pop();
      if (labels_[index].dead) continue;
      if (done(labels_[index].state)) return index;
      if (labels_.size() > most_) {
        gave_up_ = true;
        return {};
      }
      expand(index);
    }
    return {};
  }

  // `least` is a time that no plan behind this label beats.
  void enqueue(Label label, int64_t least) {
    std::vector<size_t>& same = by_state_[label.state];
    for (const size_t other : same) {
      if (labels_[other].times.nowhere_later(label.times)) return;
    }
    std::erase_if(same, [&](size_t other) {
      if (!label.times.nowhere_later(labels_[other].times)) return false;
      labels_[other].dead = true;
      return true;
    });
    same.push_back(labels_.size());
    open_.emplace(least, static_cast<int64_t>(labels_.size()));
    labels_.push_back(std::move(label));
  }

  Label child(size_t parent) const {
    return {labels_[parent].state, labels_[parent].times, static_cast<int64_t>(parent)};
  }

  std::vector<Action> actions_to(size_t last) const {
    std::vector<Action> all;
    for (auto at = static_cast<int64_t>(last); at >= 0;
         at = labels_[static_cast<size_t>(at)].parent) {
      const std::vector<Action>& part = labels_[static_cast<size_t>(at)].actions;
      all.insert(all.begin(), part.begin(), part.end());
    }
    return all;
  }

  int64_t bytes(size_t v) const { return graph_.values[v].bytes.count(); }
  const std::string& id(size_t v) const { return graph_.values[v].id; }
  bool is_input(size_t v) const { return graph_.values[v].kind == ValueKind::kInput; }
  bool is_result(size_t v) const {
    return std::count(graph_.results.begin(), graph_.results.end(), static_cast<ValueIndex>(v)) > 0;
  }
  static bool once(const Op& op) { return op.once || op.phase != Phase::kForward; }

  // Ops that run once keep their order.
  bool is_its_turn(const std::vector<char>& ran, size_t o) const {
    if (!once(graph_.ops[o])) return true;
    if (ran[o]) return false;
    for (size_t before = 0; before < o; ++before) {
      if (once(graph_.ops[before]) && !ran[before]) return false;
    }
    return true;
  }

  // A value is needed if it is a result, or an op that has still to run may read it, or one that
  // makes a needed value. A value that is not needed is freed at once, which no plan does better
  // without.
  std::vector<char> needed(const std::vector<char>& ran) const {
    std::vector<char> values(graph_.values.size(), 0);
    for (size_t v = 0; v < values.size(); ++v) values[v] = is_result(v);
    for (size_t o = graph_.ops.size(); o-- > 0;) {
      const Op& op = graph_.ops[o];
      for (const Variant& variant : op.variants) {
        const bool makes = !once(op) && std::any_of(variant.writes.begin(), variant.writes.end(),
                                                    [&](ValueIndex v) { return values[v] != 0; });
        if (ran[o] && !makes) continue;
        for (const ValueIndex v : variant.reads) values[static_cast<size_t>(v)] = 1;
      }
    }
    return values;
  }

  // Every op that has not run runs at least once.
  int64_t rest(const std::vector<char>& ran) const {
    int64_t time = 0;
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (ran[o]) continue;
      Nanos least = graph_.ops[o].variants.front().time;
      for (const Variant& variant : graph_.ops[o].variants) least = std::min(least, variant.time);
      time += least.count();
    }
    return time;
  }

  const Graph& graph_;
  std::vector<Label> labels_;
  std::vector<char> needed_;  // in the label that is being expanded
  bool gave_up_ = false;

 private:
  const size_t most_;
  std::map<State, std::vector<size_t>> by_state_;
  using Entry = std::pair<int64_t, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open_;
};

}  // namespace reprise::testing
