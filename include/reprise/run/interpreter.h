// The one loop that walks a plan. What an action does is a Backend's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// A run of an operation as the interpreter hands it to a backend.
struct RunAction {
  OpIndex op = 0;
  int32_t variant = 0;
  bool first = true;        // the op's first run in the plan
  bool save_random = false; // a random op's first run, and it will run again: keep the random state
  bool restore_random = false;  // a re-run of a random op: use the state that was kept

  bool operator==(const RunAction&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual void run(const RunAction& step) = 0;
  virtual void free(ValueIndex value) = 0;
};

// A plan ready to be walked: ids looked up, first runs and random states worked out once.
class Program {
 public:
  struct Entry {
    ActionKind kind = ActionKind::kRun;
    RunAction run;           // kRun
    ValueIndex value = 0;  // kFree
  };

  // Throws InputError for unknown ids. The graph is only used here.
  Program(const Graph& graph, const std::vector<Action>& actions);

  const std::vector<Entry>& entries() const { return entries_; }
  // Position of the loss run; the number of steps if there is none. Steps before it are the forward
  // half, steps after it the backward half.
  size_t loss() const { return loss_; }

 private:
  std::vector<Entry> entries_;
  size_t loss_ = 0;
};

// Walks steps [begin, end). Exceptions of the backend pass through.
void execute(const Program& program, size_t begin, size_t end, Backend& backend);
void execute(const Program& program, Backend& backend);

}  // namespace reprise
