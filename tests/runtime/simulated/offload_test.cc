// Tests values of chains and of captured steps that move from a device to host memory: the bits of
// plain training on the CPU, the predicted bytes of the device, copies that overlap, no missing
// synchronisation.
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "device_models.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "runtime/transfer/host.h"

namespace reprise::runtime::testing {
namespace {

// Returns a host that is so fast that moving always pays.
Machine fast_host() {
  Machine machine = parse_offload("host=1000GB/s");
  for (Channel& channel : machine.channels) channel.latency = Nanos(0);
  return machine;
}

std::shared_ptr<Remat> moving(const DeviceModel& model, const std::string& planner) {
  return remat(model.stages, {model.input},
               {.planner = planner,
                .loss = model.loss_of_any_batch(),
                .measure = once(),
                .offload = {.to = "host", .machine = fast_host()}});
}

Bytes smallest(const Remat& chain, const std::string& planner) {
  const PlanResult none = plan(chain.chain(), {.budget = chain.chain().fixed,
                                               .planner = planner,
                                               .time_limit = Nanos(300'000'000),
                                               .machine = chain.machine()});
  return none.smallest_budget.value();
}

using OffloadCase = std::tuple<std::string, std::string, std::string>;  // model, planner, budget

bool runs_again(const Plan& plan) {
  std::set<std::string> seen;
  return std::any_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
    return action.kind == ActionKind::kRun && !seen.insert(action.id).second;
  });
}

