// Tests the planner `levels` on random chains and machines: never slower than recomputing alone or
// moving alone, within capacities, with bounds that hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string_view>

#include "plan/place/levels/choices.h"
#include "plan/place/levels/judge.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"
#include "support/event_machine.h"
#include "support/planner_questions.h"
#include "support/random_chain.h"
#include "support/random_copies.h"

namespace reprise::testing {
namespace {

TEST(Levels, NeverSlowerThanRecomputingAndPlansHold) {
  int64_t moved = 0, faster = 0, possible_only_by_moving = 0;
  for_chains(71, 400, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    Machine machine = random_machine(random);
    for (size_t m = 1; m < machine.memories.size(); ++m) {
      if (random() % 2 == 0) {
        machine.memories[m].capacity = Bytes(static_cast<int64_t>(random() % 40));
      }
    }
    SCOPED_TRACE(to_json(machine));
    const Graph graph = lower(chain);
    const Bytes budget(baseline(graph).peak.count() * static_cast<int64_t>(50 + random() % 50) /
                       100);
    const PlanResult alone = plan(chain, on({}, budget));
    const PlanResult result = plan(chain, on(machine, budget));
    ASSERT_EQ(result.planner, "levels");
    if (!result.plan) {
      ASSERT_FALSE(alone.plan);
      return;
    }
    possible_only_by_moving += !alone.plan;
    const std::vector<Violation> violations =
        verify(graph, *result.plan, budget, problem_id(chain), machine);
    ASSERT_TRUE(violations.empty()) << violations.front().message;
    ASSERT_EQ(run_events(graph, machine, result.plan->actions).time,
              result.plan->time.count());
    moved += moves_values(*result.plan);
    if (!alone.plan) return;
    ASSERT_LE(result.plan->time, alone.plan->time);
    faster += result.plan->time < alone.plan->time;
    // A plan without copies obeys the bound, too.
    ASSERT_LE(result.lower_bound, alone.plan->time);
  });
  EXPECT_GT(moved, 20);
  EXPECT_GT(faster, 20);
  EXPECT_GT(possible_only_by_moving, 0);
}

// The planners that only move: nothing runs twice, and `levels` is at least as good.
TEST(Levels, NotSlowerThanMovingAlone) {
  int64_t compared = 0, faster = 0;
  for_chains(72, 300, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    const Machine machine = random_machine(random);
    SCOPED_TRACE(to_json(machine));
    const Graph graph = lower(chain);
    const int64_t percent = 50 + static_cast<int64_t>(random() % 50);
    PlanOptions options = on(machine, Bytes(baseline(graph).peak.count() * percent / 100));
    const PlanResult joint = plan(chain, options);
    for (const char* planner : {"offload_only", "save_on_cpu"}) {
      SCOPED_TRACE(planner);
      options.planner = planner;
      const PlanResult moving = plan(chain, options);
      if (!moving.plan) continue;
      const auto runs =
          std::count_if(moving.plan->actions.begin(), moving.plan->actions.end(),
                        [](const Action& action) { return action.kind == ActionKind::kRun; });
      ASSERT_EQ(static_cast<size_t>(runs), plain_runs(graph).size());
      ASSERT_TRUE(joint.plan);
      ASSERT_LE(joint.plan->time, moving.plan->time);
      ++compared;
      faster += joint.plan->time < moving.plan->time;
    }
  });
  EXPECT_GT(compared, 100);
  EXPECT_GT(faster, 50);
}

