// Checks the runtime's promises on a device: the bits of plain training on the CPU, the predicted
// bytes, no missing synchronisation, and nothing left behind by a failure.
#include <c10/core/CachingDeviceAllocator.h>

#include <tuple>

#include "device_models.h"

namespace reprise::runtime::testing {
namespace {

const std::vector<std::string> budgets = {"100%", "85%", "least"};

// Both modes behind one face.
struct Planned {
  DeviceModel model;
  std::shared_ptr<Remat> chain;
  std::shared_ptr<CapturedStep> graph;

  void plan(const std::string& budget, bool arena = true) {
    if (chain) {
      chain->set_budget(budget == "least" ? Budget(smallest_budget(*chain)) : Budget(budget));
      chain->plan_for({model.input});
    } else {
      graph->plan({.budget = budget == "least" ? "75%" : budget,
                   .time_limit = Nanos(200'000'000),
                   .arena = arena});
    }
  }
  at::Tensor run() {
    if (graph) return graph->run_all({model.input, model.target}).at(0);
    at::Tensor loss = model.loss(chain->forward(model.input));
    loss.backward();
    return loss;
  }
  Bytes predicted() const {
    return chain ? chain->last_step().predicted_peak : graph->last_step().predicted_peak;
  }
  Bytes measured() const {
    return chain ? chain->last_step().measured_peak : graph->last_step().measured_peak;
  }
  Bytes budget() const { return chain ? chain->last_step().budget : graph->last_step().budget; }
};

Planned planned(const std::string& mode, const std::string& name, c10::Device device) {
  Planned made{make_device_model(name, device), nullptr, nullptr};
  if (mode == "chain") {
    made.chain = remat(made.model.stages, {made.model.input},
                       {.loss = made.model.loss_of_any_batch(), .measure = once()});
  } else {
    made.graph = std::make_shared<CapturedStep>(made.model.step(),
                                                Tensors{made.model.input, made.model.target},
                                                CaptureOptions{.measure = once()});
  }
  return made;
}

using ModeCase = std::tuple<std::string, std::string, std::string>;  // mode, model, budget

class Modes : public ::testing::TestWithParam<ModeCase> {
 protected:
  void SetUp() override { sim::take_reports(); }
};

TEST_P(Modes, HaveTheBitsOfTheCpuAndTheBytesThatWerePredicted) {
  const auto& [mode, name, budget] = GetParam();
  const Tensors wanted = plain_result(name);
  for (const int index : {0, 1}) {
    const c10::Device device = sim::device(index);
    Planned step = planned(mode, name, device);
    step.plan(budget);
    seed_device(device, 11);
    at::Tensor loss;
    for (int repeat = 0; repeat < 2; ++repeat) {
      step.model.drop_gradients();
      loss = at::Tensor();
      loss = step.run();
      EXPECT_EQ(step.predicted().count(), step.measured().count()) << "step " << repeat;
      EXPECT_LE(step.measured(), step.budget());
    }
    EXPECT_EQ(first_difference(wanted, everything(step.model, loss)), -1) << device;
    EXPECT_EQ(reports(), "");
  }
}

// Fails the first allocation of a step on the device, then the second one, until a step passes. Each
// time all is as before, so that the next step has the bits of one after which nothing failed.
class Faults : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Faults, AFailedAllocationOfTheDeviceLeavesEverythingAsItWas) {
  const auto& [mode, name] = GetParam();
  const c10::Device device = sim::device(0);
  Planned step = planned(mode, name, device);
  step.plan("85%", /*arena=*/false);  // A step in an arena asks the device for nothing.
  seed_device(device, 11);
  const Tensors before = everything(step.model, at::zeros({}));
  uint64_t failed = 0;
  for (bool passed = false; !passed; ++failed) {
    ASSERT_LT(failed, 2000u) << "no step has so many allocations";
    sim::fail_allocation(0, failed + 1);
    try {
      static_cast<void>(step.run());
      passed = true;
    } catch (const c10::OutOfMemoryError&) {
      EXPECT_EQ(first_difference(before, everything(step.model, at::zeros({}))), -1)
          << "after the failure of allocation " << failed + 1;
    }
  }
  EXPECT_GT(failed, 10u);
  sim::fail_allocation(0, 0);
  // The last step passed. This step and another one are the two steps of plain training.
  step.model.drop_gradients();
  EXPECT_EQ(first_difference(plain_result(name), everything(step.model, step.run())), -1);
  EXPECT_EQ(reports(), "");
}

c10::CachingAllocator::Stat device_bytes(c10::Device device) {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .allocated_bytes[all];
}

// All memory of a step lies in one block of the device from the second run on, at the addresses of the
// run before, and the device's own statistics show that the budget holds.
TEST(ArenaOfADevice, ServesEveryRequestWithinTheBudget) {
  for (const std::string& name : device_model_names()) {
    const c10::Device device = sim::device(0);
    Planned step = planned("graph", name, device);
    step.plan("100%");
    seed_device(device, 11);
    at::Tensor loss;
    for (int repeat = 0; repeat < 2; ++repeat) {
      step.model.drop_gradients();
      loss = at::Tensor();
      loss = step.run();
    }
    EXPECT_EQ(first_difference(plain_result(name), everything(step.model, loss)), -1) << name;
    for (int repeat = 0; repeat < 3; ++repeat) {
      step.model.drop_gradients();
      loss = at::Tensor();
      c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
      loss = step.run();
      const CapturedStepReport report = step.graph->last_step();
      EXPECT_LE(device_bytes(device).peak, report.budget.count()) << name;
      EXPECT_GT(report.served, 10) << name;
      EXPECT_EQ(report.fallbacks, 0) << name;
      EXPECT_EQ(report.predicted_peak, report.measured_peak) << name;
    }
    EXPECT_EQ(reports(), "");
  }
}

// If the device has no block that is large enough, its own allocator serves the step.
TEST(ArenaOfADevice, IsLeftOutWhereTheDeviceHasNoBlockForIt) {
  const std::string name = device_model_names().at(0);
  const c10::Device device = sim::device(0);
  Planned step = planned("graph", name, device);
  step.plan("100%");
  seed_device(device, 11);
  at::Tensor loss;
  for (int repeat = 0; repeat < 2; ++repeat) {
    step.model.drop_gradients();
    loss = at::Tensor();
    sim::fail_allocation(0, 1);  // the block for the recorded run, and the arena
    loss = step.run();
    sim::fail_allocation(0, 0);
  }
  EXPECT_EQ(first_difference(plain_result(name), everything(step.model, loss)), -1);
  EXPECT_EQ(step.graph->last_step().served, 0);
}

// A plan that is replaced leaves nothing behind, although the caller holds gradients in its arena.
TEST(ArenaOfADevice, EndsWithItsPlan) {
  const c10::Device device = sim::device(0);
  Planned step = planned("graph", device_model_names().at(0), device);
  const auto live = [&] { return device_bytes(device).current; };
  step.plan("100%", /*arena=*/false);
  static_cast<void>(step.run());
  const int64_t before = live();
  step.plan("100%");
  for (int repeat = 0; repeat < 3; ++repeat) {
    step.model.drop_gradients();
    static_cast<void>(step.run());
  }
  EXPECT_GT(live(), before) << "the arena stays between runs";
  step.plan("100%", /*arena=*/false);
  EXPECT_EQ(live(), before);
}

INSTANTIATE_TEST_SUITE_P(Device, Faults,
                         ::testing::Combine(::testing::Values("chain", "graph"),
                                            ::testing::ValuesIn(device_model_names())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

INSTANTIATE_TEST_SUITE_P(Device, Modes,
                         ::testing::Combine(::testing::Values("chain", "graph"),
                                            ::testing::ValuesIn(device_model_names()),
                                            ::testing::ValuesIn(budgets)),
                         [](const auto& test) {
                           const std::string& budget = std::get<2>(test.param);
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param) + "_" +
                                  (budget == "least" ? budget
                                                     : budget.substr(0, budget.size() - 1));
                         });

}  // namespace
}  // namespace reprise::runtime::testing
