// The State is all that an Online holds between its steps.
#pragma once

#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/online.h"
#include "runtime/online/heuristics.h"
#include "runtime/online/plans.h"
#include "runtime/online/session.h"

namespace reprise::runtime {

struct Online::State {
  // `plan` makes the plans of steps.
  explicit State(OnlineOptions given,
                 internal::online::PlanFunction plan = &internal::online::plan_step)
      : options(std::move(given)),
        heuristic(internal::online::heuristic_named(options.heuristic)),
        plans(options, std::move(plan)) {}

  internal::online::Session& session() {
    if (!current) throw InputError("no step in online mode is under way: begin() comes first");
    return *current;
  }

  OnlineOptions options;
  const internal::online::Heuristic& heuristic;
  internal::online::Plans plans;
  std::optional<internal::online::Session> current;
  Nanos began;
  OnlineReport last;
};

}  // namespace reprise::runtime
