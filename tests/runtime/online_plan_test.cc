// Steps that repeat are planned: the same bits in the same budget, whatever the next step does.
#include "runtime/online/online_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "faulty_allocator.h"
#include "online_training.h"
#include "reprise/runtime/online.h"

namespace reprise::runtime::testing {
namespace {

using internal::online::OnlinePlan;
using internal::online::plan_step;
using internal::online::PlannedAction;
using internal::online::Trace;

OnlineOptions planned_from_the_start(Bytes budget) {
  return {.budget = budget,
          .plan_after = 1,
          .time_limit = Nanos(150'000'000),
          .planning_share = std::numeric_limits<double>::infinity()};
}

class PlannedModels : public OnlineTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Each, PlannedModels, ::testing::Range(0, 2));

TEST_P(PlannedModels, BitsOfPlainTrainingWithinTheBudget) {
  const std::vector<MakeSubject> makers = {[] { return resnet(2, 8, 32); },
                                           [] { return gpt(0, 2, 64, 32); }};
  const MakeSubject make = makers[static_cast<size_t>(GetParam())];
  constexpr int kSteps = 5;  // The first one makes the momenta, so the second is another step.
  std::vector<Bits> expected;
  int64_t most = 0;
  {
    OnlineTraining training(make);
    training.prepare(0);
    for (int step = 0; step < kSteps; ++step) {
      at::manual_seed(static_cast<uint64_t>(step));
      reset_peak(c10::kCPU);
      const at::Tensor loss = training.body();
      most = std::max(most, peak());
      expected.push_back(bits_of(training.subject, loss));
    }
  }
  for (const double share : {0.8, 0.7, 0.55}) {
    SCOPED_TRACE(share);
    OnlineTraining training(make);
    training.prepare(0);
    Online online(planned_from_the_start(Bytes(std::llround(share * static_cast<double>(most)))));
    int64_t planned = 0, evictions = 0;
    for (int step = 0; step < kSteps; ++step) {
      at::manual_seed(static_cast<uint64_t>(step));
      at::Tensor loss;
      ASSERT_NO_THROW(loss = online.run([&] { return training.body(); })) << step;
      ASSERT_EQ(difference(expected[static_cast<size_t>(step)], bits_of(training.subject, loss)),
                "")
          << "step " << step;
      const OnlineReport report = online.last_step();
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_EQ(report.planned, report.why_not_planned.empty()) << report.why_not_planned;
      if (!report.planned) continue;
      ++planned;
      evictions += report.evictions;
      EXPECT_EQ(report.matched_calls, report.calls);
      EXPECT_EQ(report.planned_calls, report.calls);
    }
    EXPECT_GE(planned, 1);
    EXPECT_GT(evictions, 0);
  }
}

// --- Steps with branches ---

// Applies some of its layers, in an order that the caller chooses for each step.
struct Branching : nn::Module {
  static constexpr int64_t kWidth = 64, kBatch = 512;
  std::vector<nn::Linear> layers;
  Branching() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x, const std::vector<size_t>& order) {
    for (const size_t layer : order) {
      x = at::dropout(at::gelu(at::layer_norm(layers[layer](x), {kWidth})), 0.1, true);
    }
    return x.square().mean();
  }
};

using Order = std::vector<size_t>;
const Order kFirst = {0, 1, 2, 3, 0, 1, 2, 3}, kSecond = {0, 1, 2, 3, 3, 2, 1, 0},
            kShort = {0, 1, 2, 3};

class BranchingTest : public OnlineTest {
 protected:
  // Makes a budget in which the longest branch is short of memory.
  static Bytes budget() {
    install_cpu_allocator();
    Branching net;
    const at::Tensor x = at::randn({Branching::kBatch, Branching::kWidth});
    reset_peak(c10::kCPU);
    net.forward(x, kFirst).backward();
    return Bytes(peak() * 6 / 10);
  }

  // Runs a branch online and compares it with plain training.
  OnlineReport run(Online& online, const Order& order) {
    Bits found[2];
    for (const bool plain : {true, false}) {
      net_.zero_grad();
      at::manual_seed(7);
      at::Tensor loss;
      const auto step = [&] {
        loss = net_.forward(x_, order);
        loss.backward();
      };
      if (plain) {
        step();
      } else {
        online.run(step);
      }
      Bits& bits = found[plain ? 0 : 1];
      put_bits(bits, "loss", loss);
      for (const auto& item : net_.named_parameters()) {
        put_bits(bits, item.key(), item.value().grad());
      }
      put_bits(bits, "random state", at::detail::getDefaultCPUGenerator().get_state());
    }
    net_.zero_grad();
    EXPECT_EQ(difference(found[0], found[1]), "");
    EXPECT_LE(online.last_step().measured_peak, online.last_step().budget);
    return online.last_step();
  }

