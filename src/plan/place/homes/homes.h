// Makes plans of graphs whose values live in other memories between steps (Value::home), such
// as the state of an optimizer on a disk.
//
// Planners see the step without these values. What an op needs of them while it runs counts in its
// workspace, so an answer has room for the values of one op at a time:
//
//     runs           a        b        c        d
//     value v                                   read       for_planners(): workspace of d
//     bytes left     none     none     v        v
//     channel in                       [ copy  ]           place(): as early as the bytes allow
//     channel out                               [ copy ]   of what d writes, and then it leaves
//
// place() adds the copies to the answer: an exact plan for any durations, as every plan. Where the
// copies hold up the runs it has a few rules to choose from, and takes the fastest plan. It moves no run
// of the answer, and its choice has no guarantee. The bound of the answer holds: every plan has the
// values of an op on the device before the op runs, and the planner's question asks for no more.
#pragma once

#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::internal::homes {

// Returns the graph that planners see. Its values and ops have the positions of the graph's.
Graph for_planners(const Graph& graph);

// Returns the machine that planners see: capacities without what lives there. Throws InputError if
// values have no room or no channel.
Machine for_planners(const Graph& graph, const Machine& machine);

// Returns the actions, a valid plan of for_planners(graph), with the copies of all values that live
// elsewhere. It keeps to the budget if they do. The cost is O(a dozen times the actions and the slots in
// which values wait).
std::vector<Action> place(const Graph& graph, const std::vector<Action>& actions, Bytes budget,
                          const Machine& machine);

}  // namespace reprise::internal::homes
