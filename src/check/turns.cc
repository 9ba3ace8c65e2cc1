#include "check/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reprise {
namespace {

bool runs_once(const Op& op) { return op.once || op.phase != Phase::kForward; }

}  // namespace

Turns::Turns(const Graph& graph, ReportViolation report)
    : graph_(graph),
      report_(std::move(report)),
      runs_(graph.ops.size(), 0),
      choice_of_(graph.ops.size(), -1),
      realization_of_(graph.ops.size(), -1),
      chosen_(graph.choices.size(), -1) {
  for (size_t c = 0; c < graph_.choices.size(); ++c) {
    const auto& realizations = graph_.choices[c].realizations;
    for (size_t r = 0; r < realizations.size(); ++r) {
      for (const OpIndex op : realizations[r].ops) {
        choice_of_[op] = static_cast<int32_t>(c);
        realization_of_[op] = static_cast<int32_t>(r);
      }
    }
  }
}

void Turns::run(OpIndex index, const Variant& variant) {
  const Op& op = graph_.ops[index];
  const bool first = runs_[index]++ == 0;
  if (variant.role == (first ? Role::kReplay : Role::kFirst)) {
    report_(ViolationKind::kRole, op.id,
            fmt::format("variant {} is for {}, but this is {}", variant.name,
                        first ? "re-runs" : "first runs", first ? "the first run" : "a re-run"));
  }
  if (op.random && first) {
    if (index < last_random_) {
      report_(ViolationKind::kOrder, op.id,
              fmt::format("draws random numbers before {} in the graph, but after it here",
                          graph_.ops[last_random_].id));
    }
    last_random_ = std::max(last_random_, index);
  }
  if (runs_once(op)) {
    if (!first) {
      report_(ViolationKind::kRepeatedRun, op.id, fmt::format("{} runs once only", op.id));
    } else if (index < last_once_) {
      report_(ViolationKind::kOrder, op.id,
              fmt::format("comes before {} in the graph, but runs after it",
                          graph_.ops[last_once_].id));
    }
    last_once_ = std::max(last_once_, index);
  }
  const int32_t choice = choice_of_[index];
  if (choice < 0) return;
  if (chosen_[choice] < 0) chosen_[choice] = realization_of_[index];
  if (chosen_[choice] != realization_of_[index]) {
    report_(ViolationKind::kChoice, op.id,
            fmt::format("is of realization {} of choice {}, but realization {} has begun",
                        realization_of_[index], graph_.choices[choice].id, chosen_[choice]));
  }
}

void Turns::end() const {
  for (size_t o = 0; o < graph_.ops.size(); ++o) {
    const int32_t choice = choice_of_[o];
    if (choice >= 0 && chosen_[choice] != realization_of_[o]) continue;
    if (runs_[o] > 0) continue;
    report_(ViolationKind::kMissingRun, graph_.ops[o].id,
            fmt::format("{} never runs", graph_.ops[o].id));
  }
  for (size_t c = 0; c < graph_.choices.size(); ++c) {
    if (chosen_[c] >= 0) continue;
    report_(ViolationKind::kChoice, graph_.choices[c].id,
            fmt::format("no realization of choice {} runs", graph_.choices[c].id));
  }
}

}  // namespace reprise
