// What holds in every valid plan of a graph: who can make a value, what runs for certain, what may
// run once only.
#pragma once

#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::internal::common {

// The op runs at most once; all such ops run in graph order.
inline bool runs_once(const Op& op) { return op.once || op.phase != Phase::kForward; }
// May serve as the first run of its op, or as a later one.
inline bool can_be_first(const Variant& variant) { return variant.role != Role::kReplay; }
inline bool can_be_rerun(const Variant& variant) { return variant.role != Role::kFirst; }

// The run gives the memory of this value away: consumed, or reused for an output.
bool takes(const Variant& variant, ValueIndex value);
bool contains(const std::vector<ValueIndex>& list, ValueIndex value);

struct GraphFacts {
  explicit GraphFacts(const Graph& graph);

  const Graph& graph;
  std::vector<char> certain;                  // by op: runs in every plan
  std::vector<std::vector<OpIndex>> makers;   // by value: ops with a variant that writes it
  std::vector<std::vector<OpIndex>> readers;  // by value: ops with a variant that reads it
  std::vector<char> one_maker;                // by value: no plan runs two of its makers
  std::vector<OpIndex> group;                 // by op: equal for ops that can make the same value
  std::vector<std::vector<ValueIndex>> first_reads;  // by op: what its first run reads for certain
  std::vector<Nanos> first_time;                     // by op: the least time of its first run
  std::vector<std::vector<ValueIndex>> made_from;    // by value: what the first run of every maker reads
  // Sets of values that are read whenever the ops from `after` on have not run yet, by the time that `last` runs:
  // the reads of an ordered op, or what the ordered ops of all realizations of a choice read.
  struct Need {
    OpIndex after, last;
    std::vector<ValueIndex> values;
  };
  std::vector<Need> needs;
  // Of a choice: while its ordered ops, from `after` to `last`, have not run yet, `value` is needed, or the first
  // runs take `extra` more and one of `places` is needed. Each of these only one realization has, and makes it
  // from `value`.
  struct Either {
    OpIndex after, last;
    ValueIndex value;
    std::vector<ValueIndex> places;
    Nanos extra;
  };
  std::vector<Either> eithers;
  Nanos least_time;  // of all first runs; of a choice those of its fastest realization
};

}  // namespace reprise::internal::common
