// Says what an action touches in its memory.
#pragma once

#include <cstdint>
#include <span>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::internal::model {

struct Touched {
  int32_t memory = 0;
  std::span<const ValueIndex> reads = {}, writes = {};
  const Variant* run = nullptr;  // of a run
};

// Both must outlive the answer. A copy into a memory writes there; what it reads stands in no list.
inline Touched touched(const Graph& graph, const BoundAction& action) {
  const std::span<const ValueIndex> target(&action.target, 1);
  switch (action.kind) {
    case ActionKind::kRun: {
      const Variant& variant = graph.ops[action.target].variants[action.variant];
      return {action.at, variant.reads, variant.writes, &variant};
    }
    case ActionKind::kCopy:
    case ActionKind::kReceive:
      return {action.to, {}, target};
    case ActionKind::kFree:
    case ActionKind::kWait:
    case ActionKind::kSend:
      return {action.at, target, {}};
  }
  return {};
}

}  // namespace reprise::internal::model
