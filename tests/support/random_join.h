// Makes random small joins for property and oracle tests.
#pragma once

#include <random>
#include <string>

#include "reprise/model/join.h"
#include "support/random_chain.h"

namespace reprise::testing {

struct RandomJoinOptions {
  int min_branches = 2;
  int max_branches = 2;
  RandomChainOptions chain = {};  // of each branch
  int max_shared = 0;             // weights that branches share
};

// Makes a join, which is always valid. The same seed and options give the same join.
Join random_join(std::mt19937_64& random, const RandomJoinOptions& options = {});

// Writes a join as JSON, for failure messages.
std::string describe(const Join& join);

}  // namespace reprise::testing
