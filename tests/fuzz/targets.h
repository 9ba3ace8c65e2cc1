// What is fuzzed: each function takes any bytes, and throws when a promise is broken. A refusal of the
// input with a place in it is no failure; any other exception is. `make fuzz` searches inputs with
// libFuzzer; regress/fuzz_corpus_test.cc runs those that were kept.
#pragma once

#include <span>
#include <stdexcept>
#include <string_view>

namespace reprise::fuzz {

struct BrokenPromise : std::logic_error {
  using std::logic_error::logic_error;
};

struct Target {
  const char* name;  // of its folder in tests/fuzz/corpus
  void (*run)(std::string_view bytes);
};

// One a loader, the texts of budgets and durations, and what uses what was loaded:
// check    a plan file against a fixed graph: verify, simulate, explain, blocks, interpreter;
// problem  a problem file, then planned with plain training;
// search   bytes that say a small valid problem, asked of every planner;
// pack     bytes that say blocks, packed and verified.
std::span<const Target> targets();

}  // namespace reprise::fuzz