// The planners of the literature that make again and move: `levels` decides for each value alone, so it
// is at least as good but for the luck of its search, and the bound holds.
TEST(Levels, NotMuchSlowerThanPlannersOfTheLiterature) {
  for (const char* planner : {"block4", "double_checkpoint", "pofo"}) {
    SCOPED_TRACE(planner);
    int64_t compared = 0, moved = 0, again = 0, faster = 0;
    for_chains(75, 300, any_chain(9), [&](const Chain& chain, std::mt19937_64& random) {
      const Machine machine = random_machine(random);
      SCOPED_TRACE(to_json(machine));
      const Graph graph = lower(chain);
      const int64_t percent = 40 + static_cast<int64_t>(random() % 50);
      PlanOptions options = on(machine, Bytes(baseline(graph).peak.count() * percent / 100));
      const PlanResult joint = plan(chain, options);
      options.planner = planner;
      const PlanResult other = plan(chain, options);
      if (!other.plan) return;
      ASSERT_TRUE(joint.plan);
      ASSERT_LE(other.lower_bound, other.plan->time);
      // The searches of `levels` begin elsewhere. The choices of block4 are few and simple.
      const int64_t allowed = std::string_view(planner) == "block4" ? 20 : 21;
      ASSERT_LE(joint.plan->time.count(), other.plan->time.count() * allowed / 20);
      const auto runs =
          std::count_if(other.plan->actions.begin(), other.plan->actions.end(),
                        [](const Action& action) { return action.kind == ActionKind::kRun; });
      ++compared;
      moved += moves_values(*other.plan);
      again += static_cast<size_t>(runs) > plain_runs(graph).size();
      faster += joint.plan->time < other.plan->time;
    });
    EXPECT_GT(compared, 50);
    EXPECT_GT(moved, 10);
    EXPECT_GT(again, 10);
    EXPECT_GT(faster, 10);
  }
}

// A fate for each stage, in groups: `before` run again, `moved` move, `behind` run again, and the
// others are kept.
internal::levels::Choices fates(size_t stages, size_t size, size_t before, size_t moved,
                                size_t behind) {
  internal::levels::Choices choices(stages);
  for (size_t k = 0; k < stages; ++k) {
    const size_t group = k / size;
    if (group >= before + moved + behind) continue;
    if (group >= before && group < before + moved) {
      choices[k].saved_lane = choices[k].input_lane = 0;
      continue;
    }
    choices[k].option = internal::levels::kSwept;
    choices[k].cut = k % size == 0 ? 1 : 0;
  }
  return choices;
}

// block4 leaves out what cannot win: the best of all combinations is no better.
TEST(Levels, FourIntegersAreTheBestOfAllCombinations) {
  int64_t compared = 0, moved = 0, again = 0;
  for_chains(76, 400, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    const Machine machine = random_machine(random);
    SCOPED_TRACE(to_json(machine));
    const Graph graph = lower(chain);
    const int64_t percent = 40 + static_cast<int64_t>(random() % 60);
    PlanOptions options = on(machine, Bytes(baseline(graph).peak.count() * percent / 100));
    options.planner = "block4";
    const PlanResult result = plan(chain, options);
    const size_t stages = chain.stages.size();
    const ChainProblem problem{chain, graph, baseline(graph), result.budget, options};
    internal::levels::Judge judge(problem, stages, "test");
    for (size_t size = 1; size <= stages; ++size) {
      const size_t groups = (stages + size - 1) / size;
      for (size_t a = 0; a <= groups; ++a) {
        for (size_t b = 0; a + b <= groups; ++b) {
          for (size_t c = 0; a + b + c <= groups; ++c) judge.offer(fates(stages, size, a, b, c));
        }
      }
    }
    ASSERT_EQ(result.plan.has_value(), judge.best_time().has_value());
    if (!result.plan) return;
    ASSERT_EQ(result.plan->time.count(), *judge.best_time());
    ++compared;
    moved += moves_values(*result.plan);
    again += std::count_if(result.plan->actions.begin(), result.plan->actions.end(),
                           [](const Action& a) { return a.kind == ActionKind::kRun; }) >
             static_cast<std::ptrdiff_t>(plain_runs(graph).size());
  });
  EXPECT_GT(compared, 50);
  EXPECT_GT(moved, 20);
  EXPECT_GT(again, 20);
}

