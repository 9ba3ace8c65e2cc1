// Walks a plan in one loop. A Backend decides what an action does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise {

// A RunAction is a run of an op as the interpreter hands it to a backend.
struct RunAction {
  OpIndex op = 0;
  int32_t variant = 0;
  bool first = true;            // This is the op's first run in the plan.
  bool save_random = false;     // The random op will run again: keep the random state.
  bool restore_random = false;  // The random op runs again: use the random state that was kept.
  int32_t memory = 0;           // the memory of the machine where it runs

  bool operator==(const RunAction&) const = default;
};

// A CopyAction is a copy, a send or a receive as the interpreter hands it to a backend.
struct CopyAction {
  int64_t action = 0;  // its position in the plan
  ValueIndex value = 0;
  int32_t channel = 0;  // in the machine
  int32_t from = 0, to = 0;
  std::vector<int64_t> after = {};  // copies, by action, that its channel also waits for

  bool operator==(const CopyAction&) const = default;
};

// A Backend does what the actions of a plan say, each in a memory of the machine. A backend that
// has the first memory alone overrides run() and free(); it never sees another one, because the
// others then throw InputError, and so does execute() for a run in another memory.
class Backend {
 public:
  virtual ~Backend() = default;
  // Returns whether it runs and holds values in this memory.
  virtual bool has(int32_t memory) const { return memory == 0; }
  virtual void run(const RunAction& step) = 0;
  virtual void free(ValueIndex value, int32_t memory) = 0;
  virtual void copy(const CopyAction& copy);            // begins, and does not wait
  virtual void wait(ValueIndex value, int32_t memory);  // for the copy that makes it there
  virtual void send(const CopyAction& message);
  virtual void receive(const CopyAction& message);
};

// A Program is a plan that is ready to be walked: its ids are looked up, and first runs and random
// states are worked out.
class Program {
 public:
  struct Entry {
    ActionKind kind = ActionKind::kRun;
    RunAction run;         // for kRun
    ValueIndex value = 0;  // for kFree and kWait
    int32_t memory = 0;    // for kFree and kWait
    CopyAction copy = {};  // for kCopy, kSend and kReceive
  };

  // Throws InputError for unknown names. The program keeps no reference to the graph or the machine.
  Program(const Graph& graph, const std::vector<Action>& actions, const Machine& machine = {});

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
