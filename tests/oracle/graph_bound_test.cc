// Compares the bound on every plan of a graph with exhaustive search. At every budget the bound is
// never above the least time of any plan, and it says "infeasible" only where that is true.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oracle/exhaustive.h"
#include "plan/common/graph_facts.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/bound/split.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "support/graph_families.h"
#include "support/random_chain.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

internal::bound::GraphBound bound_of(const Graph& graph, int64_t budget) {
  internal::common::SearchControl control({}, "test");
  internal::common::SearchControl untimed = control.untimed();
  return internal::bound::bound_graph(graph, Bytes(budget), untimed);
}

// Returns the same bound, raised by cases.
int64_t split_bound_of(const Graph& graph, int64_t budget) {
  internal::common::SearchControl untimed = internal::common::SearchControl({}, "test").untimed();
  const internal::bound::GraphBound root =
      internal::bound::bound_graph(graph, Bytes(budget), untimed);
  return internal::bound::split_bound(internal::common::GraphFacts(graph), Bytes(budget), root,
                                      untimed)
      .count();
}

// Counts how good the bounds are, for the record.
struct Record {
  int64_t asked = 0, exact = 0, exact_split = 0, refused = 0, infeasible = 0;
  double gap = 0, split_gap = 0;
};

double gap(int64_t best, int64_t bound) {
  return static_cast<double>(best) / static_cast<double>(std::max<int64_t>(1, bound)) - 1;
}

void expect_bound(const Graph& graph, Record& record) {
  const int64_t plain = baseline(graph).peak.count();
  int64_t before = INT64_MAX;
  for (int64_t budget = 0; budget <= plain; ++budget) {
    SCOPED_TRACE("budget " + std::to_string(budget));
    const internal::bound::GraphBound bound = bound_of(graph, budget);
    const std::optional<int64_t> best = least_time_of_any_plan(graph, budget);
    ASSERT_LE(bound.time.count(), before) << "more memory raises the bound";
    if (bound.least_peak <= Bytes(budget)) before = bound.time.count();
    if (!best) {
      ++record.infeasible;
      record.refused += bound.least_peak > Bytes(budget);
      continue;
    }
    ASSERT_LE(bound.least_peak.count(), budget);
    ASSERT_LE(bound.time.count(), *best);
    ++record.asked;
    record.exact += bound.time.count() == *best;
    record.gap += gap(*best, bound.time.count());
    const int64_t split = split_bound_of(graph, budget);
    ASSERT_GE(split, bound.time.count());
    ASSERT_LE(split, *best);
    record.exact_split += split == *best;
    record.split_gap += gap(*best, split);
  }
}

void print(const std::string& name, const Record& record) {
  const auto asked = static_cast<double>(std::max<int64_t>(1, record.asked));
  std::cout << name << ": equal to the optimum at " << record.exact << " of " << record.asked
            << " budgets, mean gap " << 100 * record.gap / asked << " %; with cases "
            << record.exact_split << ", " << 100 * record.split_gap / asked << " %; proves "
            << record.refused << " of " << record.infeasible << " budgets infeasible\n";
}

class GraphBound : public ::testing::TestWithParam<GraphFamily> {};

TEST_P(GraphBound, IsNeverAboveTheLeastTimeOfAnyPlan) {
  Record record;
  for_graphs(GetParam(),
             [&](const Graph& graph, std::mt19937_64&) { expect_bound(graph, record); });
  print(GetParam().name, record);
}

