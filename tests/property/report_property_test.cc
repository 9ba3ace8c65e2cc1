// Makes reports of random problems and random schedules. The bytes by kind add up to the
// simulator's (otherwise walk() throws), the decisions of a chain account for all of its time, and
// nothing else throws.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <variant>

#include "report/decisions.h"
#include "report/walk.h"
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
    ReportInput input;
    if (random() % 2 == 0) {
      input.problem.model = random_graph(random);
    } else {
      input.problem.model = random_chain(random);
    }
    const Graph graph = input.problem.graph();
    const std::vector<Action> plain = with_frees(graph, plain_runs(graph));
    const std::vector<Action> actions = with_frees(graph, random_runs(random, graph, 6));
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", number " + std::to_string(number) + ": " +
                 describe(graph) + describe(actions));
    input.problem.id =
        std::visit([](const auto& model) { return problem_id(model); }, input.problem.model);
    input.plan.problem = input.problem.id;
    input.plan.actions = actions;

    const report::Walk walk = report::walk(graph, actions);
    if (walk.timeline.peak_action >= 0) {
      EXPECT_EQ(walk.spans[walk.peak].total(), walk.timeline.peak);
    }
    const report::Walk plain_walk = report::walk(graph, plain);
    Nanos extra;
    for (const report::Decision& decision :
         report::decisions(graph, report::own_backwards(input.problem, graph), plain, plain_walk,
                           actions, walk)) {
      extra += decision.extra;
    }
    if (input.problem.chain() != nullptr) {
      EXPECT_EQ(extra, walk.timeline.time - plain_walk.timeline.time);
    }
    EXPECT_FALSE(report_html(input).empty());
    EXPECT_FALSE(chrome_trace(input).empty());
    EXPECT_FALSE(memory_snapshot(input).empty());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace reprise::testing
