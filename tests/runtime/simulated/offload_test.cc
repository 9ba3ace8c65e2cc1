// Values of a chain that move from a device to host memory: the bits of plain training on the CPU, the
// predicted bytes of the device, copies that overlap, no missing synchronisation.
#include <tuple>

#include "device_models.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"

namespace reprise::runtime::testing {
namespace {

// A host that is so fast that moving always pays.
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

using Case = std::tuple<std::string, std::string, std::string>;  // model, planner, budget

class MovesToTheHost : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { sim::take_reports(); }
};

TEST_P(MovesToTheHost, WithTheBitsOfTheCpuAndTheBytesThatWerePredicted) {
  const auto& [name, planner, budget] = GetParam();
  // At the smallest budget the times that were measured decide between a move and a second run.
  const bool moves = planner == "offload_only" || budget != "least";
  const Tensors wanted = plain_result(name);
  for (const int index : {0, 1}) {
    const c10::Device device = sim::device(index);
    const DeviceModel model = make_device_model(name, device);
    const std::shared_ptr<Remat> chain = moving(model, planner);
    chain->set_budget(budget == "least" ? Budget(smallest(*chain, planner)) : Budget(budget));
    chain->plan_for({model.input});
    seed_device(device, 11);
    at::Tensor loss;
    const uint64_t queued = sim::counters().queued_copies;
    for (int repeat = 0; repeat < 2; ++repeat) {
      model.drop_gradients();
      loss = at::Tensor();
      loss = model.loss(chain->forward(model.input));
      loss.backward();
      const StepReport report = chain->last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
      EXPECT_LE(report.measured_peak, report.budget);
      if (moves) {
        EXPECT_GT(report.moved_out, Bytes(0));
      }
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
      model.loss(chain->forward(model.input)).backward();
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

}  // namespace
}  // namespace reprise::runtime::testing
