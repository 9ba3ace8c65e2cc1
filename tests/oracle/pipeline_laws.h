// These laws hold for every valid plan of a pipeline: the tests of its schedules and of its planners
// ask them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oracle/plan_laws.h"
#include "reprise/check/pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/pipeline.h"

namespace reprise::testing {

// The accounts of any plan agree on the program of a pipeline's plan, and find what the plan claims.
inline void expect_accounts_agree(const Pipeline& pipeline, const PipelinePlan& plan) {
  const PipelineProgram program = lower(pipeline, plan);
  ASSERT_TRUE(program.stuck.empty() && program.dead.empty());
  const auto& [graph, machine, bound, places, stuck, dead] = program;
  const std::vector<Action> actions = with_names(graph, bound, machine);
  ASSERT_EQ(bind(graph, actions, machine), bound);
  const Timeline timeline = simulate(graph, actions, machine);
  const Plan lowered = claimed(graph, machine, actions);
  expect_accounts_agree(graph, machine, lowered, timeline, explain(graph, lowered, machine));
  ASSERT_EQ(timeline.time, plan.time);
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    ASSERT_EQ(timeline.peaks[d], plan.devices[d].peak) << plan.devices[d].name;
  }
  // The order of a device is the part of the plan that names its memory.
  std::vector<int64_t> last(plan.devices.size(), 0);
  for (const PipelinePlace& place : places) {
    int64_t& before = last[static_cast<size_t>(place.device)];
    ASSERT_LE(before, place.action);
    before = place.action;
  }
}

}  // namespace reprise::testing
