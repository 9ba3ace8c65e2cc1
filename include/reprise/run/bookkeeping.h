// A backend that runs nothing and counts bytes and times. It serves dry runs without a framework,
// and it counts the bytes a third time, beside the simulator and the verifier.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "reprise/run/interpreter.h"

namespace reprise {

class BookkeepingBackend final : public Backend {
 public:
  // The backend keeps references to the graph and to the machine, if one is given.
  explicit BookkeepingBackend(const Graph& graph, const Machine* machine = nullptr);

  // Throws InternalError when the run reads a value that is not live.
  void run(const RunAction& step) override;
  void free(ValueIndex value) override;
  void copy(const CopyAction& copy) override;
  void wait(ValueIndex value, int32_t memory) override;
  void free_elsewhere(ValueIndex value, int32_t memory) override;

  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }
  Nanos time() const { return time_; }
  int64_t runs(OpIndex op) const { return runs_.at(op); }
  // Returns the most bytes that a memory behind the device held.
  Bytes peak_elsewhere(int32_t memory) const;

 private:
  // A value in a memory behind the device, or a copy of it into the device.
  struct Copied {
    bool here = false;
    Nanos over;  // when its last copy is over
  };

  const Graph& graph_;
  const Machine* machine_;
  std::map<std::pair<ValueIndex, int32_t>, Copied> copied_;
  std::map<int64_t, Nanos> ends_;                      // of copies, by action
  std::map<int32_t, Nanos> channel_free_;              // by the first channel of a queue
  std::map<int32_t, std::pair<Bytes, Bytes>> levels_;  // now, and at most; by memory
  std::vector<bool> present_;
  std::vector<int64_t> runs_;
  Bytes live_, peak_;
  Nanos time_;
};

}  // namespace reprise
