#include "reprise/run/interpreter.h"

#include <fmt/format.h>

#include "reprise/model/errors.h"

namespace reprise {

namespace {

[[noreturn]] void refuse() {
  throw InputError(
      "this plan uses another memory, and what runs it has the first device alone; plan "
      "without a machine");
}

}  // namespace

void Backend::copy(const CopyAction& /*copy*/) { refuse(); }
void Backend::wait(ValueIndex /*value*/, int32_t /*memory*/) { refuse(); }
void Backend::send(const CopyAction& /*message*/) { refuse(); }
void Backend::receive(const CopyAction& /*message*/) { refuse(); }

Program::Program(const Graph& graph, const std::vector<Action>& actions, const Machine& machine) {
  const std::vector<BoundAction> bound = bind(graph, actions, machine);
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
                     .restore_random = op.random && !first,
                     .memory = action.at};
        break;
      }
      case ActionKind::kFree:
      case ActionKind::kWait:
        entry.value = action.target;
        entry.memory = action.at;
        break;
      case ActionKind::kCopy:
      case ActionKind::kSend:
      case ActionKind::kReceive:
        entry.copy = {.action = static_cast<int64_t>(entries_.size()),
                      .value = action.target,
                      .channel = action.channel,
                      .from = action.at,
                      .to = action.to,
                      .after = action.after};
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
        if (!backend.has(entries[e].run.memory)) refuse();
        backend.run(entries[e].run);
        break;
      case ActionKind::kFree:
        backend.free(entries[e].value, entries[e].memory);
        break;
      case ActionKind::kCopy:
        backend.copy(entries[e].copy);
        break;
      case ActionKind::kWait:
        backend.wait(entries[e].value, entries[e].memory);
        break;
      case ActionKind::kSend:
        backend.send(entries[e].copy);
        break;
      case ActionKind::kReceive:
        backend.receive(entries[e].copy);
        break;
    }
  }
}

void execute(const Program& program, Backend& backend) {
  execute(program, 0, program.entries().size(), backend);
}

}  // namespace reprise
