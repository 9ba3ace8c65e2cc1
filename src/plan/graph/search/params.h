// This file has the constants and switches of the local search over schedules of graphs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace reprise::internal::search {

// Every switch is on by default. Without any of them the search still keeps, drops and keeps from
// the re-run on, value by value.
struct SearchSwitches {
  // The changes that a walker may propose (search/proposals.cc).
  bool rows = true;          // a row of ops is treated like another row that looks alike
  bool others = true;        // a row of ops is treated as another schedule treats it
  bool trades = true;        // another realization, paid for with other values
  bool variants = true;      // an op runs first in another variant
  bool on_demand = true;     // an op runs in another variant where its value is needed
  bool early = true;         // a value is made before it is needed
  bool realizations = true;  // another realization of a choice
  bool put_off = true;       // a forward op waits until something reads what it writes
  // The use that a search makes of its starts and its time.
  bool repair = true;          // starts are repaired at their peaks
  bool tune = true;            // a repair first looks for a cheaper variant of each op
  bool hopeless = true;        // a repair is given up where it takes far longer than the best plan
  bool most_promising = true;  // of a large graph only the most promising starts are repaired
  bool fit = true;             // starts above the budget are annealed at a high price of memory
  bool shrink = true;          // without a plan, the peak alone is annealed
  bool improve = true;         // the time is annealed
  bool later_courses = true;   // far from the bound, the starts are annealed again
  bool raised_price = true;    // near the smallest budget a byte above it costs more
  bool elsewhere = true;       // bytes above the budget count at all positions
  bool stop_near = true;       // the search ends near the bound; off: only when it is reached
  bool reject_by_time = true;  // slow proposals are rejected before their memory is known

  bool operator==(const SearchSwitches&) const = default;
};

// ProposalParams say how a walker draws its proposals (search/proposals.cc). All shares are
// probabilities. The proposals are drawn in the order in which they stand here. The last three
// follow if none before ended the proposal.
struct ProposalParams {
  double rows = 0.05;         // rows of ops, like other rows or as in another schedule
  double trades = 0.05;       // trades, in graphs with choices
  double variants = 0.15;     // variants of first runs
  double on_demand = 0.1;     // variants of runs on demand
  double early = 0.1;         // values that are made early
  double realizations = 0.1;  // realizations of choices
  double put_off = 0.1;       // ops that are put off
  double drops = 0.6;         // above the budget: drops at the peak
  double keeps = 0.4;         // if it drops none: values that are kept again
  double swaps = 0.6;         // if it does neither: one value is kept again, and one dropped
  int drops_to_fit = 8;       // drops after a change of many intervals, until the schedule fits
  int draws_at_peak = 30;     // draws until an interval across the peak is found
  int draws_of_ops = 8;       // draws until an op is found whose result is held at the peak
  size_t most_traded = 8;     // a trade keeps fewer values again than this
  int to_compare = 4;         // intervals that are drawn in a large change, to take the best

  bool operator==(const ProposalParams&) const = default;
};

struct SearchParams {
  SearchSwitches use;

  // Sizes of graphs, in intervals that can be dropped.
  size_t small_graph = 100;            // a smaller graph has one walker
  size_t large_graph = 5'000;          // a larger one has two walkers, and less patience
  size_t intervals_for_threads = 200;  // a smaller graph is done before a thread has started
  size_t walkers = 4;                  // of a graph that is neither small nor large
  size_t walkers_of_large = 2;

  // Prices of a byte above the budget. The unit is the rate: the time of making all values again,
  // for each byte of the peak of plain training.
  double price_of_excess = 4;  // where nothing else is said
  double price_to_fit = 32;    // in fit()
  double largest_price = 256;  // the most that raise_price() sets
  double above_gain = 1.1;     // it makes this multiple of what a schedule above the budget gains
  double elsewhere = 0.1;      // share of the price at positions other than the peak
  std::array<double, 3> weights = {1, 0.5, 2};  // of the price, in turn over rounds and walkers

  // Heat of annealing. The unit is the mean time of an op, but in shrink().
  std::array<double, 4> heat = {0.3, 1, 0.6, 2};  // in turn over rounds and walkers
  double heat_of_first_round = 2;
  double heat_to_fit = 1;      // in fit()
  double steps_for_heat = 20;  // steps for each interval; with fewer, the heat is lower
  double cooling = 1e-3;       // the last temperature of a round, as a share of the first

  // Lengths, in steps of annealing. A step is one proposal.
  int64_t steps_per_interval = 20;  // in a round
  int64_t least_steps = 20'000;     // the least of a round,
  int64_t most_steps = 40'000;      // and the most
  int64_t steps_of_small = 4;       // in its rounds, times the square of its intervals
  int64_t least_steps_of_small = 500;
  int64_t steps_to_fit = 4'000;           // in fit(), for each start
  int64_t most_steps_to_shrink = 20'000;  // of a round of shrink()
  size_t short_rounds = 3;                // first rounds: an eighth of the steps, a quarter, a half

  // Rounds and courses.
  size_t pool = 8;       // schedules that are annealed first
  size_t repairs = 4;    // starts of a large graph that are repaired
  size_t trials = 6;     // changes of a kind that a repair tries before it makes one
  int64_t hopeless = 2;  // a repair ends beyond best * (1 + 1/hopeless)
  int64_t patience = 3;  // rounds without a gain that end a course
  int64_t patience_of_large = 1;
  int64_t intervals_per_patience = 4;   // a small graph has a round of patience for so many,
  int64_t least_patience_of_small = 8;  // but at least so many rounds
  int64_t most_patience_of_small = 40;  // and at most so many
  int64_t patience_without_hope = 3;    // in shrink(), where the bound says that no plan fits
  int64_t patience_to_shrink = 2;       // in shrink() otherwise, as a multiple
  int idle_courses = 3;                 // courses without a gain that end the search

  // Ends near the bound, all as bound/n. The search does not end near the bound of a small graph.
  int64_t near = 10'000;          // the search ends; a smaller gain counts as none
  int64_t near_of_large = 2'000;  // the same end, of a large graph
  int64_t close = 500;            // within it, two rounds without a gain end a course
  int64_t close_enough = 200;     // within it, no other course follows

  // shrink(): the weight of time, and first temperatures as shares of the peak that it starts from.
  double time_in_shrink = 0.01;        // weight of time, in bytes; unit: one byte at the rate
  double heat_of_others = 0.05;        // from starts, and in the first round
  double heat_of_first_walker = 0.02;  // from the smallest schedule so far
  double heat_of_other_walkers = 0.005;

  ProposalParams proposals;

  double price_of_others() const { return use.elsewhere ? elsewhere : 0; }

  bool operator==(const SearchParams&) const = default;
};

}  // namespace reprise::internal::search