Chain equal_chain(size_t stages) {
  Stage stage{.name = {},
              .output = Bytes(10),
              .output_gradient = {},
              .weight_gradient = Bytes(0),
              .random = false,
              .forward = {Nanos(1000), Bytes(0)},
              .options = {{.saved = Bytes(100),
                           .reads_output = false,
                           .forward = {Nanos(1000), Bytes(0)},
                           .backward = {Nanos(2000), Bytes(0)}}}};
  Chain chain;
  chain.name = "equal";
  chain.input = {Bytes(10), Bytes(10)};
  for (size_t k = 0; k < stages; ++k) {
    stage.name = std::to_string(k);
    chain.stages.push_back(stage);
  }
  return chain;
}

// With a link that is fast enough, every stage but those of the last block runs forward twice: the
// paper's T(R) where the local memory holds a block and copies hide.
TEST(Levels, CheckpointsOnTwoLevelsTakeTheTimeOfThePaper) {
  constexpr int64_t kStages = 600, kBlock = 40;  // so many stages fit into the device
  const Chain chain = equal_chain(kStages);
  PlanOptions options = on(parse_offload("host=1GB/s"), Bytes(kBlock * 110 + 40));
  options.machine.channels.at(0).latency = options.machine.channels.at(1).latency = Nanos(0);
  options.planner = "double_checkpoint";
  const PlanResult result = plan(chain, options);
  ASSERT_TRUE(result.plan);
  EXPECT_TRUE(moves_values(*result.plan));
  const int64_t extra = (result.plan->time - result.baseline.time).count();
  EXPECT_LE(extra, kStages * 1000);
  EXPECT_GE(extra, (kStages - kBlock) * 1000);
}

// Nothing overlaps, so that the time is a sum.
TEST(Levels, SaveOnCpuTakesTheTimeOfEveryCopy) {
  int64_t copies = 0;
  for_chains(73, 200, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    const Machine machine = random_machine(random);
    PlanOptions options = on(machine, Bytes(1'000'000));
    options.planner = "save_on_cpu";
    const PlanResult result = plan(chain, options);
    ASSERT_TRUE(result.plan);
    Nanos time = result.baseline.time;
    for (const Transfer& transfer : simulate(lower(chain), *result.plan, machine).transfers) {
      time += transfer.end - transfer.start;
      ++copies;
    }
    ASSERT_EQ(result.plan->time, time);
    ASSERT_LE(result.plan->peak, result.baseline.peak);
  });
  EXPECT_GT(copies, 500);
}

// Where neither recomputing alone nor moving alone fits, `levels` finds a plan if block4 does.
TEST(Levels, FindsAPlanWhereNeitherAloneFits) {
  int64_t only_mixed = 0;
  for_chains(78, 300, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    const Machine machine = random_machine(random);
    SCOPED_TRACE(to_json(machine));
    const auto fits = [&](const char* planner, Bytes budget) {
      PlanOptions ask = on(machine, budget);
      ask.planner = planner;
      return plan(chain, ask).plan.has_value();
    };
    const Frontier alone = frontier(chain, on({}, Bytes()));
    for (int64_t percent = 98; percent >= 70; percent -= 7) {
      const Bytes budget(alone.points.front().budget.count() * percent / 100);
      if (fits("offload_only", budget) || !fits("block4", budget)) continue;
      EXPECT_TRUE(fits("levels", budget)) << budget.count();
      ++only_mixed;
    }
  });
  EXPECT_GT(only_mixed, 5);
}

TEST(Levels, AFastChannelMakesEveryBudgetFree) {
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  const PlanResult result = plan(chain, [] {
    PlanOptions options;
    options.budget = "40%";
    options.machine = parse_offload("host=100GB/s");
    options.threads = 1;
    return options;
  }());
  ASSERT_TRUE(result.plan);
  EXPECT_EQ(result.termination, Termination::kOptimal);
  EXPECT_EQ(result.plan->time, result.baseline.time);
}

TEST(Levels, AMemoryWithoutRoomIsNoHelp) {
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  Machine machine = parse_offload("host=100GB/s");
  machine.memories[1].capacity = Bytes(0);
  PlanOptions options = on(machine, Bytes(20'000'000));
  const PlanResult result = plan(chain, options);
  ASSERT_TRUE(result.plan);
  EXPECT_FALSE(moves_values(*result.plan));
  EXPECT_GT(result.plan->time, result.baseline.time);
}

