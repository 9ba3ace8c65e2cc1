// GraphFacts holds facts that are true in every valid plan of a graph: which ops can make a value,
// which ops run for certain, and which may run only once.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::internal::common {

// Returns whether the op runs at most once; all such ops run in graph order.
inline bool runs_once(const Op& op) { return op.once || op.phase != Phase::kForward; }
// These functions return whether the variant may serve as the first run of its op, or as a re-run.
inline bool can_be_first(const Variant& variant) { return variant.role != Role::kReplay; }
inline bool can_be_rerun(const Variant& variant) { return variant.role != Role::kFirst; }

// Returns whether the run gives the memory of this value away: the value is consumed, or its memory
// is reused for an output.
bool takes(const Variant& variant, ValueIndex value);
bool contains(const std::vector<ValueIndex>& list, ValueIndex value);

struct GraphFacts {
  explicit GraphFacts(const Graph& graph);

  const Graph& graph;
  std::vector<char> certain;                  // by op: runs in every plan
  std::vector<std::vector<OpIndex>> makers;   // by value: ops with a variant that writes it
  std::vector<std::vector<OpIndex>> readers;  // by value: ops with a variant that reads it
  std::vector<char> one_maker;                // by value: no plan runs two of its makers
  std::vector<int32_t> choice_of_makers;      // by value: all makers are in it; -1: there is none
  std::vector<ValueIndex> group;  // by value: equal if a run makes both, in less than for each
  std::vector<std::vector<ValueIndex>> first_reads;  // by op: certain reads of its first run
  std::vector<Nanos> first_time;                     // by op: the least time of its first run
  std::vector<std::vector<ValueIndex>> made_from;    // by value: read by each maker's first run
  // While an op from `after` on has not run yet, the values of a Need must be read later, by the
  // time that `last` runs. They are the reads of an ordered op, or the values that the ordered ops
  // of all realizations of a choice read.
  struct Need {
    OpIndex after, last;
    std::vector<ValueIndex> values;
  };
  std::vector<Need> needs;
  // An Either belongs to a choice. While the ordered ops of the choice, from `after` to `last`,
  // have not run yet, one of two holds: `value` is needed, or one of `places` is needed. Each place
  // belongs to only one realization, which makes it from `value`.
  struct Either {
    OpIndex after, last;
    ValueIndex value;
    std::vector<ValueIndex> places;
  };
  std::vector<Either> eithers;
  // An Excess belongs to a choice, too. While its ordered ops have not run yet, one of two holds
  // for each step: all of its values are needed, or the first runs take `extra` more time than
  // those of the fastest realization. Steps ascend, and `extra` counts once for all of them. The
  // values of `always` are needed with any realization. A realization that does not read such a
  // value makes up for it: its excess pays for making it again, at the price of `most_charge`.
  struct Excess {
    struct Step {
      Nanos extra;
      std::vector<ValueIndex> values;
    };
    OpIndex after, last;
    std::vector<Step> steps;
    std::vector<ValueIndex> always;
  };
  std::vector<Excess> excesses;
  // By value: a re-run that makes it counts for no more than this; kNoLimit: for all of its time.
  std::vector<Nanos> most_charge;
  static constexpr Nanos kNoLimit{std::numeric_limits<int64_t>::max()};
  bool is_limited(ValueIndex value) const { return most_charge[value] != kNoLimit; }
  Nanos least_time;  // all first runs; the fastest realization of each choice
};

}  // namespace reprise::internal::common
