// Reports of random problems and random schedules: the bytes by kind add up to the simulator's (walk()
// throws otherwise), decisions account for every re-run, and nothing else throws.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "report/decisions.h"
#include "report/walk.h"
#include "reprise/check/explain.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/report/report.h"
#include "support/random_chain.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

TEST(ReportProperty, OfAnySchedule) {
  constexpr uint64_t kSeed = 20261121;
  std::mt19937_64 random(kSeed);
  for (int number = 0; number < test_scale(150); ++number) {
    const Graph graph = random() % 2 == 0 ? random_graph(random) : lower(random_chain(random));
    const std::vector<Action> plain = with_frees(graph, plain_runs(graph));
    const std::vector<Action> actions = with_frees(graph, random_runs(random, graph, 6));
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", number " + std::to_string(number) + ": " +
                 describe(graph) + describe(actions));
    ReportInput input;
    input.problem = {graph, problem_id(graph)};
    input.plan.problem = input.problem.id;
    input.plan.actions = actions;

    const report::Walk walk = report::walk(graph, actions);
    if (walk.timeline.peak_action >= 0) {
      EXPECT_EQ(walk.moments[walk.peak].total(), walk.timeline.peak);
    }
    Nanos extra;
    for (const report::Decision& decision :
         report::decisions(graph, plain, report::walk(graph, plain), actions, walk)) {
      extra += decision.extra;
    }
    EXPECT_EQ(extra, explain(graph, input.plan).recomputed_time);
    EXPECT_FALSE(report_html(input).empty());
    EXPECT_FALSE(chrome_trace(input).empty());
    EXPECT_FALSE(memory_snapshot(input).empty());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace reprise::testing