INSTANTIATE_TEST_SUITE_P(Families, GraphBound, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

// The choice has three realizations. The backward of the first one reads X. The backwards of the
// others read what these made of X: p1, or p2. The realization with p2 also makes v again, which is
// needed for certain. So the bytes of p2 are counted for v, and not as the place of X.
TEST(GraphBoundOfChoices, APlaceThatIsNeededAnywayIsCountedOnce) {
  const Graph graph = parse_graph(R"(
{"format": "reprise.graph", "version": 1, "name": "two places", "values": [
  {"id": "x", "bytes": 0, "kind": "input"}, {"id": "X", "bytes": 100, "kind": "activation"},
  {"id": "p1", "bytes": 50, "kind": "saved"}, {"id": "p2", "bytes": 60, "kind": "saved"},
  {"id": "v", "bytes": 500, "kind": "activation"}, {"id": "l", "bytes": 0, "kind": "gradient"},
  {"id": "g", "bytes": 0, "kind": "gradient"}, {"id": "r", "bytes": 0, "kind": "gradient"}
], "ops": [
  {"id": "f", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["x"], "writes": ["X"]}], "once": true},
  {"id": "o0", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["x"], "writes": ["v"]}], "once": true},
  {"id": "a1", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["X"], "writes": ["p1"]}]},
  {"id": "a2", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["X"], "writes": ["p2"]}]},
  {"id": "o2", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["p2"], "writes": ["v"]}]},
  {"id": "loss", "phase": "loss", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 1000, "reads": ["x"], "writes": ["l"]}]},
  {"id": "b0", "phase": "backward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["X"], "writes": ["g"]}]},
  {"id": "b1", "phase": "backward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["p1"], "writes": ["g"]}]},
  {"id": "b2", "phase": "backward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["p2"], "writes": ["g"]}]},
  {"id": "c", "phase": "backward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["g", "v"], "writes": ["r"]}]}
], "choices": [{"id": "ch", "realizations": [["b0"], ["a1", "b1"], ["a2", "o2", "b2"]]}], "results": ["r"]}
)");
  for (int64_t budget = 1000; budget < 1200; budget += 10) {
    SCOPED_TRACE(budget);
    const std::optional<int64_t> best = least_time_of_any_plan(graph, budget);
    if (!best) continue;
    const internal::bound::GraphBound bound = bound_of(graph, budget);
    EXPECT_LE(bound.least_peak.count(), budget);
    EXPECT_LE(bound.time.count(), *best);
  }
}

// o has two makers, of which a plan runs one. Both of them read c, so c was there: to make c again
// costs the time of its maker.
TEST(GraphBoundOfChoices, WhatAllMakersOfAValueReadWasThere) {
  const Graph graph = parse_graph(R"(
{"format": "reprise.graph", "version": 1, "name": "two makers", "values": [
  {"id": "x", "bytes": 0, "kind": "input"}, {"id": "c", "bytes": 40, "kind": "activation"},
  {"id": "o", "bytes": 40, "kind": "activation"}, {"id": "m", "bytes": 1, "kind": "saved"},
  {"id": "l", "bytes": 0, "kind": "gradient"}, {"id": "g", "bytes": 0, "kind": "gradient"}
], "ops": [
  {"id": "f", "phase": "forward", "variants": [{"name": "k", "ns": 10, "workspace_bytes": 0, "reads": ["x"], "writes": ["c"]}]},
  {"id": "n", "phase": "forward", "variants": [{"name": "k", "ns": 4, "workspace_bytes": 0, "reads": ["c"], "writes": ["o"]}]},
  {"id": "s", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["c"], "writes": ["m"]}], "once": true},
  {"id": "w", "phase": "forward", "variants": [{"name": "k", "ns": 2, "workspace_bytes": 0, "reads": ["c", "m"], "writes": ["o"]}]},
  {"id": "r", "phase": "forward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["o"], "writes": ["l"]}], "once": true},
  {"id": "loss", "phase": "loss", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 100, "reads": ["l"], "writes": []}]},
  {"id": "b", "phase": "backward", "variants": [{"name": "k", "ns": 1, "workspace_bytes": 0, "reads": ["o"], "writes": ["g"]}]}
], "choices": [{"id": "ch", "realizations": [["n"], ["s", "w"]]}], "results": ["g"]}
)");
  EXPECT_EQ(least_time_of_any_plan(graph, 101), 28);  // f and w again
  EXPECT_EQ(bound_of(graph, 101).time.count(), 28);
  EXPECT_EQ(bound_of(graph, 141).time.count(), 16);
}

