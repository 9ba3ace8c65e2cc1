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
    Entry step;
    step.kind = action.kind;
    if (action.kind == ActionKind::kFree) {
      step.value = action.target;
    } else {
      const Op& op = graph.ops[action.target];
      if (op.phase == Phase::kLoss && loss_ == bound.size()) loss_ = entries_.size();
      const bool first = done[action.target]++ == 0;
      step.run = {.op = action.target,
                  .variant = action.variant,
                  .first = first,
                  .save_random = op.random && first && total[action.target] > 1,
                  .restore_random = op.random && !first};
    }
    entries_.push_back(step);
  }
}

void execute(const Program& program, size_t begin, size_t end, Backend& backend) {
  const std::vector<Program::Entry>& steps = program.entries();
  if (begin > end || end > steps.size()) {
    throw InternalError(
        fmt::format("no steps {} to {} in a program of {}", begin, end, steps.size()));
  }
  for (size_t s = begin; s < end; ++s) {
    if (steps[s].kind == ActionKind::kRun) {
      backend.run(steps[s].run);
    } else {
      backend.free(steps[s].value);
    }
  }
}

void execute(const Program& program, Backend& backend) {
  execute(program, 0, program.entries().size(), backend);
}

}  // namespace reprise
