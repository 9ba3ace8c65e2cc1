// This is a backend that runs nothing and counts bytes and times. It serves dry runs without a
// framework, and it counts the bytes a third time, beside the simulator and the verifier.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "reprise/run/interpreter.h"

namespace reprise {

class BookkeepingBackend final : public Backend {
 public:
  // The backend keeps references to the graph and to the machine, if one is given. The graph is as the plan
  // places its values (as_placed()).
  explicit BookkeepingBackend(const Graph& graph, const Machine* machine = nullptr);

  // Throws InternalError when the run reads a value that is not live.
  bool has(int32_t memory) const override { return memory == 0 || machine_ != nullptr; }
  void run(const RunAction& step) override;
  void free(ValueIndex value, int32_t memory) override { drop(value, memory); }
  void copy(const CopyAction& copy) override;
  void wait(ValueIndex value, int32_t memory) override;
  void send(const CopyAction& message) override;
  void receive(const CopyAction& message) override;

  Bytes live(int32_t memory = 0) const { return levels_.at(memory); }
  Bytes peak(int32_t memory = 0) const { return peaks_.at(memory); }
  Nanos time() const;  // when the last device is done
  int64_t runs(OpIndex op) const { return runs_.at(op); }

 private:
  // A Held is a value in a memory.
  struct Held {
    bool here = false;
    int32_t from = 0;  // where the last copy to here came from
    Nanos came;        // when that copy is over
    Nanos over;        // when all its copies are over, to here and from here
    Nanos went;        // when all messages from here are over
  };

  // A Handed is a message that its sender has handed over.
  struct Handed {
    CopyAction message;
    Nanos at;
  };

  void carry(int32_t channel);
  void drop(ValueIndex value, int32_t memory);
  void hold(ValueIndex value, int32_t memory);

  const Graph& graph_;
  const Machine* machine_;
  std::map<std::pair<ValueIndex, int32_t>, Held> held_;
  std::map<int64_t, Nanos> ends_;                 // of copies, by action
  std::map<int32_t, Nanos> channel_free_;         // by the first channel of a queue
  std::map<int32_t, std::deque<Handed>> handed_;  // by queue
  std::map<std::pair<ValueIndex, int32_t>, Nanos>
      rooms_;  // where a message may come, and since when
  std::vector<int64_t> runs_;
  std::vector<Bytes> levels_, peaks_;  // by memory
  std::vector<Nanos> clocks_;          // by memory
};

}  // namespace reprise