  const Bytes budget_ = budget();
  Branching net_;
  const at::Tensor x_ = at::randn({Branching::kBatch, Branching::kWidth});
};

TEST_F(BranchingTest, EachBranchThatWasSeenIsPlanned) {
  Online online(planned_from_the_start(budget_));
  const OnlineReport first = run(online, kFirst);
  EXPECT_FALSE(first.planned);
  EXPECT_EQ(first.planned_calls, 0);
  EXPECT_GT(first.planning_time, Nanos());
  EXPECT_TRUE(run(online, kFirst).planned);
  // The other branch begins in the same way, and leaves the plan in the middle.
  const OnlineReport other = run(online, kSecond);
  EXPECT_FALSE(other.planned);
  EXPECT_GT(other.matched_calls, 10);
  EXPECT_LT(other.matched_calls, other.calls);
  EXPECT_NE(other.why_not_planned.find("is not the planned one"), std::string::npos)
      << other.why_not_planned;
  // From now on the step goes over from one plan to the other where the branches part.
  for (const Order& order : {kSecond, kFirst, kSecond, kFirst}) {
    const OnlineReport report = run(online, order);
    EXPECT_TRUE(report.planned) << report.why_not_planned;
    EXPECT_EQ(report.matched_calls, report.calls);
  }
}

TEST_F(BranchingTest, AShorterStepAndALongerOneLeaveThePlan) {
  Online online(planned_from_the_start(budget_));
  run(online, kFirst);
  bool stopped = false;
  try {  // A step that is over in the middle of its operations.
    online.run([&] {
      at::manual_seed(7);
      net_.forward(x_, kFirst);
    });
    stopped = true;
  } catch (const BudgetError&) {
  }
  ASSERT_TRUE(stopped);
  EXPECT_FALSE(online.last_step().planned);
  EXPECT_NE(online.last_step().why_not_planned.find("the step ends after"), std::string::npos);
  EXPECT_EQ(run(online, kFirst).why_not_planned, "");
  net_.zero_grad();
  at::manual_seed(7);
  online.run([&] {
    net_.forward(x_, kFirst).backward();
    return x_ + 1;
  });
  EXPECT_NE(online.last_step().why_not_planned.find("goes on behind"), std::string::npos);
  EXPECT_EQ(run(online, kFirst).why_not_planned, "");
}

TEST_F(BranchingTest, AsManyPlansAreKeptAsTheOptionSays) {
  OnlineOptions options = planned_from_the_start(budget_);
  options.plans = 1;
  Online online(options);
  run(online, kFirst);
  EXPECT_TRUE(run(online, kFirst).planned);
  run(online, kSecond);
  EXPECT_TRUE(run(online, kSecond).planned);
  EXPECT_FALSE(run(online, kFirst).planned);
}

TEST_F(BranchingTest, ATraceIsPlannedWhenItWasSeenOftenEnough) {
  OnlineOptions options = planned_from_the_start(budget_);
  options.plan_after = 3;
  Online online(options);
  for (const bool planned : {false, false, false, true}) {
    EXPECT_EQ(run(online, kFirst).planned, planned);
  }
  options.plan_after = 0;
  Online never(options);
  for (int step = 0; step < 3; ++step) {
    const OnlineReport report = run(never, kFirst);
    EXPECT_FALSE(report.planned);
    EXPECT_EQ(report.why_not_planned, "");
  }
}

TEST_F(BranchingTest, WithoutEvictionsThereIsNothingToPlan) {
  Online online(planned_from_the_start(Bytes(4 * budget_.count())));
  for (int step = 0; step < 2; ++step) {
    const OnlineReport report = run(online, kFirst);
    EXPECT_EQ(report.why_not_planned, "nothing had to be evicted");
    EXPECT_EQ(report.planning_time, Nanos());
  }
}

// The plan knows nothing of memory that is taken later on, so it is made anew.
TEST_F(BranchingTest, LessRoomThanPlannedIsMadeUpFor) {
  Online online(planned_from_the_start(budget_));
  run(online, kFirst);
  EXPECT_EQ(run(online, kFirst).unplanned_evictions, 0);
  const at::Tensor taken = at::zeros({2 * Branching::kBatch, Branching::kWidth});
  const OnlineReport short_of_memory = run(online, kFirst);
  EXPECT_TRUE(short_of_memory.planned);
  EXPECT_GT(short_of_memory.unplanned_evictions, 0);
  EXPECT_GT(short_of_memory.planning_time, Nanos());
  run(online, kFirst);
  EXPECT_LT(run(online, kFirst).unplanned_evictions, short_of_memory.unplanned_evictions);
}

// --- Failures ---

class PlannedFaults : public BranchingTest, public ::testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(Each, PlannedFaults, ::testing::Values(Fault::kBudget, Fault::kMachine));