TEST(LinkToTheHost, TakesTurnsIfBothDirectionsAtOnceTakeAsLongAsOneAfterTheOther) {
  using internal::transfer::machine_of;
  const auto channels = [](int64_t out, int64_t in, int64_t both) {
    return machine_of(1'000, {Nanos(out), Nanos(in), Nanos(both)}).channels;
  };
  // Each direction has a link of its own.
  EXPECT_EQ(channels(100, 200, 210)[0].bytes_per_second, 4'761'904'761);
  EXPECT_EQ(channels(100, 100, 100)[1].bytes_per_second, 10'000'000'000);
  EXPECT_EQ(channels(100, 200, 240)[1].shares, -1);
  // They take turns, each at its own speed.
  EXPECT_EQ(channels(100, 200, 290)[1].shares, 0);
  EXPECT_EQ(channels(100, 200, 290)[0].bytes_per_second, 10'000'000'000);
  EXPECT_EQ(channels(100, 200, 290)[1].bytes_per_second, 5'000'000'000);
}

class MovesToTheHost : public ::testing::TestWithParam<OffloadCase> {
 protected:
  void SetUp() override { sim::take_reports(); }
};

TEST_P(MovesToTheHost, WithTheBitsOfTheCpuAndTheBytesThatWerePredicted) {
  const auto& [name, planner, budget] = GetParam();
  const Tensors wanted = plain_result(name);
  for (const int index : {0, 1}) {
    const c10::Device device = sim::device(index);
    const DeviceModel model = make_device_model(name, device);
    const std::shared_ptr<Remat> chain = moving(model, planner);
    chain->set_budget(budget == "least" ? Budget(smallest(*chain, planner)) : Budget(budget));
    chain->plan_for({model.input});
    // At the smallest budget, a plan that moves nothing must save its bytes by second runs.
    const bool again = planner == "levels" && budget == "least" && runs_again(*chain->plan().plan);
    seed_device(device, 11);
    at::Tensor loss;
    const uint64_t queued = sim::counters().queued_copies;
    bool moves = false;
    for (int repeat = 0; repeat < 2; ++repeat) {
      model.drop_gradients();
      loss = at::Tensor();
      loss = model.loss(chain->forward(model.input));
      loss.backward();
      const StepReport report = chain->last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_TRUE(report.moved_out > Bytes(0) || again);
      moves = moves || report.moved_out > Bytes(0);
      EXPECT_GE(report.moved_out, report.moved_in);
    }
    if (moves) {
      EXPECT_GT(sim::counters().queued_copies, queued) << "the copies held up the host";
    }
    EXPECT_EQ(first_difference(wanted, everything(model, loss)), -1) << device;
    EXPECT_EQ(reports(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Device, MovesToTheHost,
                         ::testing::Combine(::testing::ValuesIn(device_model_names()),
                                            ::testing::Values("levels", "offload_only"),
                                            ::testing::Values("80%", "least")),
                         [](const auto& test) {
                           const std::string& budget = std::get<2>(test.param);
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param) + "_" +
                                  (budget == "least" ? budget : "80");
                         });

// Without alternatives, values move or operations run again below plain training's peak.
CapturedStep captured(const DeviceModel& model, const StepFunction& step) {
  CaptureOptions options{.measure = once()};
  for (const AlternativeInfo& info : alternatives()) {
    options.alternatives.without.push_back(info.name);
  }
  return CapturedStep(step, {model.input, model.target}, std::move(options));
}

StepPlanOptions moving_plan(Budget budget, bool arena) {
  return {.budget = budget,
          .time_limit = Nanos(200'000'000),
          .arena = arena,
          .offload = {.to = "host", .machine = fast_host()}};
}

// Returns a budget near the smallest one that a search finds with the host.
Bytes tight_budget(CapturedStep& step) {
  const Baseline plain = step.plan(moving_plan({}, false)).baseline;
  const PlanResult none = step.try_plan(moving_plan(step.graph().fixed, false));
  return Bytes((2 * none.smallest_budget.value().count() + plain.peak.count()) / 3);
}

class CapturedMovesToTheHost : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override { sim::take_reports(); }
};

TEST_P(CapturedMovesToTheHost, WithTheBitsOfTheCpuAndTheBytesThatWerePredicted) {
  const auto& [name, arena] = GetParam();
  const Tensors wanted = plain_result(name);
  for (const int index : {0, 1}) {
    const c10::Device device = sim::device(index);
    const DeviceModel model = make_device_model(name, device);
    CapturedStep step = captured(model, model.step());
    step.plan(moving_plan(tight_budget(step), arena));
    seed_device(device, 11);
    at::Tensor loss;
    const uint64_t queued = sim::counters().queued_copies;
    for (int repeat = 0; repeat < 2; ++repeat) {
      model.drop_gradients();
      loss = at::Tensor();
      loss = step.run({model.input, model.target});
      const CapturedStepReport report = step.last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_GT(report.moved_out, Bytes(0));
      EXPECT_GE(report.moved_in, report.moved_out);
    }
    EXPECT_GT(sim::counters().queued_copies, queued) << "the copies held up the host";
    EXPECT_EQ(first_difference(wanted, everything(model, loss)), -1) << device;
    EXPECT_EQ(reports(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Device, CapturedMovesToTheHost,
                         ::testing::Combine(::testing::ValuesIn(device_model_names()),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) ? "_arena" : "_heap");
                         });

// Freezes all weights of a page or more, but for the last ones. Returns those that are left.
Tensors freeze(const DeviceModel& model) {
  Tensors left;
  const Tensors all = model.parameters();
  for (size_t p = 0; p < all.size(); ++p) {
    if (p + 2 < all.size() && all[p].nbytes() >= 4096) {
      at::Tensor(all[p]).set_requires_grad(false);
    } else {
      left.push_back(all[p]);
    }
  }
  return left;
}

bool is_away(const at::Tensor& parameter) {
  try {
    parameter.cpu();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// Frozen weights, and with all weights trained inside the step weights and moments, lie in host memory
// between the steps.
TEST(HostMemory, KeepsParametersAndTheStateOfTheirOptimizer) {
  const c10::Device cpu = c10::kCPU;
  for (const bool frozen : {true, false}) {
    for (const bool arena : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", frozen, arena));
      sim::take_reports();
      const DeviceModel model = make_device_model("dense", sim::device(0));
      const DeviceModel plain = make_device_model("dense", cpu);
      const auto trained = [&](const DeviceModel& of) {
        return frozen ? freeze(of) : of.parameters();
      };
      torch::optim::AdamW far(trained(model), torch::optim::AdamWOptions(1e-2));
      torch::optim::AdamW near(trained(plain), torch::optim::AdamWOptions(1e-2));
      CaptureOptions options{.measure = once(), .optimizer = per_parameter(far)};
      for (const Stage& stage : model.stages) {
        if (stage.module) options.modules.push_back(stage.module);
      }
      for (const AlternativeInfo& info : alternatives()) {
        options.alternatives.without.push_back(info.name);
      }
      CapturedStep step(model.step(), {model.input, model.target}, std::move(options));
      StepPlanOptions planning = moving_plan({}, arena);
      planning.offload_parameters = true;
      planning.offload_optimizer = !frozen;
      step.plan(planning);
      planning.budget = tight_budget(step);
      step.plan(planning);
      for (int repeat = 0; repeat < 3; ++repeat) {
        step.run({model.input, model.target});
        plain.plain_loss().backward();
        near.step();
        near.zero_grad();
        const CapturedStepReport report = step.last_step();
        EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << repeat;
        EXPECT_LE(report.measured_peak, report.budget);
        EXPECT_GT(report.moved_in, Bytes(0));
      }
      EXPECT_TRUE(std::ranges::any_of(model.parameters(), is_away));
      step.fetch_parameters();
      Tensors here, there;
      for (const at::Tensor& each : model.parameters()) here.push_back(each.detach().cpu());
      for (const at::Tensor& each : plain.parameters()) there.push_back(each.detach());
      EXPECT_EQ(first_difference(there, here), -1);
      EXPECT_EQ(reports(), "");
    }
  }
}

// Values of a step that lie on another device than its first input stay there.
TEST(HostMemory, ValuesOnAnotherDeviceStayThere) {
  const c10::Device device = sim::device(0);
  const DeviceModel model = make_device_model("dense", device);
  const auto step_with_factor = [&](const Tensors& in) {
    at::Tensor factor = at::ones({64}).mul(0.5);  // on the host, and read behind everything
    const at::Tensor loss = model.plain_loss();
    loss.backward();
    factor = factor.sum() * 2;
    return Tensors{loss, factor, in[0].sum()};
  };
  CapturedStep step = captured(model, step_with_factor);
  step.plan(moving_plan({}, false));
  const Graph& graph = step.graph();
  Plan plan = *step.planned().plan;
  // The first value of the step is the one on the host. It goes, and comes back at once.
  const auto written = [&](const Action& action) {
    return action.kind == ActionKind::kRun &&
           graph.ops[static_cast<size_t>(find_op(graph, action.id))].variants[0].writes.size() == 1;
  };
  const auto first = std::find_if(plan.actions.begin(), plan.actions.end(), written);
  ASSERT_NE(first, plan.actions.end());
  const ValueIndex value =
      graph.ops[static_cast<size_t>(find_op(graph, first->id))].variants[0].writes[0];
  const std::string id = graph.values[static_cast<size_t>(value)].id;
  std::vector<Action> actions(plan.actions.begin(), first + 1);
  actions.push_back({ActionKind::kCopy, id, "", "device", "host"});
  actions.push_back({ActionKind::kWait, id, "", "host"});
  actions.push_back({ActionKind::kFree, id, ""});
  actions.push_back({ActionKind::kCopy, id, "", "host", "device"});
  actions.push_back({ActionKind::kWait, id, "", "device"});
  actions.push_back({ActionKind::kFree, id, "", "host"});
  actions.insert(actions.end(), first + 1, plan.actions.end());
  plan.actions = actions;
  const Timeline timeline = simulate(graph, plan.actions, fast_host());
  plan.peak = timeline.peak;
  plan.time = timeline.time;
  plan.termination = Termination::kFeasible;
  step.use(plan, moving_plan({}, false));
  model.drop_gradients();
  const Tensors results = step.run_all({model.input, model.target});
  EXPECT_EQ(results.at(1).item<float>(), 64);
  EXPECT_EQ(step.last_step().moved_out, Bytes(0));
}

TEST(HostMemory, IsNoMemoryBehindTheCpu) {
  const DeviceModel model = make_device_model("dense", c10::kCPU);
  try {
    static_cast<void>(moving(model, "levels")->plan_for({model.input}));
    FAIL() << "the CPU's own memory is no memory behind it";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("take a disk"), std::string::npos) << error.what();
  }
}

TEST(HostMemory, ADiskIsNoMemoryBehindADevice) {
  const DeviceModel model = make_device_model("dense", sim::device(0));
  try {
    static_cast<void>(remat(
        model.stages, {model.input},
        {.loss = model.loss_of_any_batch(), .measure = once(), .offload = {.to = "disk:/tmp"}}));
    FAIL() << "no disk serves this device";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("take \"host\""), std::string::npos) << error.what();
  }
}

// A step whose k-th allocation fails leaves all as it was, also while copies are under way.
TEST(HostMemory, AFailedAllocationLeavesEverythingAsItWas) {
  const c10::Device device = sim::device(0);
  const DeviceModel model = make_device_model("conv", device);
  const std::shared_ptr<Remat> chain = moving(model, "offload_only");
  chain->set_budget("80%");
  chain->plan_for({model.input});
  seed_device(device, 11);
  const Tensors before = everything(model, at::zeros({}));
  uint64_t failed = 0;
  for (bool passed = false; !passed; ++failed) {
    ASSERT_LT(failed, 2000u) << "no step has so many allocations";
    sim::fail_allocation(0, failed + 1);
    try {
      at::Tensor loss = model.loss(chain->forward(model.input));  // The output is gone by now.
      loss.backward();
      passed = true;
    } catch (const c10::OutOfMemoryError&) {
      EXPECT_EQ(first_difference(before, everything(model, at::zeros({}))), -1)
          << "after the failure of allocation " << failed + 1;
    }
  }
  EXPECT_GT(failed, 10u);
  sim::fail_allocation(0, 0);
  EXPECT_EQ(reports(), "");
}

TEST(HostMemory, AFailedAllocationOfACapturedStepLeavesEverythingAsItWas) {
  const c10::Device device = sim::device(0);
  const DeviceModel model = make_device_model("conv", device);
  CapturedStep step = captured(model, model.step());
  step.plan(moving_plan(tight_budget(step), /*arena=*/false));
  seed_device(device, 11);
  const Tensors before = everything(model, at::zeros({}));
  uint64_t failed = 0;
  for (bool passed = false; !passed; ++failed) {
    ASSERT_LT(failed, 2000u) << "no step has so many allocations";
    sim::fail_allocation(0, failed + 1);
    try {
      static_cast<void>(step.run({model.input, model.target}));
      passed = true;
    } catch (const c10::OutOfMemoryError&) {
      EXPECT_EQ(first_difference(before, everything(model, at::zeros({}))), -1)
          << "after the failure of allocation " << failed + 1;
    }
  }
  EXPECT_GT(failed, 10u);
  EXPECT_GT(step.last_step().moved_out, Bytes(0));
  sim::fail_allocation(0, 0);
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