TEST(Levels, ExceptionsOfTheObserverPassThrough) {
  struct Stop {};
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  for (const char* planner : {"levels", "offload_only"}) {
    PlanOptions options = on(parse_offload("host=0.1GB/s"), Bytes(20'000'000));
    options.planner = planner;
    options.observer = [](const Progress&) { throw Stop{}; };
    EXPECT_THROW(plan(chain, options), Stop) << planner;
  }
}

// The time of a curve at a budget.
Nanos best(const Frontier& curve, Bytes budget) {
  Nanos time(std::numeric_limits<int64_t>::max());
  for (const FrontierPoint& point : curve.points) {
    if (point.budget <= budget) time = point.time;
  }
  return time;
}

// Points of a curve on a machine: more memory is faster, bounds hold, and single plans agree.
TEST(Levels, CurvesOnAMachine) {
  int64_t points = 0, faster = 0;
  for_chains(77, 12, any_chain(7), [&](const Chain& chain, std::mt19937_64& random) {
    const Machine machine = random_machine(random);
    SCOPED_TRACE(to_json(machine));
    PlanOptions options = on(machine, Bytes());
    options.time_limit = kNoTimeLimit;
    const Frontier curve = frontier(chain, options);
    EXPECT_EQ(curve.planner, "levels");
    EXPECT_EQ(curve.problem, problem_id(chain));
    ASSERT_FALSE(curve.points.empty());
    EXPECT_LE(curve.points.back().time, baseline(lower(chain)).time);
    const Frontier alone = frontier(chain, on({}, Bytes()));
    EXPECT_LE(curve.points.front().budget, alone.points.front().budget);
    for (size_t p = 0; p < curve.points.size(); ++p) {
      const FrontierPoint& point = curve.points[p];
      EXPECT_EQ(point.peak, point.budget);
      EXPECT_LE(point.lower_bound, point.time);
      if (p > 0) {
        EXPECT_LT(curve.points[p - 1].budget, point.budget);
        EXPECT_GT(curve.points[p - 1].time, point.time);
        EXPECT_GE(curve.points[p - 1].lower_bound, point.lower_bound);
      }
      PlanOptions single = on(machine, point.budget);
      const PlanResult at = plan(chain, single);
      ASSERT_TRUE(at.plan);
      EXPECT_LE(at.lower_bound, point.time);
      EXPECT_LE(point.lower_bound, at.plan->time);
      ++points;
    }
    for (const FrontierPoint& point : alone.points)
      faster += best(curve, point.budget) < point.time;
  });
  EXPECT_GT(points, 20);
  EXPECT_GT(faster, 5);
}

TEST(Levels, CurvesOnAMachineOfOtherPlannersAndProblems) {
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  PlanOptions options = on(parse_offload("host=0.35GB/s"), Bytes());
  options.planner = "save_on_cpu";
  const Frontier moved = frontier(chain, options);
  EXPECT_EQ(moved.planner, "save_on_cpu");
  EXPECT_EQ(moved.points.size(), 1u);  // it knows one plan
  options.planner = "chain";
  EXPECT_THROW(frontier(chain, options), InputError);
  options.planner = "graph_levels";
  EXPECT_THROW(frontier(chain, options), InputError);
  EXPECT_EQ(frontier(lower(equal_chain(3)), options).planner, "graph_levels");
  options.planner = "levels";
  options.time_limit = Nanos(0);
  EXPECT_LE(frontier(chain, options).points.size(), 2u);
}

TEST(Levels, PlannersThatDoNotMoveRefuseAMachine) {
  const Chain chain = load_chain(REPRISE_SOURCE_DIR "/data/instances/levels/period4_50.json");
  PlanOptions options = on(parse_offload("host=1GB/s"), Bytes(20'000'000));
  options.planner = "chain";
  EXPECT_THROW(plan(chain, options), InputError);
  for (const char* planner : {"graph", "dtr", "keep_all"}) {
    options.planner = planner;
    EXPECT_THROW(plan(lower(chain), options), InputError) << planner;
  }
}

}  // namespace
}  // namespace reprise::testing
