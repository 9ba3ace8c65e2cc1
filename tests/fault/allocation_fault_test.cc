// There is no memory, at every allocation there is: the k-th one fails, for every k until a call
// comes through. Then std::bad_alloc arrives and no other error, nothing is lost, and the next call
// is right.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fault/faults.h"
#include "plan/common/by_level.h"
#include "reprise/check/explain.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/pack/pages.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/registry.h"
#include "reprise/run/bookkeeping.h"
#include "support/build_graph.h"
#include "support/example_chain.h"
#include "support/io_text.h"

namespace reprise::testing {
namespace {

enum class Which { kEvery, kSome };  // kSome: ever further apart, some forty in all

// work() returns a value that must be the same at every call. Any exception but std::bad_alloc ends
// the test.
template <class Work>
void fails_at_allocations(Which which, const char* what, const Work& work) {
  SCOPED_TRACE(what);
  const auto right = work();  // also fills what is made once for the whole program
  int64_t cases = 0;
  bool happened = true;
  for (int64_t k = 0; happened; k += which == Which::kEvery ? 1 : 1 + k / 4, ++cases) {
    ASSERT_LT(k, 100'000'000);
    const int64_t before = live_allocations();
    try {
      const AllocationFault fault(k);
      const auto result = work();
      happened = fault.happened();
      // Some code does without the memory that it asked for, such as std::stable_sort without its
      // buffer.
      EXPECT_EQ(result, right) << "allocation " << k;
    } catch (const std::bad_alloc&) {
    }
    ASSERT_EQ(live_allocations(), before) << "lost when allocation " << k << " failed";
  }
  EXPECT_EQ(work(), right) << "the call after";
  std::printf("%-28s %7lld allocations failed\n", what, static_cast<long long>(cases - 1));
}

template <class Work>
void fails_at_every_allocation(const char* what, const Work& work) {
  fails_at_allocations(Which::kEvery, what, work);
}

// This is the part of an answer that does not depend on the clock.
using Told = std::tuple<Termination, std::vector<Action>, Nanos, std::optional<Bytes>>;
Told told(const PlanResult& result) {
  return {result.termination, result.plan ? result.plan->actions : std::vector<Action>(),
          result.lower_bound, result.smallest_budget};
}

// Returns the smallest budget at which there is a plan, one with re-runs.
Bytes tight_budget() { return frontier(example_chain()).points.at(0).budget; }
Plan tight_plan() { return plan(example_chain(), {.budget = tight_budget()}).plan.value(); }

// Returns a row of ops with a backward for each, as a small U-Net would have.
Graph row_graph(int ops) {
  Graph graph;
  graph.name = "row";
  std::vector<ValueIndex> made = {add_value(graph, "x", 8, ValueKind::kInput)};
  for (int o = 0; o < ops; ++o) {
    const std::string number = std::to_string(o);
    made.push_back(add_value(graph, "y" + number, 10 + o));
    add_op(graph, "f" + number, {make_variant(3 + o, {made[o]}, {made[o + 1]}, 2)});
  }
  ValueIndex gradient = add_value(graph, "g" + std::to_string(ops), 4, ValueKind::kGradient);
  add_op(graph, "loss", {make_variant(1, {made.back()}, {gradient})}, Phase::kLoss);
  for (int o = ops; o-- > 0;) {
    const ValueIndex next = add_value(graph, "g" + std::to_string(o), 4, ValueKind::kGradient);
    add_op(graph, "b" + std::to_string(o), {make_variant(5, {made[o], gradient}, {next})},
           Phase::kBackward);
    gradient = next;
  }
  graph.results = {gradient};
  return graph;
}

TEST(AllocationFaults, Loaders) {
  const std::string frontier = to_json(reprise::frontier(example_chain()));
  fails_at_every_allocation("parse_chain", [] { return parse_chain(kChainText); });
  fails_at_every_allocation("parse_graph", [] { return parse_graph(kGraphText); });
  fails_at_every_allocation("parse_plan", [] { return parse_plan(kPlanText); });
  fails_at_every_allocation("parse_run_log", [] { return parse_run_log(kRunLogText); });
  fails_at_every_allocation("parse_frontier", [&] { return parse_frontier(frontier); });
  fails_at_every_allocation("parse_problem", [] { return parse_problem(kChainText).id; });
  // A refusal takes memory, too. Its message may be lost, but it may not become another kind of
  // error.
  fails_at_every_allocation("refusal", [] {
    try {
      parse_chain(replaced(kChainText, "\"saved_bytes\": 3", "\"saved_bytes\": -3"), "file.json");
      return std::string("accepted");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  });
}

TEST(AllocationFaults, Writers) {
  const Chain chain = example_chain();
  const Graph graph = row_graph(3);
  const Plan plan = parse_plan(kPlanText);
  fails_at_every_allocation("to_json chain", [&] { return to_json(chain); });
  fails_at_every_allocation("to_json graph", [&] { return to_json(graph); });
  fails_at_every_allocation("to_json plan", [&] { return to_json(plan); });
  fails_at_every_allocation("problem_id", [&] { return problem_id(graph); });
}

TEST(AllocationFaults, Judges) {
  const Graph graph = lower(example_chain());
  const Plan plan = tight_plan();
  Plan wrong = plan;
  wrong.actions.erase(wrong.actions.begin() + 1);
  fails_at_every_allocation("lower", [] { return lower(example_chain()); });
  fails_at_every_allocation("simulate", [&] { return simulate(graph, plan); });
  fails_at_every_allocation("verify", [&] { return verify(graph, plan, plan.budget).size(); });
  fails_at_every_allocation("verify, wrong plan",
                            [&] { return verify(graph, wrong, plan.budget).size(); });
  fails_at_every_allocation("explain", [&] { return explain(graph, plan); });
  fails_at_every_allocation("interpreter", [&] {
    BookkeepingBackend backend(graph);
    execute(Program(graph, plan.actions), backend);
    return backend.peak();
  });
}

TEST(AllocationFaults, Packing) {
  const Graph graph = lower(example_chain());
  const Plan plan = tight_plan();
  fails_at_every_allocation("plan_blocks", [&] { return plan_blocks(graph, plan.actions); });
  const std::vector<Block> blocks = plan_blocks(graph, plan.actions);
  fails_at_every_allocation("pack", [&] { return pack(blocks, {.alignment = Bytes(1)}); });
  // Only the exact search tells whether the least height is 4 or 5.
  const std::vector<Block> hard = {{Bytes(2), 0, 3}, {Bytes(1), 2, 5}, {Bytes(2), 4, 8},
                                   {Bytes(1), 1, 7}, {Bytes(1), 6, 9}, {Bytes(3), 8, 10}};
  const Packing easy = pack(hard, {.alignment = Bytes(1), .steps = 0});
  fails_at_every_allocation(
      "pages", [&] { return in_pages(hard, easy, {.alignment = Bytes(1), .page = Bytes(1)}); });
  fails_at_every_allocation("pack, search",
                            [&] { return pack(hard, {.alignment = Bytes(1), .steps = 2'000}); });
}

TEST(AllocationFaults, EveryPlannerOfChains) {
  const Chain chain = example_chain();
  const Bytes budget = tight_budget();
  for (const int threads : {1, 2}) {
    for (const PlannerInfo& planner : planners()) {
      if (planner.plan_chain == nullptr) continue;
      const std::string what = std::string(planner.name) + ", threads " + std::to_string(threads);
      const PlanOptions options{.budget = budget, .planner = planner.name, .threads = threads};
      fails_at_every_allocation(what.c_str(), [&] { return told(plan(chain, options)); });
      if (planner.chain_frontier == nullptr || threads > 1) continue;
      fails_at_every_allocation((what + ", curve").c_str(),
                                [&] { return frontier(chain, options).points; });
    }
  }
}

TEST(AllocationFaults, EveryPlannerOfGraphs) {
  const Graph graph = row_graph(3);
  for (const int threads : {1, 2}) {
    for (const PlannerInfo& planner : planners()) {
      if (planner.plan_graph == nullptr) continue;
      const std::string what = std::string(planner.name) + ", threads " + std::to_string(threads);
      const PlanOptions options{.budget = "80%", .planner = planner.name, .threads = threads};
      fails_at_every_allocation(what.c_str(), [&] { return told(plan(graph, options)); });
    }
  }
}

// The chain is so long that several threads work. One of them has no memory, or cannot start
// because there is none.
TEST(AllocationFaults, PlannersOnSeveralThreads) {
  Chain chain;
  chain.input = {Bytes(30), Bytes(30)};
  for (int i = 0; i < 36; ++i) {
    Stage stage = example_chain().stages[1];
    stage.output = Bytes(20 + i * 7 % 11);
    stage.options[0].saved = Bytes(5 + i * 5 % 13);
    stage.options[0].forward.time = stage.forward.time = Nanos(10 + i * 3 % 17);
    chain.stages.push_back(stage);
  }
  const Nanos no_limit(3'600'000'000'000);  // however busy the machine is
  const PlanOptions options{.budget = "50%", .time_limit = no_limit, .threads = 3};
  fails_at_allocations(Which::kSome, "chain, threads at work",
                       [&] { return told(plan(chain, options)); });
  // Where the clock ends the search, the answers differ. Only that there is a plan is always the
  // same.
  const Graph graph = row_graph(120);
  const PlanOptions hasty{.budget = "60%", .time_limit = Nanos(50'000'000), .threads = 3};
  fails_at_allocations(Which::kSome, "graph, threads at work",
                       [&] { return plan(graph, hasty).plan.has_value(); });
}

TEST(AllocationFaults, WorkInLevels) {
  const std::vector<size_t> ends = {3, 40, 41, 90};
  for (const int threads : {1, 2, 4}) {
    fails_at_every_allocation("work in levels", [&] {
      std::vector<int> done(ends.back(), 0);
      const bool all = internal::common::for_each_by_level(
          ends, threads, [&](int, size_t item) { done[item] = *std::make_unique<int>(1); },
          [](size_t) { return true; });
      return std::pair(all, done);
    });
  }
}

// With fewer threads than were asked for, a planner is slower and gives the same answer.
TEST(ThreadFaults, PlannersDoWithTheThreadsThatThereAre) {
  const Chain chain = example_chain();
  const Graph graph = row_graph(3);
  const PlanOptions options{.budget = "75%", .threads = 4};
  const Told of_chain = told(plan(chain, options)), of_graph = told(plan(graph, options));
  const Graph large = row_graph(120);
  for (int64_t thread = 0; thread < 4; ++thread) {
    const ThreadFault fault(thread);
    EXPECT_EQ(told(plan(chain, options)), of_chain);
    EXPECT_EQ(told(plan(graph, options)), of_graph);
    EXPECT_TRUE(
        plan(large, {.budget = "60%", .time_limit = Nanos(200'000'000), .threads = 4}).plan);
  }
}

}  // namespace
}  // namespace reprise::testing
