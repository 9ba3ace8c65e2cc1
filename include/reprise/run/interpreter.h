// Walks a plan in one loop. A Backend decides what an action does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// A RunAction is a run of an op as the interpreter hands it to a backend.
struct RunAction {
  OpIndex op = 0;
  int32_t variant = 0;
  bool first = true;            // This is the op's first run in the plan.
  bool save_random = false;     // The random op will run again: keep the random state.
  bool restore_random = false;  // The random op runs again: use the random state that was kept.

  bool operator==(const RunAction&) const = default;
};

// A Backend does what the actions of a plan say.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void run(const RunAction& step) = 0;
  virtual void free(ValueIndex value) = 0;
};

// A Program is a plan that is ready to be walked: its ids are looked up, and first runs and random
// states are worked out.
class Program {
 public:
  struct Entry {
    ActionKind kind = ActionKind::kRun;
    RunAction run;         // for kRun
    ValueIndex value = 0;  // for kFree
  };

  // Throws InputError for unknown ids. The program keeps no reference to the graph.
  Program(const Graph& graph, const std::vector<Action>& actions);

  const std::vector<Entry>& entries() const { return entries_; }
  // Returns the position of the loss run, or the number of entries if there is none. The entries
  // before it are the forward half of the step, and those after it are the backward half.
  size_t loss() const { return loss_; }

 private:
  std::vector<Entry> entries_;
  size_t loss_ = 0;
};

// Walks the entries [begin, end). Exceptions of the backend pass through.
void execute(const Program& program, size_t begin, size_t end, Backend& backend);
// Walks all entries.
void execute(const Program& program, Backend& backend);

}  // namespace reprise