// Each request of a planned step fails in turn, those of planned re-runs included.
TEST_P(PlannedFaults, EachRequestOfAPlannedStepMayFail) {
  const Order order = {0, 1, 2, 3};
  const Bytes budget(live() + (budget_.count() - live()) * 6 / 10);
  std::optional<Online> online;
  const int64_t level = live();
  FaultyAllocator allocator;
  int64_t failures = 0, came_through = 0;
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(fmt::format("request {}", k));
    // A plan is dropped when its memory did not suffice in a step that failed.
    if (!online || !run(*online, order).planned) {
      online.emplace(planned_from_the_start(budget));
      run(*online, order);
      ASSERT_TRUE(run(*online, order).planned);
    }
    at::manual_seed(7);
    allocator.arm(k, GetParam());
    bool threw = false;
    try {
      online->run([&] { net_.forward(x_, order).backward(); });
    } catch (const BudgetError&) {
      threw = true;
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    allocator.disarm();
    net_.zero_grad();
    if (!allocator.failed()) {
      EXPECT_FALSE(threw);
      break;
    }
    ++failures;
    came_through += !threw;
    EXPECT_EQ(live(), level);
    EXPECT_EQ(memory_limit(), std::nullopt);
  }
  EXPECT_GT(failures, 30);
  EXPECT_LT(came_through, failures);
}

// --- The plan of a trace that is written by hand ---

// Three forward calls in a row, a loss, and three calls of the backward, each of which reads what its
// forward call made. A value has 1,000 bytes; the second forward call is the dearest.
Trace a_chain() {
  Trace trace;
  const auto add = [&](std::vector<int32_t> reads, bool backward, double cost) {
    internal::online::TracedCall call;
    auto& lists = trace.values_of_calls;
    call.reads = static_cast<uint32_t>(lists.size());
    lists.insert(lists.end(), reads.begin(), reads.end());
    call.looked_at = call.made = static_cast<uint32_t>(lists.size());
    const auto made = static_cast<int32_t>(trace.values.size());
    lists.push_back(made);
    call.end = static_cast<uint32_t>(lists.size());
    trace.values.push_back({.bytes = 1024,
                            .counted = 1024,
                            .maker = static_cast<int32_t>(trace.calls.size())});
    call.values = static_cast<uint32_t>(trace.values.size());
    call.cost = cost;
    call.can_run_again = true;
    call.backward = backward;
    trace.calls.push_back(call);
    trace.prints.push_back(trace.calls.size());
  };
  trace.values.push_back({.bytes = 1024, .counted = 1024, .outside = true});  // value 0
  add({0}, false, 10);                                                        // makes 1
  add({1}, false, 90);                                                        // makes 2
  add({2}, false, 20);                                                        // makes 3
  add({3}, true, 5);                                                          // makes 4, from the loss
  add({4, 3, 2}, true, 5);                                                    // makes 5
  add({5, 2, 1}, true, 5);                                                    // makes 6
  trace.values.back().at_the_end = true;
  return trace;
}

// The fifth call needs its three operands and its result, so value 1 has to be gone by then. It is
// made again for the last call.
TEST(OnlinePlanTest, WhatIsCheapIsReleasedAndMadeAgain) {
  const Trace trace = a_chain();
  const auto plan_within = [&](int64_t values, std::string& why_not) {
    return plan_step(trace,
                     {.budget = Bytes(values * 1024),
                      .reserve = {},
                      .smallest = 1,
                      .time_limit = Nanos(100'000'000)},
                     why_not);
  };
  std::string why_not;
  const std::optional<OnlinePlan> all = plan_within(5, why_not);
  ASSERT_TRUE(all) << why_not;
  EXPECT_EQ(all->planned_cost, 0);
  const std::optional<OnlinePlan> plan = plan_within(4, why_not);
  ASSERT_TRUE(plan) << why_not;
  EXPECT_EQ(plan->planned_cost, 10);
  const auto before_last = plan->before_call(5);
  const auto again = std::find_if(before_last.begin(), before_last.end(), [](const auto& action) {
    return action.kind == PlannedAction::Kind::kRunAgain;
  });
  ASSERT_NE(again, before_last.end());
  EXPECT_EQ(again->of, 0);
  EXPECT_TRUE(again->stays);
  const auto released = std::find_if(
      plan->actions.begin(), plan->actions.begin() + plan->before[5], [](const auto& action) {
        return action.kind == PlannedAction::Kind::kRelease && action.of == 1;
      });
  ASSERT_LT(released - plan->actions.begin(), plan->before[5]);
  EXPECT_EQ(released->made_again_at, &*again - plan->actions.data());
  EXPECT_FALSE(plan_within(3, why_not));
  EXPECT_EQ(why_not, "no plan fits the budget");
}

}  // namespace
}  // namespace reprise::runtime::testing