// The first realization keeps h and a, or makes them again. The second one reads h alone and takes 3
// longer, which is less than to make a again. The third one reads neither and takes 11 longer. y was
// made before the loss. So h and a were made by then, too, if the plan makes them at all.
TEST(GraphBoundOfChoices, WhatARealizationDoesNotReadCostsItsExcess) {
  const Graph graph = parse_graph(R"(
{"format": "reprise.graph", "version": 1, "name": "by rows", "values": [
  {"id": "x", "bytes": 0, "kind": "input"}, {"id": "t", "bytes": 40, "kind": "activation"},
  {"id": "h", "bytes": 40, "kind": "activation"}, {"id": "a", "bytes": 40, "kind": "activation"},
  {"id": "y", "bytes": 1, "kind": "activation"}, {"id": "l", "bytes": 0, "kind": "gradient"},
  {"id": "g", "bytes": 0, "kind": "gradient"}
], "ops": [
  {"id": "f", "variants": [{"ns": 5, "reads": ["x"], "writes": ["t"]}]},
  {"id": "up", "variants": [{"ns": 10, "reads": ["t"], "writes": ["h"]}]},
  {"id": "act", "variants": [{"ns": 4, "reads": ["h"], "writes": ["a"]}]},
  {"id": "down", "variants": [{"ns": 10, "reads": ["a"], "writes": ["y"]}]},
  {"id": "rows2", "variants": [{"ns": 20, "reads": ["t"], "writes": ["h", "y"]}]},
  {"id": "rows3", "variants": [{"ns": 20, "reads": ["t"], "writes": ["y"]}]},
  {"id": "loss", "phase": "loss", "variants": [{"ns": 1, "workspace_bytes": 100, "reads": ["y"], "writes": ["l"]}]},
  {"id": "b", "phase": "backward", "variants": [{"ns": 10, "reads": ["l", "y", "h", "a"], "writes": ["g"]}]},
  {"id": "b2", "phase": "backward", "variants": [{"ns": 17, "reads": ["l", "y", "h"], "writes": ["g"]}]},
  {"id": "b3", "phase": "backward", "variants": [{"ns": 25, "reads": ["l", "y"], "writes": ["g"]}]}
], "choices": [{"id": "mlp", "realizations": [["up", "act", "down", "b"], ["rows2", "b2"], ["rows3", "b3"]]}], "results": ["g"]}
)");
  for (const auto& [budget, time] : {std::pair(101, 51), std::pair(141, 43), std::pair(181, 40)}) {
    SCOPED_TRACE(budget);
    EXPECT_EQ(least_time_of_any_plan(graph, budget), time);
    EXPECT_EQ(bound_of(graph, budget).time.count(), time);
  }
}

// Returns such a graph with random sizes and times. The other realizations read some of what the
// first one reads, or something that makes it, and may make again what the first one keeps.
Graph random_rows(std::mt19937_64& random) {
  const auto below = [&](uint64_t count) { return static_cast<int64_t>(random() % count); };
  const auto one_of = [&](const std::vector<std::string>& texts) {
    return texts[random() % texts.size()];
  };
  std::string text = R"({"format": "reprise.graph", "version": 1, "name": "rows", "values": [
    {"id": "x", "bytes": 0, "kind": "input"}, {"id": "l", "bytes": 0, "kind": "gradient"},
    {"id": "r", "bytes": 0, "kind": "gradient"}, {"id": "g", "bytes": 1, "kind": "gradient"})";
  for (const std::string id : {"t", "h", "i", "a", "y"}) {
    text += fmt::format(R"(, {{"id": "{}", "bytes": {}}})", id, 1 + below(5));
  }
  text += R"(], "ops": [)";
  const auto add = [&](const std::string& id, const std::string& phase, const std::string& reads,
                       const std::string& writes) {
    text += fmt::format(
        R"({{"id": "{}", "phase": "{}", "variants": [{{"ns": {}, "workspace_bytes": {}, "reads": [{}], "writes": [{}]}}]}},)",
        id, phase, below(8), below(4), reads, writes);
  };
  add("f", "forward", R"("x")", R"("t")");
  add("up", "forward", R"("t")", R"("h")");
  add("bias", "forward", R"("h")", R"("i")");
  add("act", "forward", R"("i")", R"("a")");
  add("down", "forward", R"("a")", R"("y")");
  add("rows2", "forward", R"("t")",
      one_of({R"("h", "y")", R"("h", "i", "y")", R"("a", "h", "y")"}));
  add("rows3", "forward", R"("t")", R"("y")");
  add("loss", "loss", R"("y")", R"("l")");
  const std::string base = one_of({"", R"(, "t")"});
  add("b", "backward", R"("l", "i", "a")" + base, R"("g")");
  add("b2", "backward", R"("l", "h")" + base, R"("g")");
  add("b3", "backward", R"("l")" + base, R"("g")");
  add("end", "backward", one_of({R"("g")", R"("g", "t")", R"("g", "y")"}), R"("r")");
  text.back() = ']';
  text += R"(, "choices": [{"id": "c", "realizations": [["up", "bias", "act", "down", "b"],
    ["rows2", "b2"], ["rows3", "b3"]]}], "results": ["r"]})";
  return parse_graph(text);
}

