// Runs the planner of graphs with its heuristics and pruning rules switched off: each alone, in
// pairs, at random, and all together. Plans verify, bounds are never above the optimum of
// exhaustive search, and a plan that is called optimal is the optimum. Failures print the switches,
// the seed and the instance.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "oracle/exhaustive.h"
#include "plan/graph/params.h"
#include "plan/graph/planner.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "support/graph_families.h"
#include "support/random_graph.h"
#include "support/scale.h"
#include "support/some_rounding.h"

namespace reprise::testing {
namespace {

using internal::graph::GraphSearchParams;
using internal::graph::search_graph;
using internal::graph::Switch;
using internal::graph::switches;

struct Question {
  std::string name;  // with the seed and the instance
  Graph graph;
  Bytes budget;
  std::optional<int64_t> best;  // the optimum, if any plan fits
};

// Returns three budgets: the smallest one that has a plan, one byte less, and the middle between
// the smallest one and plain training's.
void add_budgets(const std::string& name, const Graph& graph, std::vector<Question>& questions) {
  const int64_t plain = baseline(graph).peak.count();
  int64_t smallest = plain;
  while (smallest > 0 && least_time_of_any_plan(graph, smallest - 1)) --smallest;
  for (const int64_t budget : {(plain + smallest) / 2, smallest, smallest - 1}) {
    if (budget < 0) continue;
    questions.push_back({name + ", budget " + std::to_string(budget), graph, Bytes(budget),
                         least_time_of_any_plan(graph, budget)});
  }
}

// Every other graph has variants that round.
std::vector<Question> questions_of_all_families(uint64_t seed, int graphs) {
  std::vector<Question> questions;
  for (const GraphFamily& family : graph_families()) {
    std::mt19937_64 random(seed);
    for (int number = 0; number < graphs; ++number) {
      Graph graph = random_graph(random, family.options);
      if (number % 2 == 1) graph = some_rounding(std::move(graph), random);
      add_budgets(std::string("family ") + family.name + ", seed " + std::to_string(seed) +
                      ", graph " + std::to_string(number) + ": " + describe(graph),
                  graph, questions);
    }
  }
  return questions;
}

// Treats a small graph as one of this size: 0 is small, 1 is neither, 2 is large. Rounds are short.
GraphSearchParams params_for(int size) {
  GraphSearchParams params;
  params.search.small_graph = size == 0 ? 100 : 0;
  params.search.large_graph = size == 2 ? 0 : 5'000;
  params.search.repairs = 1;
  params.search.least_steps_of_small = 100;
  params.search.least_patience_of_small = 3;
  params.search.least_steps = 50;
  params.search.most_steps = 100;
  params.search.steps_to_fit = 50;
  params.search.most_steps_to_shrink = 100;
  params.bound.most_instants = 4;
  params.bound.most_cases = 50;
  return params;
}

Answer ask(const Question& question, const GraphSearchParams& params) {
  PlanOptions options;
  options.threads = 1;
  options.time_limit = Nanos(int64_t{3600} * 1'000'000'000);  // never reached
  return search_graph({question.graph, baseline(question.graph), question.budget, options}, params);
}

void expect_sound(const Question& question, const Answer& answer) {
  if (question.best) {
    ASSERT_NE(answer.termination, Termination::kInfeasible);
    ASSERT_LE(answer.lower_bound.count(), *question.best);
  }
  if (answer.termination != Termination::kOptimal && answer.termination != Termination::kFeasible) {
    return;
  }
  ASSERT_TRUE(question.best.has_value());
  Plan plan;
  plan.budget = question.budget;
  plan.termination = answer.termination;
  plan.lower_bound = answer.lower_bound;
  plan.baseline = baseline(question.graph);
  plan.actions = with_frees(question.graph, answer.runs);
  const Timeline timeline = simulate(question.graph, plan.actions);
  plan.peak = timeline.peak;
  plan.time = timeline.time;
  ASSERT_TRUE(verify(question.graph, plan, question.budget).empty());
  ASSERT_GE(plan.time.count(), *question.best);
  if (answer.termination == Termination::kOptimal) {
    ASSERT_EQ(plan.time.count(), *question.best);
    ASSERT_EQ(answer.lower_bound.count(), *question.best);
  }
}

class GraphSwitches : public ::testing::Test {
 protected:
  // Asks one question after the other, in all sizes in turn.
  void ask_next(const std::vector<Switch>& off) {
    const Question& question = questions_[asked_ % questions_.size()];
    const int size = static_cast<int>(asked_ / questions_.size() + asked_) % 3;
    ++asked_;
    GraphSearchParams params = params_for(size);
    std::string names;
    for (const Switch& one : off) {
      one.of(params) = false;
      names += std::string(one.name) + " ";
    }
    SCOPED_TRACE("off: " + names + "; size " + std::to_string(size) + ", " + question.name);
    const Answer answer = ask(question, params);
    expect_sound(question, answer);
    proven_ += answer.termination == Termination::kOptimal;
  }

  const std::vector<Question> questions_ = questions_of_all_families(31, 2);
  size_t asked_ = 0;
  int proven_ = 0;
};

TEST_F(GraphSwitches, AreFlagsOfTheirOwnAndOnByDefault) {
  GraphSearchParams params;
  std::set<const bool*> flags;
  std::set<std::string_view> names;
  for (const Switch& one : switches()) {
    EXPECT_TRUE(one.of(params)) << one.name;
    EXPECT_TRUE(flags.insert(&one.of(params)).second) << one.name;
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
  }
}

TEST_F(GraphSwitches, OffAloneLeavePlansValidAndBoundsTrue) {
  for (const Switch& one : switches()) {
    for (int k = 0; k < test_scale(12); ++k) {
      ask_next({one});
      if (HasFatalFailure()) return;
    }
  }
  std::cout << "seed 31: each switch alone, " << asked_ << " questions, " << proven_ << " proven\n";
  EXPECT_GT(proven_, static_cast<int>(asked_) / 4);
}

TEST_F(GraphSwitches, OffInPairsLeavePlansValidAndBoundsTrue) {
  for (int k = 0; k < test_scale(1); ++k) {
    for (size_t a = 0; a < switches().size(); ++a) {
      for (size_t b = a + 1; b < switches().size(); ++b) {
        ask_next({switches()[a], switches()[b]});
        if (HasFatalFailure()) return;
      }
    }
  }
  std::cout << "seed 31: all pairs, " << asked_ << " questions, " << proven_ << " proven\n";
}

TEST_F(GraphSwitches, OffAllTogetherLeavePlansValidAndBoundsTrue) {
  const std::vector<Switch> all(switches().begin(), switches().end());
  for (size_t k = 0; k < 3 * questions_.size(); ++k) {
    ask_next(all);
    if (HasFatalFailure()) return;
  }
}

// Half of the switches are off, at random.
TEST_F(GraphSwitches, OffAtRandomLeavePlansValidAndBoundsTrue) {
  std::mt19937_64 random(32);
  for (int k = 0; k < test_scale(200); ++k) {
    std::vector<Switch> off;
    for (const Switch& one : switches()) {
      if (random() % 2 == 0) off.push_back(one);
    }
    ask_next(off);
    if (HasFatalFailure()) return;
  }
  std::cout << "seeds 31 and 32: switches at random, " << asked_ << " questions\n";
}

// Where the default settings prove the optimum, a combination that calls its plan optimal must have
// found it, too.
TEST_F(GraphSwitches, OffNeverProveAnotherOptimum) {
  std::mt19937_64 random(33);
  int both = 0;
  for (const Question& question : questions_) {
    SCOPED_TRACE(question.name);
    const Answer usual = ask(question, {});
    if (usual.termination != Termination::kOptimal) continue;
    for (int size = 0; size < 3; ++size) {
      GraphSearchParams params = params_for(size);
      for (const Switch& one : switches()) one.of(params) = random() % 2 == 0;
      const Answer other = ask(question, params);
      EXPECT_LE(other.lower_bound, usual.lower_bound);
      if (other.termination != Termination::kOptimal) continue;
      ++both;
      EXPECT_EQ(other.lower_bound, usual.lower_bound);
    }
  }
  std::cout << "seeds 31 and 33: " << both << " optima proven twice\n";
  EXPECT_GT(both, 0);
}

// These settings let different parts decide the answer: the usual ones in three sizes, a rough
// search with a rough bound, and no search behind the starts.
std::vector<GraphSearchParams> settings_in_which_parts_matter() {
  std::vector<GraphSearchParams> settings = {params_for(0), params_for(1), params_for(2)};
  GraphSearchParams rough = params_for(1);
  rough.bound.use.cases = rough.bound.use.stretches = false;
  rough.bound.most_instants = 1;
  rough.search.near = 10;
  rough.search.close_enough = 1'000;
  rough.search.least_steps = rough.search.most_steps = rough.search.steps_to_fit = 8;
  rough.search.patience = 1;
  rough.search.hopeless = 1'000;
  settings.push_back(rough);
  GraphSearchParams starts = params_for(0);
  starts.search.use.improve = starts.search.use.fit = starts.search.use.shrink = false;
  settings.push_back(starts);
  starts.starts.use.rungs = starts.starts.use.segments = starts.search.use.repair = false;
  settings.push_back(starts);
  starts.use.dtr = false;
  settings.push_back(starts);
  return settings;
}

bool same(const Answer& a, const Answer& b) {
  return a.runs == b.runs && a.lower_bound == b.lower_bound && a.search_memory == b.search_memory &&
         a.smallest_budget == b.smallest_budget;
}

// A switch that changes nothing would be no switch.
TEST_F(GraphSwitches, OffChangeSomeAnswer) {
  const std::vector<GraphSearchParams> settings = settings_in_which_parts_matter();
  std::vector<std::vector<Answer>> usual;
  for (const GraphSearchParams& params : settings) {
    usual.emplace_back();
    for (const Question& question : questions_) usual.back().push_back(ask(question, params));
  }
  for (const Switch& one : switches()) {
    // This switch only saves time: the schedules that it gives up are not among those that are
    // annealed.
    if (one.name == "search.hopeless") continue;
    bool changed = false;
    for (size_t k = 0; k < settings.size() && !changed; ++k) {
      GraphSearchParams params = settings[k];
      one.of(params) = false;
      for (size_t q = 0; q < questions_.size() && !changed; ++q) {
        changed = !same(ask(questions_[q], params), usual[k][q]);
      }
    }
    EXPECT_TRUE(changed) << one.name;
  }
}

}  // namespace
}  // namespace reprise::testing
