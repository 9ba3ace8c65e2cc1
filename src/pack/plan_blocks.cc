#include "reprise/pack/plan_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reprise/check/simulate.h"

namespace reprise {
namespace {

constexpr int64_t kNone = -1;

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph), block_of_(graph.values.size(), kNone) {}

  std::vector<Block> run(const std::vector<BoundAction>& actions) {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ValueKind::kInput) begin(static_cast<ValueIndex>(v));
    }
    for (const BoundAction& action : actions) {
      if (action.kind == ActionKind::kFree) {
        end(action.target);
      } else {
        execute(graph_.ops[static_cast<size_t>(action.target)]
                    .variants[static_cast<size_t>(action.variant)]);
      }
      clock_ += 2;
    }
    for (Block& block : blocks_) {
      if (block.end < 0) block.end = clock_;
    }
    return blocks_;
  }

 private:
  int64_t& at(ValueIndex value) { return block_of_[static_cast<size_t>(value)]; }
  void begin(ValueIndex value) {
    at(value) = static_cast<int64_t>(blocks_.size());
    blocks_.push_back({graph_.values[static_cast<size_t>(value)].bytes, clock_, -1});
  }
  void end(ValueIndex value) {
    blocks_[static_cast<size_t>(at(value))].end = clock_;
    at(value) = kNone;
  }

  void execute(const Variant& variant) {
    for (const ValueIndex value : variant.consumes) end(value);
    for (const auto& [written, read] : variant.reuses) {
      at(written) = at(read);
      at(read) = kNone;
    }
    for (const ValueIndex value : variant.writes) {
      const bool taken_over = std::any_of(variant.reuses.begin(), variant.reuses.end(),
                                          [&](const auto& pair) { return pair.first == value; });
      if (taken_over) continue;
      if (at(value) == kNone) {
        begin(value);
      } else {  // a duplicate
        while_it_runs(graph_.values[static_cast<size_t>(value)].bytes);
      }
    }
    while_it_runs(variant.workspace);
  }

  void while_it_runs(Bytes bytes) { blocks_.push_back({bytes, clock_, clock_ + 1}); }

  const Graph& graph_;
  std::vector<int64_t> block_of_;  // of the values that are live
  std::vector<Block> blocks_;
  int64_t clock_ = 0;
};

}  // namespace

std::vector<Block> plan_blocks(const Graph& graph, const std::vector<Action>& actions) {
  simulate(graph, actions);  // for its errors
  return Writer(graph).run(bind(graph, actions));
}

}  // namespace reprise
