#include "reprise/pack/plan_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "reprise/check/simulate.h"

namespace reprise {
namespace {

constexpr int64_t kNone = -1;

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph), block_of_(graph.values.size(), kNone) {}

  void run(const std::vector<BoundAction>& actions) {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (starts_on_device(graph_.values[v])) begin(static_cast<ValueIndex>(v));
    }
    for (const BoundAction& action : actions) {
      switch (action.kind) {
        case ActionKind::kRun:
          if (action.at != 0) break;
          op_ = action.target;
          execute(graph_.ops[op_].variants[action.variant]);
          break;
        case ActionKind::kFree:
          if (action.at == 0) end(action.target);
          break;
        case ActionKind::kCopy:
        case ActionKind::kReceive:
          if (action.to == 0) begin(action.target);
          break;
        case ActionKind::kWait:
        case ActionKind::kSend:
          break;
      }
      clock_ += 2;
    }
    for (Block& block : blocks_) {
      if (block.end < 0) block.end = clock_;
    }
  }

  std::vector<Block> take_blocks() { return std::move(blocks_); }
  std::vector<BlockOwner> take_owners() { return std::move(owners_); }

 private:
  int64_t& at(ValueIndex value) { return block_of_[value]; }
  void begin(ValueIndex value) {
    at(value) = static_cast<int64_t>(blocks_.size());
    blocks_.push_back({graph_.values[value].bytes, clock_, -1});
    owners_.push_back({value, op_, false});
  }
  void end(ValueIndex value) {
    blocks_[at(value)].end = clock_;
    at(value) = kNone;
  }

  void execute(const Variant& variant) {
    for (const ValueIndex value : variant.consumes) end(value);
    for (const auto& [written, read] : variant.reuses) {
      if (at(written) == kNone) {
        at(written) = at(read);
      } else {  // a duplicate, in the memory of a value that was read
        blocks_[at(read)].end = clock_ + 1;
      }
      at(read) = kNone;
    }
    for (const ValueIndex value : variant.writes) {
      const bool taken_over = std::any_of(variant.reuses.begin(), variant.reuses.end(),
                                          [&](const auto& pair) { return pair.first == value; });
      if (taken_over) continue;
      if (at(value) == kNone) {
        begin(value);
      } else {  // a duplicate
        while_it_runs(graph_.values[value].bytes, value);
      }
    }
    while_it_runs(variant.workspace, -1);
  }

  void while_it_runs(Bytes bytes, ValueIndex value) {
    blocks_.push_back({bytes, clock_, clock_ + 1});
    owners_.push_back({value, op_, true});
  }

  const Graph& graph_;
  std::vector<int64_t> block_of_;  // by value, while it is live
  std::vector<Block> blocks_;
  std::vector<BlockOwner> owners_;
  OpIndex op_ = -1;  // the op that runs
  int64_t clock_ = 0;
};

Writer walk(const Graph& graph, const std::vector<Action>& actions, const Machine& machine) {
  if (const auto placed = as_placed(graph, actions)) return walk(*placed, actions, machine);
  simulate(graph, actions, machine);  // called for its errors
  Writer writer(graph);
  writer.run(bind(graph, actions, machine));
  return writer;
}

}  // namespace

std::vector<Block> plan_blocks(const Graph& graph, const std::vector<Action>& actions,
                               const Machine& machine) {
  return walk(graph, actions, machine).take_blocks();
}

std::vector<BlockOwner> block_owners(const Graph& graph, const std::vector<Action>& actions,
                                     const Machine& machine) {
  return walk(graph, actions, machine).take_owners();
}

}  // namespace reprise
