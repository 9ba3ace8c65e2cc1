#include "runtime/rewrite/tiles/tile_groups.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/rewrite/tiles/tile_program.h"

namespace reprise::runtime::internal::rewrite {

namespace {

// More calls than in a group of any network would only cost the planner's time.
constexpr size_t kMostCalls = 48;

template <class Visit>
void for_each_operand(const ElementCall& call, Visit&& visit) {
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    for (const TensorRef& ref : call.arguments[a].tensors) visit(ref, a);
  }
}

bool contains(const std::vector<int32_t>& sorted, int32_t call) {
  return std::ranges::binary_search(sorted, call);
}

}  // namespace

std::vector<int32_t> TileChoice::calls() const {
  std::vector<int32_t> all;
  for (const auto* groups : {&forward, &backward}) {
    for (const TileGroup& group : *groups) {
      std::ranges::copy(group.calls, std::back_inserter(all));
    }
  }
  std::ranges::sort(all);
  return all;
}

GroupRules rules_of_tiles(const step::Recording& recording) {
  auto element_calls = std::make_shared<ElementCalls>(recording);
  return {.find = [element_calls](int32_t call) -> std::optional<ElementCall> {
    std::optional<ElementCall> found = element_calls->at(call);
    if (found && tile_of(found->elements, found->unit) == 0) return std::nullopt;
    return found;
  }};
}

TileGroups::TileGroups(const Rewriter& rewriter, GroupRules rules)
    : rewriter_(rewriter),
      recording_(rewriter.recording()),
      rules_(std::move(rules)),
      element_calls_(recording_.calls.size()),
      overwritten_by_(recording_.values.size(), static_cast<int32_t>(recording_.calls.size())),
      group_of_(recording_.calls.size(), -1) {
  if (!recording_.device.is_cpu()) return;
  for (const StepValue& value : recording_.values) {
    if (value.previous >= 0) overwritten_by_[value.previous] = value.maker;
  }
  for (size_t c = 0; c < recording_.calls.size(); ++c) {
    const auto call = static_cast<int32_t>(c);
    std::optional<ElementCall> found = rules_.find(call);
    if (!found || rewriter.reads_written(rewriter.work(call)) ||
        !rewriter.is_worthwhile(recording_.values[found->result.index].bytes)) {
      continue;
    }
    element_calls_[c] = std::move(found);
    add_to_groups(call);
  }
}

std::optional<TileGroup> TileGroups::together(std::vector<int32_t> calls) const {
  std::ranges::sort(calls);
  if (calls.size() > kMostCalls) return std::nullopt;
  TileGroup group{.phase = recording_.calls[calls[0]].phase,
                  .elements = element_call(calls[0]).elements};
  int32_t ready = -1;  // the last call outside that makes something for the group
  auto wanted = static_cast<int32_t>(recording_.calls.size());  // the first one that needs it done
  for (const int32_t c : calls) {
    const ElementCall& call = element_call(c);
    if (recording_.calls[c].phase != group.phase ||
        (rules_.in_tiles && call.elements != group.elements)) {
      return std::nullopt;
    }
    group.unit = std::lcm(group.unit, call.unit);
    bool in_order = true;
    for_each_operand(call, [&](const TensorRef& ref, size_t a) {
      if (ref.memory != Memory::kValue) return;
      const int32_t maker = recording_.values[ref.index].maker;
      if (contains(calls, maker)) {
        // A value that lies in a tile can be read in its own order only.
        in_order = in_order &&
                   (!rules_.in_tiles || (call.is_whole(a) && ref.geometry.offset == 0)) &&
                   ref.geometry.dtype == element_call(maker).result.geometry.dtype;
        return;
      }
      ready = std::max(ready, maker);
      wanted = std::min(wanted, overwritten_by(ref.index));
    });
    if (!in_order) return std::nullopt;
    for (const int32_t reader : rewriter_.readers(call.result.index)) {
      if (!contains(calls, reader)) wanted = std::min(wanted, reader);
    }
    const int32_t gone = overwritten_by(call.result.index);
    if (!contains(calls, gone)) wanted = std::min(wanted, gone);
  }
  group.after = std::min(calls.back(), wanted - 1);
  if (group.after < std::max(ready, 0) || recording_.calls[group.after].phase != group.phase ||
      (rules_.in_tiles && tile_of(group.elements, group.unit) == 0)) {
    return std::nullopt;
  }
  group.calls = std::move(calls);
  return group;
}

