// Where a step fits with evictions, it fits with a plan, whatever the plan says.
#include <cmath>
#include <limits>

#include "online_training.h"
#include "runtime/online/state.h"

namespace reprise::runtime::testing {
namespace {

using internal::online::OnlinePlan;
using internal::online::OnlinePlanOptions;
using internal::online::Trace;

OnlineOptions options_for(int64_t budget, int plan_after) {
  return {.budget = Bytes(budget),
          .plan_after = plan_after,
          .time_limit = Nanos(60'000'000),
          .planning_share = std::numeric_limits<double>::infinity()};
}

// --- Models at budgets near the smallest one that fits ---

struct TightRow {
  MakeSubject make;
  std::vector<double> shares;  // of plain training's peak
};

class TightBudgets : public OnlineTest, public ::testing::WithParamInterface<int> {
 protected:
  static TightRow row() {
    static const std::vector<TightRow> rows = {
        {[] { return resnet(2, 8, 32); }, {0.45, 0.48}},
        {[] { return gpt(0, 2, 64, 32); }, {0.42, 0.46}},
        {[] { return tree_lstm(32, 6); }, {0.56, 0.6}},
    };
    return rows[static_cast<size_t>(GetParam())];
  }
  static at::Tensor body(OnlineTraining& training) {
    training.subject.module->zero_grad();
    at::manual_seed(7);
    at::Tensor loss = training.subject.forward();
    loss.backward();
    return loss.detach();
  }
};
INSTANTIATE_TEST_SUITE_P(Each, TightBudgets, ::testing::Range(0, 3));

// Trains for some steps, and takes so many bytes more before the last two. Returns whether all steps
// fit. Those that do have the bits of plain training.
bool trains(const MakeSubject& make, const OnlineOptions& options, int64_t taken,
            const std::function<at::Tensor(OnlineTraining&)>& body,
            const std::vector<Bits>& expected, int64_t* planned) {
  OnlineTraining training(make);
  training.prepare(0);
  Online online(options);
  at::Tensor held;
  for (size_t step = 0; step < expected.size(); ++step) {
    if (step + 2 == expected.size() && taken > 0) held = at::empty({taken}, at::kByte);
    at::Tensor loss;
    try {
      loss = online.run([&] { return body(training); });
    } catch (const BudgetError&) {
      return false;
    }
    EXPECT_EQ(difference(expected[step], bits_of(training.subject, loss)), "");
    EXPECT_LE(online.last_step().measured_peak, online.last_step().budget);
    *planned += online.last_step().planned;
  }
  return true;
}

TEST_P(TightBudgets, WhatFitsWithEvictionsFitsWithAPlan) {
  const TightRow row = this->row();
  std::vector<Bits> expected;
  int64_t most = 0;
  {
    OnlineTraining training(row.make);
    training.prepare(0);
    for (int step = 0; step < 4; ++step) {
      reset_peak(c10::kCPU);
      const at::Tensor loss = body(training);
      most = std::max(most, peak());
      expected.push_back(bits_of(training.subject, loss));
    }
  }
  int64_t fitting = 0, planned = 0, unused = 0;
  for (const double share : row.shares) {
    // The plan knows nothing of bytes that are taken later on.
    for (const double taken : {0.0, 0.1}) {
      SCOPED_TRACE(fmt::format("{} of plain training's peak, and {} later", share, taken));
      const int64_t bytes = std::llround(taken * static_cast<double>(most));
      const int64_t budget = std::llround(share * static_cast<double>(most)) + bytes;
      if (!trains(row.make, options_for(budget, 0), bytes, body, expected, &unused)) continue;
      ++fitting;
      EXPECT_TRUE(trains(row.make, options_for(budget, 1), bytes, body, expected, &planned));
    }
  }
  EXPECT_GE(fitting, 2);
  EXPECT_EQ(unused, 0);
  EXPECT_GT(planned, 0);
}

// --- A plan that holds all that the step makes ---

constexpr int64_t kManyTight = 1 << 16;  // elements
constexpr int64_t kTightBytes = 4 * kManyTight;

TEST_F(OnlineTest, AStepGivesItsPlanUpBeforeItRunsOutOfMemory) {
  int64_t plans = 0;
  std::vector<Bytes> reserves;
  const auto holds_all = [&](const Trace& trace, const OnlinePlanOptions& options, std::string&) {
    ++plans;
    reserves.push_back(options.reserve);
    OnlinePlan plan;
    plan.trace = trace;
    plan.before.assign(trace.calls.size() + 2, 0);
    plan.outlives.assign(trace.values.size(), true);
    return std::optional(std::move(plan));
  };
  const at::Tensor ones = at::ones({kManyTight});
  Online online(
      std::make_unique<Online::State>(options_for(live() + 4 * kTightBytes, 1), holds_all));
  at::Generator mine = at::detail::createCPUGenerator(7);
  std::vector<OnlineReport> reports;
  std::vector<float> numbers;
  for (int step = 0; step < 6; ++step) {
    mine.set_current_seed(7);
    const float number = online.run([&] {
      const at::Tensor x = ones * 3;
      at::empty({4 * kManyTight});  // so that something has to be evicted
      float sum = x.sum().item<float>();
      // They cannot be made again, and the program lets go of them.
      for (int n = 0; n < 6; ++n) sum += at::rand({kManyTight}, mine).sum().item<float>();
      return sum;
    });
    numbers.push_back(number);
    reports.push_back(online.last_step());
    EXPECT_LE(reports.back().measured_peak, reports.back().budget);
  }
  EXPECT_EQ(std::vector<float>(6, numbers[0]), numbers);
  EXPECT_EQ(reports[0].why_not_planned, "these operations were not seen before");
  for (const int step : {1, 2, 3}) {
    const OnlineReport& report = reports[static_cast<size_t>(step)];
    EXPECT_FALSE(report.planned);
    EXPECT_GT(report.matched_calls, 0);
    EXPECT_NE(report.why_not_planned.find("the memory of the plan did not suffice"),
              std::string::npos)
        << report.why_not_planned;
  }
  // It was planned three times, with less memory each time, and then no more.
  EXPECT_EQ(plans, 3);
  EXPECT_TRUE(std::is_sorted(reserves.begin(), reserves.end()) && reserves[0] < reserves[2]);
  EXPECT_EQ(reports[5].matched_calls, 0);
  EXPECT_EQ(reports[5].why_not_planned, "the memory of the plan did not suffice");
}

}  // namespace
}  // namespace reprise::runtime::testing