TEST(GraphBoundOfChoices, IsNeverAboveWhereRealizationsMakeAgainWhatOthersRead) {
  std::mt19937_64 random(7);
  Record record;
  for (int number = 0; number < test_scale(150) && !HasFailure(); ++number) {
    const Graph graph = random_rows(random);
    SCOPED_TRACE(describe(graph));
    expect_bound(graph, record);
  }
  print("rows", record);
}

// v is live at D, which says nothing about A, which is before D: v is made for the first time in
// between.
TEST(GraphBoundOfCases, WhatALaterOpForcesHasNotRunAtAnEarlierOne) {
  const Graph graph = parse_graph(R"(
{"format": "reprise.graph", "version": 1, "name": "later", "values": [
  {"id": "x", "bytes": 0, "kind": "input"}, {"id": "y", "bytes": 10, "kind": "activation"},
  {"id": "v", "bytes": 1, "kind": "activation"}, {"id": "q", "bytes": 10, "kind": "activation"},
  {"id": "s", "bytes": 10, "kind": "activation"}, {"id": "p", "bytes": 0, "kind": "gradient"},
  {"id": "a", "bytes": 0, "kind": "gradient"}, {"id": "c", "bytes": 0, "kind": "gradient"},
  {"id": "d", "bytes": 0, "kind": "gradient"}, {"id": "g", "bytes": 0, "kind": "gradient"},
  {"id": "h", "bytes": 0, "kind": "gradient"}, {"id": "r", "bytes": 0, "kind": "gradient"}
], "ops": [
  {"id": "Y", "phase": "forward", "variants": [{"name": "k", "ns": 7, "workspace_bytes": 0, "reads": ["x"], "writes": ["y"]}]},
  {"id": "M", "phase": "forward", "variants": [{"name": "k", "ns": 100, "workspace_bytes": 0, "reads": ["y"], "writes": ["v"]}]},
  {"id": "Q", "phase": "forward", "variants": [{"name": "k", "ns": 20, "workspace_bytes": 0, "reads": ["x"], "writes": ["q"]}]},
  {"id": "S", "phase": "forward", "variants": [{"name": "k", "ns": 3, "workspace_bytes": 0, "reads": ["x"], "writes": ["s"]}]},
  {"id": "P", "phase": "loss", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["y"], "writes": ["p"]}]},
  {"id": "A", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 100, "reads": ["p"], "writes": ["a"]}]},
  {"id": "C", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["a", "v", "q", "s"], "writes": ["c"]}]},
  {"id": "D", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 99, "reads": ["c"], "writes": ["d"]}]},
  {"id": "G", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["d", "q"], "writes": ["g"]}]},
  {"id": "X", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 99, "reads": ["g"], "writes": ["h"]}]},
  {"id": "E", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["h", "v", "s"], "writes": ["r"]}]}
], "results": ["r"]}
)");
  const auto runs = {"Y", "P", "A", "Y", "M", "Q", "S", "C", "D", "Q", "G", "X", "S", "E"};
  int64_t time = 0;
  for (const std::string id : runs) {
    for (const Op& op : graph.ops) time += op.id == id ? op.variants[0].time.count() : 0;
  }
  EXPECT_EQ(time, 160);  // of a plan of 100 bytes
  EXPECT_LE(split_bound_of(graph, 100), time);
}

