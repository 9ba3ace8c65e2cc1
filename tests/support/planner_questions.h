// Helps tests that ask planners about many random chains, or on machines.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "reprise/plan/plan.h"
#include "support/random_chain.h"
#include "support/scale.h"

namespace reprise::testing {

inline PlanOptions with(const std::string& planner, Bytes budget) {
  PlanOptions options;
  options.planner = planner;
  options.budget = budget;
  return options;
}

// Asks for a plan on a machine, of a search that no clock ends.
inline PlanOptions on(const Machine& machine, Bytes budget, const std::string& planner = "") {
  PlanOptions options = with(planner, budget);
  options.machine = machine;
  options.threads = 1;
  options.time_limit = kNoTimeLimit;
  return options;
}

inline bool found(const PlanResult& result) {
  return result.termination == Termination::kOptimal ||
         result.termination == Termination::kFeasible;
}

// Makes the random chains of one test, and calls check(chain, random) for each.
template <class Check>
void for_chains(uint64_t seed, int count, const RandomChainOptions& options, const Check& check) {
  std::mt19937_64 random(seed);
  for (int number = 0; number < test_scale(count); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", chain " + std::to_string(number) + ": " +
                 describe(chain));
    check(chain, random);
    if (::testing::Test::HasFailure()) return;
  }
}

inline RandomChainOptions any_chain(int stages) {
  RandomChainOptions options;
  options.max_stages = stages;
  return options;
}

inline RandomChainOptions one_option(int stages) {
  RandomChainOptions options = any_chain(stages);
  options.max_options = 1;
  return options;
}

}  // namespace reprise::testing
