// Homes are the values of a graph that may live in another memory between steps (Value::home), such as
// the state of an optimizer on a disk.
//
// A group of them stays on the device all the time, where it takes its bytes and needs no copies, or it
// moves: the values come for the runs that read them, and go back when they were written. What takes
// over the memory of a value is of its group, as the state after an update is of that before. The
// decision is one of the search, like those about all other values; a Flow has the copies (flow.h).
//
// The bounds and the first schedules of a search do not know these values. What an op needs of them while
// it runs counts in its workspace, which holds for both cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::internal::place {

class HomeGroups {
 public:
  // `lanes` has the memory of each lane. The graph must outlive this object. Throws InputError if the lanes
  // lead to no memory of a home.
  HomeGroups(const Graph& graph, const Machine& machine, const std::vector<int32_t>& lanes);

  bool has(ValueIndex value) const { return group_[value] >= 0; }
  int8_t lane(ValueIndex value) const { return lane_[value]; }
  Bytes bytes(ValueIndex value) const { return graph_.values[value].bytes; }
  int32_t group(ValueIndex value) const { return group_[value]; }
  size_t groups() const { return may_stay_.size(); }
  // A run that gives an input back does so in every step, so that the input has to come again.
  bool may_stay(size_t group) const { return may_stay_[group] != 0; }
  // Says whether the run takes the memory of a value that it reads.
  bool takes(const Run& run, ValueIndex value) const;

 private:
  const Graph& graph_;
  std::vector<int8_t> lane_;    // by value, if it has a home
  std::vector<int32_t> group_;  // by value; -1: its home is the device
  std::vector<char> may_stay_;  // by group
};

// Returns the graph without the bytes of these values, which are where ops read and write them. Its values
// and ops have the positions of the graph's.
Graph without_homes(const Graph& graph);
// Returns the same with workspaces that have room for what each op needs of them.
Graph with_needs(const Graph& graph);
// Returns the machine with the capacities that are left beside what lives there between steps, and what a
// step writes there. Throws InputError if there is none.
Machine beside_homes(const Graph& graph, const Machine& machine);

}  // namespace reprise::internal::place