// This is the same case, but D is an op of a choice whose other op is before A. So v is live at one
// of the two.
TEST(GraphBoundOfCases, WhatALaterOpOfAChoiceForcesHasNotRunAtAnEarlierOne) {
  const Graph graph = parse_graph(R"(
{"format": "reprise.graph", "version": 1, "name": "span", "values": [
  {"id": "x", "bytes": 0, "kind": "input"}, {"id": "y1", "bytes": 10, "kind": "activation"},
  {"id": "y2", "bytes": 10, "kind": "activation"}, {"id": "u", "bytes": 10, "kind": "activation"},
  {"id": "v", "bytes": 10, "kind": "activation"}, {"id": "l", "bytes": 0, "kind": "gradient"},
  {"id": "g", "bytes": 0, "kind": "gradient"}, {"id": "q", "bytes": 0, "kind": "gradient"},
  {"id": "rr", "bytes": 0, "kind": "gradient"}, {"id": "s", "bytes": 0, "kind": "gradient"},
  {"id": "d", "bytes": 0, "kind": "gradient"}, {"id": "res", "bytes": 0, "kind": "gradient"}
], "ops": [
  {"id": "Y1", "phase": "forward", "variants": [{"name": "k", "ns": 50, "workspace_bytes": 0, "reads": ["x"], "writes": ["y1"]}]},
  {"id": "Y2", "phase": "forward", "variants": [{"name": "k", "ns": 50, "workspace_bytes": 0, "reads": ["x"], "writes": ["y2"]}]},
  {"id": "U", "phase": "forward", "variants": [{"name": "k", "ns": 20, "workspace_bytes": 0, "reads": ["x"], "writes": ["u"]}]},
  {"id": "M", "phase": "forward", "variants": [{"name": "k", "ns": 500, "workspace_bytes": 0, "reads": ["x"], "writes": ["v"]}]},
  {"id": "loss", "phase": "loss", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["y1", "y2", "u"], "writes": ["l"]}]},
  {"id": "A", "phase": "backward", "variants": [{"name": "k", "ns": 1000, "workspace_bytes": 0, "reads": ["l"], "writes": ["g"]}]},
  {"id": "Q", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 95, "reads": ["l"], "writes": ["q"]}]},
  {"id": "R", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["q", "v"], "writes": ["rr"]}]},
  {"id": "B", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 85, "reads": ["l"], "writes": ["g"]}]},
  {"id": "S", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["l", "u"], "writes": ["s"]}]},
  {"id": "D", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 85, "reads": ["g", "s"], "writes": ["d"]}]},
  {"id": "E", "phase": "backward", "variants": [{"name": "k", "ns": 0, "workspace_bytes": 0, "reads": ["d", "v", "y1", "y2"], "writes": ["res"]}]}
], "choices": [{"id": "c", "realizations": [["A"], ["B"]]}], "results": ["res"]}
)");
  const std::optional<int64_t> best = least_time_of_any_plan(graph, 100);
  ASSERT_EQ(best, 740);
  EXPECT_LE(split_bound_of(graph, 100), *best);
}

// Chains become graphs whose values are all wanted twice, with many variants an op.
TEST(GraphBoundOfChains, IsNeverAboveTheLeastTimeOfAnyPlan) {
  RandomChainOptions options;
  options.max_stages = 4;
  options.max_options = 2;
  Record record;
  std::mt19937_64 random(7);
  for (int number = 0; number < test_scale(40); ++number) {
    const Chain chain = random_chain(random, options);
    SCOPED_TRACE("seed 7, chain " + std::to_string(number) + ": " + describe(chain));
    expect_bound(lower(chain), record);
    if (HasFailure()) return;
  }
  print("chains", record);
}

Graph scaled(Graph graph, int64_t bytes, int64_t times) {
  graph.fixed = graph.fixed * bytes;
  for (Value& value : graph.values) value.bytes = value.bytes * bytes;
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      variant.time = variant.time * times;
      variant.workspace = variant.workspace * bytes;
    }
  }
  return graph;
}

TEST(GraphBoundLaws, HugeNumbersAreExact) {
  constexpr int64_t kBytes = int64_t{1} << 52, kTimes = (int64_t{1} << 50) + 7;
  for_graphs(graph_families().front(), [&](const Graph& graph, std::mt19937_64& random) {
    const auto plain = static_cast<uint64_t>(baseline(graph).peak.count());
    const auto budget = static_cast<int64_t>(random() % (plain + 1));
    const internal::bound::GraphBound small = bound_of(graph, budget);
    const internal::bound::GraphBound large =
        bound_of(scaled(graph, kBytes, kTimes), budget * kBytes);
    EXPECT_EQ(large.least_peak, small.least_peak * kBytes);
    // Both times are rounded up to whole nanoseconds.
    EXPECT_LE(large.time, small.time * kTimes);
    EXPECT_GT(large.time, (small.time - Nanos(1)) * kTimes);
  });
}

}  // namespace
}  // namespace reprise::testing
