// The State is all that an Online holds between its steps.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/online.h"
#include "runtime/device/activity.h"
#include "runtime/device/device.h"
#include "runtime/online/heuristics.h"
#include "runtime/online/plans.h"
#include "runtime/online/session.h"

namespace reprise::runtime {

struct Online::State {
  // `plan` makes the plans of steps.
  explicit State(OnlineOptions given,
                 internal::online::PlanFunction plan = &internal::online::plan_step)
      : options(with_index(std::move(given))),
        heuristic(internal::online::heuristic_named(options.heuristic)),
        plans(options, std::move(plan)) {}

  // Tensors say the index of their device.
  static OnlineOptions with_index(OnlineOptions given) {
    given.device = internal::device::with_index(given.device);
    return given;
  }

  internal::online::Session& session() {
    if (!current) throw InputError("no step in online mode is under way: begin() comes first");
    return *current;
  }

  OnlineOptions options;
  const internal::online::Heuristic& heuristic;
  internal::online::Plans plans;
  std::unique_ptr<internal::device::OnlineUnderWay> under_way;  // of `current`
  std::optional<internal::online::Session> current;
  Nanos began;
  std::mutex last_mutex;  // of `last`: a thread may ask while another one runs a step
  OnlineReport last;
};

}  // namespace reprise::runtime
