// Proves again what data/instances/manifest.json says of the stored instances: by the search for
// one budget, by the whole curve, and by another planner's bound.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/plan.h"

namespace reprise::testing {
namespace {

constexpr Nanos kPatience{600'000'000'000};

std::string folder() { return std::string(REPRISE_SOURCE_DIR) + "/data/instances/chains/"; }

nlohmann::json manifest() {
  std::ifstream file(folder() + "../manifest.json");
  return nlohmann::json::parse(file).at("instances");
}

Nanos best_within(const Frontier& curve, Bytes budget) {
  Nanos best;
  for (const FrontierPoint& point : curve.points) {
    if (point.budget <= budget) best = point.time;
  }
  return best;
}

TEST(Instances, AreAllInTheManifest) {
  std::set<std::string> listed, stored;
  for (const auto& row : manifest()) listed.insert(row.at("file").get<std::string>());
  for (const auto& file : std::filesystem::directory_iterator(folder())) {
    stored.insert(file.path().filename());
  }
  EXPECT_EQ(listed, stored);
}

TEST(Instances, HaveTheOptimaThatTheManifestSays) {
  for (const auto& row : manifest()) {
    const auto file = row.at("file").get<std::string>();
    SCOPED_TRACE(file);
    const Chain chain = load_chain(folder() + file);
    const Graph graph = lower(chain);
    for (const auto& [schedules, bytes] : row.at("smallest_budget_bytes").items()) {
      SCOPED_TRACE(schedules);
      const Frontier curve =
          frontier(chain, {.schedule_class = schedules, .time_limit = kPatience});
      ASSERT_EQ(curve.schedule_class, schedules);
      const Bytes smallest(bytes.get<int64_t>());
      EXPECT_EQ(curve.points.front().budget, smallest);
      const PlanResult refused = plan(
          chain,
          {.budget = smallest - Bytes(1), .schedule_class = schedules, .time_limit = kPatience});
      EXPECT_EQ(refused.termination, Termination::kInfeasible);
      EXPECT_EQ(refused.smallest_budget, smallest);
      for (const auto& optimum : row.at("optima")) {
        if (optimum.at("schedule_class") != schedules) continue;
        const Bytes budget(optimum.at("budget_bytes").get<int64_t>());
        SCOPED_TRACE(budget.count());
        const PlanResult result =
            plan(chain, {.budget = budget, .schedule_class = schedules, .time_limit = kPatience});
        ASSERT_EQ(result.termination, Termination::kOptimal);
        EXPECT_EQ(result.plan->time.count(), optimum.at("time_ns").get<int64_t>());
        EXPECT_EQ(result.plan->peak.count(), optimum.at("peak_bytes").get<int64_t>());
        EXPECT_EQ(result.plan->time, best_within(curve, budget));
        EXPECT_TRUE(verify(graph, *result.plan, budget).empty());
      }
    }
  }
}

// The other planner has a table that is rounded the other way. Its bound is never above the
// optimum, and its plan never below.
TEST(Instances, AgreeWithTheSlotTables) {
  for (const auto& row : manifest()) {
    const auto file = row.at("file").get<std::string>();
    SCOPED_TRACE(file);
    const Chain chain = load_chain(folder() + file);
    for (const auto& optimum : row.at("optima")) {
      if (optimum.at("schedule_class") != "persistent") continue;
      const int64_t best = optimum.at("time_ns").get<int64_t>();
      const PlanResult slots = plan(
          chain,
          {.budget = Bytes(optimum.at("budget_bytes").get<int64_t>()), .planner = "chain_slots"});
      ASSERT_TRUE(slots.plan.has_value());
      EXPECT_LE(slots.lower_bound.count(), best);
      EXPECT_GE(slots.plan->time.count(), best);
    }
  }
}

}  // namespace
}  // namespace reprise::testing
