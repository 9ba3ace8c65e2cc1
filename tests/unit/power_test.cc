// Tests powers: the short form, files with located errors, what ops draw, and the energy of a plan
// by hand.
#include "reprise/model/power.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "reprise/check/energy.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "support/build_graph.h"

namespace reprise::testing {
namespace {

constexpr const char* kText = R"({"format": "reprise.power", "version": 1,
 "static_mw": 20000, "dynamic_mw": 45000, "copy_pj_per_byte": 60,
 "ops": [{"op": "a", "dynamic_mw": 1}, {"op": "a", "variant": "slow", "dynamic_mw": 2}]})";

TEST(Power, IsReadAndWrittenBackEqual) {
  const Power power = parse_power(kText);
  EXPECT_EQ(power, (Power{20'000, 45'000, 60, {{"a", "", 1}, {"a", "slow", 2}}}));
  EXPECT_EQ(parse_power(to_json(power)), power);
}

void expect_power_error(const std::string& from, const std::string& to,
                        const std::string& pointer) {
  std::string text = kText;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  try {
    parse_power(text, "power.json");
    ADD_FAILURE() << "no error for " << to;
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().file, "power.json");
    EXPECT_EQ(error.where().pointer, pointer) << error.what();
    EXPECT_GT(error.where().line, 0);
  }
}

TEST(Power, MistakesAreLocated) {
  expect_power_error("20000", "-1", "/static_mw");
  expect_power_error("45000", "1000000000001", "/dynamic_mw");
  expect_power_error("60", "-60", "/copy_pj_per_byte");
  expect_power_error(R"("op": "a", "dynamic_mw": 1)", R"("op": "", "dynamic_mw": 1)", "/ops/0/op");
  expect_power_error(R"("dynamic_mw": 2)", R"("dynamic_mw": -2)", "/ops/1/dynamic_mw");
  expect_power_error(R"("variant": "slow", )", "", "/ops/1");
  expect_power_error(R"("version": 1)", R"("version": 2)", "/version");
}

TEST(Power, TheShortForm) {
  EXPECT_EQ(parse_watts("static=20W,dynamic=45.5W,copy=60pJ/B"), (Power{20'000, 45'500, 60, {}}));
  EXPECT_EQ(parse_watts("dynamic=0.3kW"), (Power{0, 300'000, 0, {}}));
  EXPECT_EQ(parse_watts("static=5mW,copy=1.5nJ/B"), (Power{5, 0, 1500, {}}));
  for (const char* text : {"", "static", "static=", "static=20", "static=-1W", "static=20W,",
                           "watts=20W", "static=1W,static=2W", "copy=1W", "static=1pJ/B",
                           "static=nanW", "static=infW", "dynamic=2000000kkW", "static=1e12W"}) {
    EXPECT_THROW(parse_watts(text), InputError) << text;
  }
}

// A value is made, moved to another memory and back, and read.
Graph two_ops() {
  Graph graph;
  const ValueIndex x = add_value(graph, "x", 8, ValueKind::kInput);
  const ValueIndex y = add_value(graph, "y", 100), z = add_value(graph, "z", 8);
  Variant slow = make_variant(50, {x}, {y});
  slow.name = "slow";
  add_op(graph, "a", {make_variant(10, {x}, {y}), slow});
  add_op(graph, "b", {make_variant(20, {y}, {z})}, Phase::kBackward);
  graph.results = {z};
  return graph;
}

TEST(Power, RowsOfVariantsWinOverRowsOfOps) {
  const Graph graph = two_ops();
  EXPECT_EQ(dynamic_power(graph, parse_power(kText)),
            (std::vector<std::vector<int64_t>>{{1, 2}, {45'000}}));
  const Power other_order{0, 7, 0, {{"a", "slow", 2}, {"a", "", 1}}};
  EXPECT_EQ(dynamic_power(graph, other_order), (std::vector<std::vector<int64_t>>{{1, 2}, {7}}));
  EXPECT_THROW(dynamic_power(graph, {0, 0, 0, {{"c", "", 1}}}), InputError);
  EXPECT_THROW(dynamic_power(graph, {0, 0, 0, {{"c", "slow", 1}}}), InputError);
  EXPECT_THROW(dynamic_power(graph, {0, 0, 0, {{"b", "slow", 1}}}), InputError);
}

TEST(Power, EnergyByHand) {
  const Graph graph = two_ops();
  const Power power{3, 5, 2, {{"a", "slow", 4}}};
  const Machine machine{{{"device"}, {"host"}},
                        {{0, 1, 1'000'000'000, Nanos(0), -1}, {1, 0, 1'000'000'000, Nanos(0), -1}}};
  const std::vector<Action> moving = {{ActionKind::kRun, "a", "slow"},
                                      {ActionKind::kCopy, "y", "", "device", "host"},
                                      {ActionKind::kWait, "y", "", "host"},
                                      {ActionKind::kFree, "y", ""},
                                      {ActionKind::kCopy, "y", "", "host", "device"},
                                      {ActionKind::kWait, "y", "", "device"},
                                      {ActionKind::kRun, "b", "default"}};
  const EnergyUse use = energy_of(graph, moving, power, machine);
  EXPECT_EQ(use.time, Nanos(50 + 100 + 100 + 20));  // The device waits for each copy.
  EXPECT_EQ(use.background, Picojoules(3 * 270));
  EXPECT_EQ(use.runs, Picojoules(50 * 4 + 20 * 5));
  EXPECT_EQ(use.copies, Picojoules(2 * 100 * 2));
  EXPECT_EQ(use.total(), Picojoules(810 + 300 + 400));
  const EnergyUse plain = baseline_energy(graph, power);
  EXPECT_EQ(plain.total(), Picojoules(30 * 8));
  Graph slow = graph;
  slow.ops[0].variants[0].time = Nanos(std::numeric_limits<int64_t>::max() / 2);
  EXPECT_THROW(baseline_energy(slow, power), InputError);
}

TEST(Power, AmountsForPeople) {
  EXPECT_EQ(format_energy(Picojoules(0)), "0 pJ");
  EXPECT_EQ(format_energy(Picojoules(999)), "999 pJ");
  EXPECT_EQ(format_energy(Picojoules(1500)), "1.50 nJ");
  EXPECT_EQ(format_energy(Picojoules(12'300'000'000'000)), "12.3 J");
  EXPECT_EQ(format_energy(Picojoules(450'000'000'000)), "450 mJ");
  EXPECT_EQ(format_power(20'000), "20W");
  EXPECT_EQ(format_power(1'500), "1.5W");
  EXPECT_EQ(format_energy(Picojoules(2'000'000'000'000'000)), "2.00 kJ");
}

}  // namespace
}  // namespace reprise::testing
