// A backend that runs nothing and counts bytes and times. It serves dry runs without a framework,
// and it counts the bytes a third time, beside the simulator and the verifier.
#pragma once

#include <vector>

#include "reprise/run/interpreter.h"

namespace reprise {

class BookkeepingBackend final : public Backend {
 public:
  explicit BookkeepingBackend(const Graph& graph);  // The backend keeps a reference to the graph.

  // Throws InternalError when the run reads a value that is not live.
  void run(const RunAction& step) override;
  void free(ValueIndex value) override;

  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }
  Nanos time() const { return time_; }
  int64_t runs(OpIndex op) const { return runs_.at(op); }

 private:
  const Graph& graph_;
  std::vector<bool> present_;
  std::vector<int64_t> runs_;
  Bytes live_, peak_;
  Nanos time_;
};

}  // namespace reprise
