#include "reprise/run/bookkeeping.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/model/errors.h"

namespace reprise {

BookkeepingBackend::BookkeepingBackend(const Graph& graph)
    : graph_(graph),
      present_(graph.values.size(), false),
      runs_(graph.ops.size(), 0),
      live_(graph.fixed) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::kInput) continue;
    present_[v] = true;
    live_ += graph.values[v].bytes;
  }
  peak_ = live_;
}

// Allocates and frees in the order of a real backend. First the values go that the op gives back,
// then the workspace and the outputs come, and at last the workspace and second copies go.
void BookkeepingBackend::run(const RunAction& step) {
  const Op& op = graph_.ops.at(step.op);
  const Variant& variant = op.variants.at(step.variant);
  for (const ValueIndex value : variant.reads) {
    if (present_[value]) continue;
    throw InternalError(fmt::format("{} {} reads {}, which is not there", op.id, variant.name,
                                    graph_.values[value].id));
  }
  for (const ValueIndex value : variant.consumes) free(value);
  for (const auto& [written, read] : variant.reuses) free(read);
  Bytes transient = variant.workspace;
  live_ += variant.workspace;
  for (const ValueIndex value : variant.writes) {
    live_ += graph_.values[value].bytes;
    if (present_[value]) transient += graph_.values[value].bytes;
    present_[value] = true;
  }
  peak_ = std::max(peak_, live_);
  live_ -= transient;
  time_ += variant.time;
  ++runs_[step.op];
}

void BookkeepingBackend::free(ValueIndex value) {
  if (!present_.at(value)) {
    throw InternalError(fmt::format("{} is freed but not there", graph_.values[value].id));
  }
  present_[value] = false;
  live_ -= graph_.values[value].bytes;
}

}  // namespace reprise
