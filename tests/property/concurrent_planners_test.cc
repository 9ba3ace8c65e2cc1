// Several planners work in one process, or one planner works with several threads. The answers are
// those of one planner alone with one thread. The test also runs under the thread sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/registry.h"
#include "support/random_chain.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

constexpr Nanos kNoLimit(3'600'000'000'000);  // however busy the machine is

// Returns the part of an answer that does not depend on the clock.
std::string told(const PlanResult& result) {
  std::string text = to_string(result.termination);
  text += " " + std::to_string(result.lower_bound.count());
  if (result.smallest_budget) text += " " + std::to_string(result.smallest_budget->count());
  if (!result.plan) return text;
  for (const Action& action : result.plan->actions) text += " " + action.id + ":" + action.variant;
  return text;
}

// A question goes to a planner, and everything that is done with its answer belongs to it.
using Question = std::function<std::string(int threads)>;

template <class Problem>
std::string ask(const Problem& problem, const Graph& graph, const char* planner, int threads) {
  PlanOptions options;
  options.budget = "70%";
  options.planner = planner;
  options.threads = threads;
  options.time_limit = kNoLimit;
  const PlanResult result = plan(problem, options);
  std::string text = told(result);
  if (!result.plan) return text;
  text += verify(graph, parse_plan(to_json(*result.plan)), result.budget).empty() ? " valid" : "!";
  return text + std::to_string(pack(plan_blocks(graph, result.plan->actions)).height.count());
}

std::vector<Question> questions(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Question> all;
  RandomChainOptions long_chains;
  long_chains.min_stages = long_chains.max_stages = 34;  // enough cells for several threads
  long_chains.max_size = 200;
  for (int number = 0; number < test_scale(3); ++number) {
    const Chain chain = random_chain(random, long_chains);
    const Graph lowered = lower(chain);
    const Graph graph = random_graph(random, {.min_forward = 6, .max_forward = 12});
    for (const PlannerInfo& planner : planners()) {
      if (planner.plan_chain != nullptr) {
        all.push_back([=](int threads) { return ask(chain, lowered, planner.name, threads); });
      }
      if (planner.plan_graph != nullptr) {
        all.push_back([=](int threads) { return ask(graph, graph, planner.name, threads); });
      }
    }
  }
  return all;
}

std::vector<std::string> answers(const std::vector<Question>& all, int threads) {
  std::vector<std::string> told;
  for (const Question& question : all) told.push_back(question(threads));
  return told;
}

TEST(ConcurrentPlanners, TheNumberOfThreadsChangesNoAnswerOfAnyPlanner) {
  const std::vector<Question> all = questions(1);
  const std::vector<std::string> alone = answers(all, 1);
  EXPECT_EQ(answers(all, 2), alone);
  EXPECT_EQ(answers(all, 4), alone);
}

TEST(ConcurrentPlanners, SeveralAtOnceAnswerAsOneAlone) {
  const std::vector<Question> all = questions(2);
  const std::vector<std::string> alone = answers(all, 1);
  std::vector<std::vector<std::string>> at_once(3);
  {
    std::vector<std::jthread> askers;
    for (size_t asker = 0; asker < at_once.size(); ++asker) {
      askers.emplace_back([&, asker] {
        // Each thread begins with another question, so that different planners meet.
        std::vector<Question> mine = all;
        std::rotate(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(3 * asker),
                    mine.end());
        at_once[asker] = answers(mine, static_cast<int>(asker) + 1);
      });
    }
  }
  for (size_t asker = 0; asker < at_once.size(); ++asker) {
    std::vector<std::string> expected = alone;
    std::rotate(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(3 * asker),
                expected.end());
    EXPECT_EQ(at_once[asker], expected) << asker;
  }
}

}  // namespace
}  // namespace reprise::testing
