// These tests run the operations of captured steps on several devices. They look for the bits of
// plain training on the first one, the predicted bytes of each memory, no missing synchronisation,
// and nothing left behind by a failure.
#include "runtime/graph/other_devices.h"

#include <ATen/DeviceAccelerator.h>

#include <random>
#include <tuple>

#include "device_models.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/micro_batches.h"
#include "support/random_devices.h"

namespace reprise::runtime::testing {
namespace {

constexpr Nanos kSoon{80'000'000};
constexpr int64_t kRandomState = 5056;  // bytes

// A step on a first device with others beside it.
struct SpreadStep {
  DeviceModel model;
  CapturedStep step;
  Tensors buffers;  // as they were at first

  SpreadStep(const std::string& name, c10::Device first, std::vector<c10::Device> others,
             Exactness allow = Exactness::kBitwise)
      : model(make_device_model(name, first)),
        step(model.step(), {model.input, model.target},
             {.measure = once(),
              .alternatives = {.allow = allow},
              .other_devices = std::move(others)}) {
    for (const at::Tensor& each : buffers_of(model.stages)) buffers.push_back(each.clone());
  }

  at::Tensor run() {
    model.drop_gradients();
    return step.run_all({model.input, model.target}).at(0);
  }

  // Two steps, as plain_result() makes them, with the bytes that were predicted in each memory.
  void expect_plain_result(const std::string& name) {
    seed_device(model.device, 11);
    const Tensors now = buffers_of(model.stages);
    for (size_t b = 0; b < now.size(); ++b) now[b].copy_(buffers[b]);
    at::Tensor loss;
    for (int repeat = 0; repeat < 2; ++repeat) {
      loss = at::Tensor();
      loss = run();
      const CapturedStepReport report = step.last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
      for (const OtherDeviceReport& other : report.other_devices) {
        // Random states of the first device that operations run with again lie in the host's
        // memory.
        const int64_t states = other.device == "cpu" ? 2 * kRandomState : 0;
        EXPECT_LE(other.predicted_peak.count(), other.measured_peak.count())
            << other.device << ", step " << repeat;
        EXPECT_GE(other.predicted_peak.count(), other.measured_peak.count() - states)
            << other.device << ", step " << repeat;
      }
    }
    EXPECT_EQ(first_difference(plain_result(name), everything(model, loss)), -1);
    EXPECT_EQ(reports(), "");
  }
};

// Puts the costs of a plan from elsewhere right, and takes it.
void take(CapturedStep& step, std::vector<Action> actions, const Machine& machine) {
  Plan plan = *step.planned().plan;
  plan.actions = std::move(actions);
  plan.termination = Termination::kFeasible;
  plan.lower_bound = Nanos(0);
  plan.machine_sha256.clear();
  const Timeline timeline = simulate(step.graph(), plan.actions, machine);
  plan.budget = plan.peak = timeline.peak;
  plan.time = timeline.time;
  step.use(plan, {.offload = {.machine = machine}});
}

int64_t runs_elsewhere(const CapturedStep& step) {
  int64_t runs = 0;
  for (const OtherDeviceReport& other : step.last_step().other_devices) runs += other.runs;
  return runs;
}

struct Devices {
  const char* name;
  c10::Device first;
  std::vector<c10::Device> others;
};

std::vector<Devices> all_devices() {
  const c10::Device one = sim::device(0), two = sim::device(1), cpu = c10::kCPU;
  return {{"TwoSimulated", one, {two}},
          {"CpuAndSimulated", cpu, {one}},
          {"SimulatedAndCpu", two, {cpu}},
          {"CpuAndTwoSimulated", cpu, {one, two}}};
}

class OtherDevices : public ::testing::TestWithParam<std::tuple<Devices, std::string>> {
 protected:
  void SetUp() override { sim::take_reports(); }
};

// Each operation runs on any device that has a variant of it, some run again on another one, and
// copies begin and end at any moment that is valid.
TEST_P(OtherDevices, WhateverRunsWhereverHasTheBitsAndTheBytes) {
  const auto& [devices, name] = GetParam();
  SpreadStep spread(name, devices.first, devices.others);
  spread.step.plan({.time_limit = Nanos(1)});
  const Machine machine = spread.step.machine();
  std::mt19937_64 random(5);
  for (int plan = 0; plan < 3; ++plan) {
    SCOPED_TRACE(plan);
    reprise::testing::RandomPlacing placing(random, spread.step.graph(), machine);
    take(spread.step, placing.make(), machine);
    spread.expect_plain_result(name);
    EXPECT_GT(runs_elsewhere(spread.step), 5);
    EXPECT_GT(spread.step.last_step().moved_out, Bytes(0));
    EXPECT_GT(spread.step.last_step().moved_in, Bytes(0));
  }
}

// The planner's own plans, for the measured costs and for others by which the second device is
// fast.
TEST_P(OtherDevices, PlansHaveTheBitsAndTheBytes) {
  const auto& [devices, name] = GetParam();
  SpreadStep spread(name, devices.first, devices.others);
  const PlanResult& measured = spread.step.plan({.budget = "100%", .time_limit = kSoon});
  EXPECT_EQ(measured.planner, "devices");
  spread.expect_plain_result(name);

  Machine machine = spread.step.machine();
  for (Channel& channel : machine.channels) {
    channel.bytes_per_second = 10'000'000'000;
    channel.latency = Nanos(100);
  }
  Graph fast_there = spread.step.graph();
  for (Op& op : fast_there.ops) {
    for (Variant& variant : op.variants) variant.time = Nanos(variant.at.empty() ? 80'000 : 10'000);
  }
  const PlanResult fast = plan(fast_there, {.time_limit = kSoon, .machine = machine});
  ASSERT_TRUE(fast.plan);
  take(spread.step, fast.plan->actions, machine);
  spread.expect_plain_result(name);
  EXPECT_GT(runs_elsewhere(spread.step), 10);
}

// Fails each allocation of a step on the second device in turn. Each time all is as before.
TEST(OtherDevicesFail, AFailedAllocationThereLeavesEverythingAsItWas) {
  SpreadStep spread("dense", sim::device(0), {sim::device(1)});
  spread.step.plan({.time_limit = Nanos(1)});
  std::mt19937_64 random(3);
  const Machine machine = spread.step.machine();
  take(spread.step, reprise::testing::RandomPlacing(random, spread.step.graph(), machine).make(),
       machine);
  const Tensors before = everything(spread.model, at::zeros({}));
  const int64_t there = memory_count(sim::device(1)).live;
  uint64_t failed = 0;
  for (bool passed = false; !passed; ++failed) {
    ASSERT_LT(failed, 2000u) << "no step has so many allocations";
    sim::fail_allocation(1, failed + 1);
    try {
      static_cast<void>(spread.step.run_all({spread.model.input, spread.model.target}));
      passed = true;
    } catch (const c10::OutOfMemoryError&) {
      EXPECT_EQ(first_difference(before, everything(spread.model, at::zeros({}))), -1)
          << "after the failure of allocation " << failed + 1;
      EXPECT_EQ(memory_count(sim::device(1)).live, there);
    }
  }
  EXPECT_GT(failed, 10u);
  sim::fail_allocation(1, 0);
  spread.model.drop_gradients();
  spread.expect_plain_result("dense");
}

// The first device holds less than plain training, and the second one no more than its capacity.
TEST(OtherDevicesHold, BudgetAndCapacities) {
  SpreadStep spread("dense", sim::device(0), {sim::device(1)});
  const Bytes plain = baseline(spread.step.graph()).peak;
  spread.step.plan({.time_limit = Nanos(1)});
  Machine machine = spread.step.machine();
  machine.memories[1].capacity = Bytes(600'000);
  const PlanResult& result =
      spread.step.plan({.budget = "90%", .time_limit = kSoon, .offload = {.machine = machine}});
  EXPECT_TRUE(verify(spread.step.graph(), *result.plan, result.budget, machine).empty());
  spread.expect_plain_result("dense");
  const CapturedStepReport report = spread.step.last_step();
  EXPECT_LT(report.measured_peak, plain);
  EXPECT_LE(report.other_devices.at(0).measured_peak, Bytes(600'000));
}

// Parameters that the caller replaces or views, and inputs that lie elsewhere in their storage.
TEST(OtherDevicesRead, WhereTheInputsLieNow) {
  sim::take_reports();
  SpreadStep spread("dense", sim::device(0), {sim::device(1)});
  spread.step.plan({.time_limit = Nanos(1)});
  std::mt19937_64 random(9);
  const Machine machine = spread.step.machine();
  take(spread.step, reprise::testing::RandomPlacing(random, spread.step.graph(), machine).make(),
       machine);
  const int64_t rows = spread.model.input.size(0);
  const at::Tensor larger = at::randn({2 * rows, 64}).to(sim::device(0));
  for (const int64_t begin : {int64_t{0}, int64_t{3}, rows}) {
    const at::Tensor batch = larger.narrow(0, begin, rows);
    spread.model.drop_gradients();
    const at::Tensor wanted = spread.model.step()({batch, spread.model.target}).at(0);
    const Tensors expected = everything(spread.model, wanted);
    spread.model.drop_gradients();
    const at::Tensor found = spread.step.run_all({batch, spread.model.target}).at(0);
    EXPECT_EQ(first_difference(expected, everything(spread.model, found)), -1) << begin;
    for (const at::Tensor& each : spread.model.parameters()) {
      const at::NoGradGuard no_grad;
      each.mul_(0.5);  // right behind the step, while its copies may be under way
    }
  }
  EXPECT_EQ(reports(), "");
}

TEST(OtherDevicesRun, InPartsOfTheBatchAndWithALog) {
  sim::take_reports();
  const DeviceModel model = make_device_model("dense", sim::device(0));
  const PartFunction part = [model](const Tensors& in, double share) {
    const at::Tensor output = run_plain(model.stages, {in.at(0)}).at(0);
    const at::Tensor loss = torch::cross_entropy_loss(output, in.at(1)) * share;
    loss.backward();
    return Tensors{loss};
  };
  const auto run = [&](std::vector<c10::Device> others) {
    MicroBatchOptions options{.parts = {2}};
    options.capture.measure = once();
    options.capture.other_devices = std::move(others);
    options.plan.time_limit = kSoon;
    MicroBatches found = micro_batches(part, {model.input, model.target}, options);
    model.drop_gradients();
    found.step.log_steps(1);
    const at::Tensor loss = found.step.run({model.input, model.target});
    const Tensors all = everything(model, loss);
    const std::optional<RunLog> log = found.step.run_log();
    EXPECT_EQ(log.value().measured.peak, found.step.last_step().measured_peak);
    return std::pair(all, found.step.planned().planner);
  };
  const auto [wanted, one] = run({});
  const auto [found, planner] = run({sim::device(1)});
  EXPECT_EQ(planner, "devices");
  EXPECT_EQ(first_difference(wanted, found), -1);
  EXPECT_EQ(reports(), "");
}

TEST(OtherDevicesRefuse, WhatDoesNotGoTogether) {
  const auto message = [](CaptureOptions options, const std::string& first = "sim:0") {
    const DeviceModel model = make_device_model("dense", c10::Device(first));
    try {
      CapturedStep step(model.step(), {model.input, model.target}, std::move(options));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const c10::Device two = sim::device(1);
  const auto names = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(names(message({.other_devices = {sim::device(0)}}), "sim:0 is named twice"));
  EXPECT_TRUE(names(message({.other_devices = {c10::Device("sim:7")}}), "no device sim:7"));
  EXPECT_TRUE(names(message({.other_devices = {c10::Device("cuda:0")}}), "no device cuda:0"));
  EXPECT_TRUE(names(message({.budget = "1 GiB", .other_devices = {two}}, "cpu"), "a budget"));

  SpreadStep spread("dense", sim::device(0), {two});
  spread.step.plan({.device_graph = true});
  EXPECT_NE(spread.step.last_step().no_device_graph, "");
  EXPECT_THROW(spread.step.plan({.offload = {.to = "host"}}), InputError);
  Machine machine = parse_offload("host=12GB/s");
  EXPECT_THROW(spread.step.plan({.offload = {.machine = machine}}), InputError);
}

TEST(OtherDevicesAgree, ByBitsOrNearlyOrNotAtAll) {
  using internal::graph::agreement;
  const at::Tensor a = at::tensor({1.0F, -2.0F, 0.5F});
  EXPECT_EQ(agreement(a, a.to(sim::device(0))), Exactness::kBitwise);
  EXPECT_EQ(agreement(a, a * (1 + 1e-6)), Exactness::kRounding);
  EXPECT_EQ(agreement(a, a * 1.01), Exactness::kApproximate);
  EXPECT_EQ(agreement(a.to(at::kBFloat16), (a * 1.01).to(at::kBFloat16)), Exactness::kRounding);
  EXPECT_EQ(agreement(at::tensor({1, 2}), at::tensor({1, 3})), Exactness::kApproximate);
  const at::Tensor endless = a / at::tensor({0.0F, 1.0F, 1.0F});
  EXPECT_EQ(agreement(endless, endless * at::tensor({1.0F, 1 + 1e-6F, 1.0F})),
            Exactness::kRounding);
  EXPECT_EQ(agreement(a, endless), Exactness::kApproximate);
}

// Two towers that meet in a loss. Their operations touch many times the bytes of what goes in and
// out.
struct Towers {
  at::Tensor x, first, second;

  explicit Towers(c10::Device device) {
    at::manual_seed(4);
    const auto made = [&] { return at::randn({256, 256}).to(device); };
    x = made();
    first = made().requires_grad_();
    second = made().requires_grad_();
  }
  static at::Tensor tower(at::Tensor h) {
    for (int layer = 0; layer < 2; ++layer)
      h = h.repeat({16, 1}).tanh().view({16, 256, 256}).mean(0);
    return h;
  }
  StepFunction step() const {
    return [*this](const Tensors& in) {
      const at::Tensor loss = (tower(in.at(0) * first) * tower(in.at(0) * second)).mean();
      loss.backward();
      return Tensors{loss};
    };
  }
};

// The simulated costs of the devices (sim::Speed).
Graph with_simulated_costs(Graph graph) {
  const sim::Speed speed;
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      Bytes bytes;
      for (const ValueIndex v : variant.reads) bytes += graph.values[v].bytes;
      for (const ValueIndex v : variant.writes) bytes += graph.values[v].bytes;
      variant.time =
          Nanos(speed.kernel_ns + static_cast<int64_t>(static_cast<double>(bytes.count()) * 1e9 /
                                                       speed.kernel_bytes_per_second));
    }
  }
  return graph;
}

// On the simulated clock, the step takes less time on two devices than on one.
TEST(OtherDevicesPay, OnTwoTowersByTheSimulatedClock) {
  const c10::Device one = sim::device(0), two = sim::device(1);
  const Towers towers(one);
  CapturedStep step(towers.step(), {towers.x},
                    {.lockstep = Lockstep::kNever, .measure = once(), .other_devices = {two}});
  step.plan({.time_limit = Nanos(1)});
  Machine machine = step.machine();
  for (Channel& channel : machine.channels) {
    channel.bytes_per_second = static_cast<int64_t>(sim::Speed().copy_bytes_per_second);
    channel.latency = Nanos(sim::Speed().copy_ns);
  }
  const Graph costs = with_simulated_costs(step.graph());
  const auto time_of = [&](const std::vector<Action>& actions) {
    take(step, actions, machine);
    Nanos time;
    for (int repeat = 0; repeat < 2; ++repeat) {
      towers.first.mutable_grad() = towers.second.mutable_grad() = at::Tensor();
      for (const c10::Device device : {one, two})
        at::accelerator::synchronizeDevice(device.index());
      const int64_t begun = sim::host_time_ns();
      static_cast<void>(step.run_all({towers.x}));
      for (const c10::Device device : {one, two})
        at::accelerator::synchronizeDevice(device.index());
      time = Nanos(sim::host_time_ns() - begun);
    }
    return time;
  };
  const Nanos alone = time_of(with_frees(costs, plain_runs(costs)));
  const Tensors expected = {towers.first.grad().cpu(), towers.second.grad().cpu()};
  const PlanResult spread = plan(costs, {.time_limit = Nanos(1'000'000'000), .machine = machine});
  const Nanos both = time_of(spread.plan->actions);
  EXPECT_EQ(first_difference(expected, {towers.first.grad().cpu(), towers.second.grad().cpu()}),
            -1);
  EXPECT_GT(runs_elsewhere(step), 5);
  EXPECT_LT(both.count(), alone.count() * 3 / 4);
  RecordProperty("planned_alone_ns", std::to_string(baseline(costs).time.count()));
  RecordProperty("alone_ns", std::to_string(alone.count()));
  RecordProperty("both_ns", std::to_string(both.count()));
  RecordProperty("planned_ns", std::to_string(spread.plan->time.count()));
  EXPECT_EQ(reports(), "");
}

INSTANTIATE_TEST_SUITE_P(Device, OtherDevices,
                         ::testing::Combine(::testing::ValuesIn(all_devices()),
                                            ::testing::ValuesIn(device_model_names())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::get<1>(test.param);
                         });

}  // namespace
}  // namespace reprise::runtime::testing
