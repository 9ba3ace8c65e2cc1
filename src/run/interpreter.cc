#include "reprise/run/interpreter.h"

#include <fmt/format.h>

#include "reprise/model/errors.h"

namespace reprise {

Program::Program(const Graph& graph, const std::vector<Action>& actions) {
  const std::vector<BoundAction> bound = bind(graph, actions);
  std::vector<int64_t> total(graph.ops.size(), 0);
  for (const BoundAction& action : bound) {
    if (action.kind == ActionKind::kRun) ++total[action.target];
  }
  std::vector<int64_t> done(graph.ops.size(), 0);
  loss_ = bound.size();
  entries_.reserve(bound.size());
  for (const BoundAction& action : bound) {
    Entry entry;
    entry.kind = action.kind;
    switch (action.kind) {
      case ActionKind::kRun: {
        const Op& op = graph.ops[action.target];
        if (op.phase == Phase::kLoss && loss_ == bound.size()) loss_ = entries_.size();
        const bool first = done[action.target]++ == 0;
        entry.run = {.op = action.target,
                     .variant = action.variant,
                     .first = first,
                     .save_random = op.random && first && total[action.target] > 1,
                     .restore_random = op.random && !first};
        break;
      }
      case ActionKind::kFree:
        entry.value = action.target;
        break;
    }
    entries_.push_back(entry);
  }
}

void execute(const Program& program, size_t begin, size_t end, Backend& backend) {
  const std::vector<Program::Entry>& entries = program.entries();
  if (begin > end || end > entries.size()) {
    throw InternalError(
        fmt::format("no entries {} to {} in a program of {}", begin, end, entries.size()));
  }
  for (size_t e = begin; e < end; ++e) {
    switch (entries[e].kind) {
      case ActionKind::kRun:
        backend.run(entries[e].run);
        break;
      case ActionKind::kFree:
        backend.free(entries[e].value);
        break;
    }
  }
}

void execute(const Program& program, Backend& backend) {
  execute(program, 0, program.entries().size(), backend);
}

}  // namespace reprise
