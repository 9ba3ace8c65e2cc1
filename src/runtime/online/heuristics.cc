#include "runtime/online/heuristics.h"

#include <algorithm>
#include <array>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/online.h"

namespace reprise::runtime {
namespace internal::online {
namespace {

constexpr std::array kHeuristics = {
    Heuristic{"dtr", "cost of the value and its evicted neighborhood, over bytes and staleness",
              Neighborhood::kExact, true, true, true},
    Heuristic{"dtr_eq", "the same, with the neighborhood from a union-find structure",
              Neighborhood::kSets, true, true, true},
    Heuristic{"local", "cost of the value alone, over bytes and staleness", Neighborhood::kNone,
              true, true, true},
    Heuristic{"lru", "the value that was not used for the longest time", Neighborhood::kNone, false,
              false, true},
    Heuristic{"size", "the largest value", Neighborhood::kNone, false, true, false},
};

std::shared_ptr<EvictedSet> root_of(std::shared_ptr<EvictedSet> set) {
  while (set->parent) {
    if (set->parent->parent) set->parent = set->parent->parent;
    set = set->parent;
  }
  return set;
}

// A walk over absent values looks at no more calls than this. Beyond, the neighborhood is so dear
// that the value is not chosen anyway.
constexpr size_t kLargestNeighborhood = 256;

}  // namespace

const Heuristic& heuristic_named(const std::string& name) {
  std::string names;
  for (const Heuristic& row : kHeuristics) {
    if (name == row.name) return row;
    names += names.empty() ? row.name : std::string(", ") + row.name;
  }
  throw InputError("there is no heuristic '" + name + "' of online mode; there are " + names);
}

double Scorer::weight(const Value& value, double cost, double now) const {
  double weight = heuristic_.by_cost ? cost : 1;
  if (heuristic_.by_size) weight /= static_cast<double>(value.bytes);
  if (heuristic_.by_staleness) weight /= now - value.used + 1;
  return weight;
}

double Scorer::base(const Value& value, double now) const {
  return weight(value, value.maker->cost, now);
}

double Scorer::score(const Value& value, double now) {
  double cost = value.maker->cost;
  if (heuristic_.neighborhood == Neighborhood::kExact) cost += exact_neighborhood(value);
  if (heuristic_.neighborhood == Neighborhood::kSets) cost += sets_around(value);
  return weight(value, cost, now);
}

double Scorer::exact_neighborhood(const Value& value) {
  const uint64_t walk = ++walk_;
  double cost = 0;
  size_t calls = 0;
  std::vector<const Value*> open{&value};
  value.maker->mark = walk;
  while (!open.empty() && calls < kLargestNeighborhood) {
    const Value& from = *open.back();
    open.pop_back();
    for_each_read(*from.maker, [&](Value& operand) {
      if (operand.present() || !operand.maker || operand.maker->mark == walk) return;
      operand.maker->mark = walk;
      cost += operand.maker->cost;
      ++calls;
      open.push_back(&operand);
    });
  }
  open.assign(1, &value);
  while (!open.empty() && calls < 2 * kLargestNeighborhood) {
    const Value& from = *open.back();
    open.pop_back();
    for_each_made_from(from, [&](const CallPtr& call, const ValuePtr& made) {
      if (made->present() || made->mark == walk) return;
      made->mark = walk;
      open.push_back(made.get());
      if (call->mark == walk) return;
      call->mark = walk;
      cost += call->cost;
      ++calls;
    });
  }
  return cost;
}

double Scorer::sets_around(const Value& value) {
  const uint64_t walk = ++walk_;
  double cost = 0;
  const auto add = [&](const Value& other) {
    if (!other.evicted || other.present()) return;
    const auto root = root_of(other.evicted);
    if (root->mark == walk) return;
    root->mark = walk;
    cost += root->cost;
  };
  for_each_read(*value.maker, add);
  for_each_made_from(value, [&](const CallPtr&, const ValuePtr& made) { add(*made); });
  return cost;
}

void Scorer::evicted(Value& value) {
  if (heuristic_.neighborhood != Neighborhood::kSets) return;
  value.evicted = std::make_shared<EvictedSet>();
  value.evicted->cost = value.maker->cost;
  const auto merge = [&](const Value& other) {
    if (&other == &value || !other.evicted || other.present()) return;
    const auto mine = root_of(value.evicted), theirs = root_of(other.evicted);
    if (mine == theirs) return;
    theirs->parent = mine;
    mine->cost += theirs->cost;
  };
  for_each_read(*value.maker, merge);
  for_each_made_from(value, [&](const CallPtr&, const ValuePtr& made) { merge(*made); });
}

void Scorer::made_again(Value& value) {
  if (!value.evicted) return;
  const auto root = root_of(value.evicted);
  if (value.maker) root->cost = std::max(0.0, root->cost - value.maker->cost);
  value.evicted.reset();
}

}  // namespace internal::online

std::vector<OnlineHeuristic> online_heuristics() {
  std::vector<OnlineHeuristic> all;
  for (const auto& row : internal::online::kHeuristics) all.push_back({row.name, row.description});
  return all;
}

}  // namespace reprise::runtime
