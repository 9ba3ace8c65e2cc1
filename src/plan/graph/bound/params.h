// This file has the constants and switches of the bound of graphs.
#pragma once

#include <cstddef>

namespace reprise::internal::bound {

// Every switch is on by default. A bound stays a bound when a switch is off: it can only be lower.
struct BoundSwitches {
  bool instants = true;  // cuts at single instants; off: first runs and what each op holds itself
  bool few_instants = true;  // of a large graph only some instants are looked at; off: all of them
  bool cases = true;         // branch and bound over what is live at an instant (Lemma 12)
  bool stretches = true;     // stretches of time that follow each other add up (Lemma 13)
  bool pairs = true;         // pairs of instants that know of each other (Lemma 14)

  bool operator==(const BoundSwitches&) const = default;
};

// The search for good prices of a pair of instants (bound/pairs.h). "Steps" are pairs of minimum
// cuts.
struct PairParams {
  int steps = 120;            // at most, for the first two variants
  int more_steps = 60;        // at most, for other variants, from prices that were good
  int trial = 30;             // steps after which a pair must promise to raise the bound
  double promising = 0.9;     // share of the bound so far that a pair must have reached by then
  int patience = 12;          // steps without a gain, before the target comes nearer
  double first_target = 1.1;  // first target, as a multiple of the better instant's bound
  double ahead = 0.03;        // next target beyond what is reached, as a share of it
  double reached = 1e-3;      // a target that is nearer, as such a share, is not worth a step
  double momentum = 0.6;      // weight of the direction before, in the next direction

  bool operator==(const PairParams&) const = default;
};

struct BoundParams {
  BoundSwitches use;
  size_t most_instants = 64;   // instants that are looked at before the neighbours of the best one
  size_t promising = 24;       // instants that cases and pairs are made of
  size_t most_cases = 2'000;   // cases of a small graph
  size_t most_work = 200'000;  // cases times ops; a larger graph has fewer cases
  size_t large_graph = 600;    // ops; a larger graph has no cases, as so few would raise nothing
  int most_stretches = 7;      // on each side of the highest instant, over all plans
  int most_stretches_of_case = 3;  // the same, in a case
  double share_for_pairs = 0.3;    // share of the time, where there are cases, too
  size_t first_instants = 3;       // the highest instants, each of which is paired with all others
  PairParams pair;

  bool operator==(const BoundParams&) const = default;
};

}  // namespace reprise::internal::bound