// The call joins the groups of calls that make its operands, all of them if possible. It also joins
// a group that reads the same operand, if no other call lies between.
void TileGroups::add_to_groups(int32_t c) {
  std::vector<int32_t> neighbours;  // groups
  const auto add = [&](int32_t other) {
    if (other < 0) return;
    const int32_t group = group_of_[other];
    if (group >= 0 && std::ranges::find(neighbours, group) == neighbours.end()) {
      neighbours.push_back(group);
    }
  };
  const auto is_next_to = [&](int32_t other) {
    for (int32_t between = other + 1; between < c; ++between) {
      if (!element_calls_[between]) return false;
    }
    return true;
  };
  for_each_operand(element_call(c), [&](const TensorRef& ref, size_t a) {
    if (ref.memory != Memory::kValue || !element_call(c).is_tensor(a)) return;
    add(recording_.values[ref.index].maker);
    for (const int32_t reader : rewriter_.readers(ref.index)) {
      if (reader < c && is_next_to(reader)) add(reader);
    }
  });
  std::vector<int32_t> calls{c};
  std::vector<int32_t> joined;
  for (const int32_t group : neighbours) {
    std::vector<int32_t> more = calls;
    std::ranges::copy(groups_[group].calls, std::back_inserter(more));
    if (!together(more)) continue;
    calls = std::move(more);
    joined.push_back(group);
  }
  std::optional<TileGroup> group = together(calls);
  if (!group) return;  // what it writes over is still read elsewhere
  for (const int32_t other : joined) groups_[other] = {};
  for (const int32_t one : group->calls) {
    group_of_[one] = static_cast<int32_t>(groups_.size());
  }
  groups_.push_back(*std::move(group));
}

std::vector<TileChoice> TileGroups::choices() const {
  // A forward and a backward group are joined by a value that the one makes, that no call outside
  // the group reads in the forward, and that the other reads.
  std::vector<size_t> leader(groups_.size());
  std::iota(leader.begin(), leader.end(), size_t{0});
  const auto leader_of = [&](size_t group) {
    while (leader[group] != group) group = leader[group];
    return group;
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].phase != Phase::kForward) continue;
    for (const int32_t c : groups_[g].calls) {
      const int32_t value = element_call(c).result.index;
      if (rewriter_.is_result(value)) continue;
      std::vector<int32_t> in_backward;
      bool escapes = false;
      for (const int32_t reader : rewriter_.readers(value)) {
        const bool is_forward = recording_.calls[reader].phase == Phase::kForward;
        if (is_forward) escapes = escapes || !contains(groups_[g].calls, reader);
        const int32_t other = group_of_[reader];
        const bool fits =
            !rules_.in_tiles || (other >= 0 && groups_[other].elements == groups_[g].elements);
        if (!is_forward && other >= 0 && fits) {
          in_backward.push_back(other);
        }
      }
      if (escapes) continue;
      for (const int32_t other : in_backward) {
        leader[leader_of(static_cast<size_t>(other))] = leader_of(g);
      }
    }
  }
  std::vector<TileChoice> by_leader(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].calls.empty()) continue;
    TileChoice& choice = by_leader[leader_of(g)];
    (groups_[g].phase == Phase::kForward ? choice.forward : choice.backward).push_back(groups_[g]);
  }
  std::vector<TileChoice> all;
  for (TileChoice& choice : by_leader) {
    size_t calls = 0, most = 0;
    for (const auto* groups : {&choice.forward, &choice.backward}) {
      for (const TileGroup& group : *groups) {
        calls += group.calls.size();
        most = std::max(most, group.calls.size());
      }
    }
    if (most >= 2 && calls <= 2 * kMostCalls) all.push_back(std::move(choice));
  }
  return all;
}

}  // namespace reprise::runtime::internal::rewrite
