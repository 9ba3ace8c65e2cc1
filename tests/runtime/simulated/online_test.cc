// Online mode on a device has the bits of plain training on the CPU, and no request of a step is
// above its budget. An exception leaves all as it was.
#include <c10/core/CachingDeviceAllocator.h>

#include "device_models.h"
#include "reprise/runtime/online.h"
#include "reprise/runtime/train_step.h"

namespace reprise::runtime::testing {
namespace {

const c10::Device kDevice = sim::device(0);

// The most bytes that the device's own allocator has handed out at once since the last reset.
int64_t most_of_device() {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(kDevice.type())
      ->getDeviceStats(kDevice.index())
      .allocated_bytes[all]
      .peak;
}

at::Tensor plain_step(const DeviceModel& model) {
  model.drop_gradients();
  return model.step()({model.input, model.target}).at(0);
}

// A step that reads what it computes, and that goes on by it.
at::Tensor reading_step(const DeviceModel& model) {
  model.drop_gradients();
  at::Tensor loss = model.plain_loss();
  if (loss.gt(0).item<bool>()) loss = loss * 2;
  loss.backward();
  return loss;
}

using Step = at::Tensor (*)(const DeviceModel&);
constexpr int kCalls = 9;

// Returns all that each of so many steps leaves on the CPU.
std::vector<Tensors> plain_results(const std::string& name, Step step) {
  const DeviceModel model = make_device_model(name, c10::kCPU);
  seed_device(c10::kCPU, 11);
  std::vector<Tensors> all;
  for (int k = 0; k < kCalls; ++k) {
    all.push_back(everything(model, step(model)));
    for (at::Tensor& each : all.back()) each = each.defined() ? each.clone() : each;
  }
  return all;
}

// Returns the bytes above those that live between steps.
int64_t plain_need(const DeviceModel& model) {
  seed_device(kDevice, 11);
  plain_step(model);
  const int64_t before = memory_count(kDevice).live;
  reset_peak(kDevice);
  plain_step(model);
  return memory_count(kDevice).peak - before;
}

TEST(MemoryLimit, OfADeviceRefusesARequestAndNothingIsTaken) {
  const int64_t before = memory_count(kDevice).live;
  const at::TensorOptions bytes = at::TensorOptions(kDevice).dtype(at::kByte);
  {
    const MemoryLimitGuard limit(before + 1024, c10::Device(kDevice.type()));
    const at::Tensor fits = at::empty({1024}, bytes);
    const uint64_t failed = failed_requests(kDevice);
    EXPECT_THROW(at::empty({1}, bytes), BudgetError);
    EXPECT_EQ(failed_requests(kDevice), failed + 1);
    EXPECT_EQ(memory_count(kDevice).live, before + 1024);
    const at::Tensor other = at::empty({4096}, bytes.device(c10::kCPU));
  }
  EXPECT_EQ(memory_limit(kDevice), std::nullopt);
  EXPECT_EQ(memory_count(kDevice).live, before);
}

class OnlineOnADevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { sim::take_reports(); }
  void TearDown() override {
    EXPECT_EQ(reports(), "");
    EXPECT_EQ(memory_limit(kDevice), std::nullopt);
  }
};

TEST_P(OnlineOnADevice, HasTheBitsOfTheCpuWithinTheBudget) {
  const std::vector<Tensors> wanted = plain_results(GetParam(), &plain_step);
  const int64_t need = plain_need(make_device_model(GetParam(), kDevice));
  int64_t evictions = 0;
  bool planned = false;
  for (const int part : {100, 85, 70, 55}) {
    SCOPED_TRACE(part);
    const DeviceModel model = make_device_model(GetParam(), kDevice);
    seed_device(kDevice, 11);
    plain_step(model);  // Gradients are there from now on.
    const int64_t budget = memory_count(kDevice).live + need * part / 100;
    // A device without an index is the current one.
    Online online({.budget = Bytes(budget), .device = c10::Device(kDevice.type())});
    for (int k = 1; k < kCalls; ++k) {
      reset_peak(kDevice);
      at::Tensor loss;
      try {
        loss = online.run([&] { return plain_step(model); });
      } catch (const BudgetError&) {
        ASSERT_LT(part, 85) << "it is too little for what has to be there at once";
        return;
      }
      EXPECT_LE(most_of_device(), budget);
      EXPECT_EQ(online.last_step().measured_peak.count(), memory_count(kDevice).peak);
      evictions += online.last_step().evictions;
      planned = planned || online.last_step().planned;
      ASSERT_EQ(first_difference(wanted[k], everything(model, loss)), -1) << "step " << k;
    }
  }
  EXPECT_GT(evictions, 0);
  EXPECT_TRUE(planned);
}

// Each request of a step fails once: that of the device, or the one that the limit refuses.
TEST_P(OnlineOnADevice, AFailureLeavesEverythingAsItWas) {
  const int64_t need = plain_need(make_device_model(GetParam(), kDevice));
  const DeviceModel model = make_device_model(GetParam(), kDevice);
  const int64_t budget = memory_count(kDevice).live + need * 9 / 10;
  Online online({.budget = Bytes(budget), .device = kDevice});
  model.drop_gradients();
  seed_device(kDevice, 11);
  const Tensors before = everything(model, at::zeros({}));
  uint64_t failed = 0;
  for (bool passed = false; !passed; ++failed) {
    ASSERT_LT(failed, 3000u) << "no step has so many allocations";
    sim::fail_allocation(0, failed + 1);
    try {
      online.run([&] { return plain_step(model); });
      passed = true;
    } catch (const c10::OutOfMemoryError&) {
      ASSERT_EQ(first_difference(before, everything(model, at::zeros({}))), -1)
          << "after the failure of allocation " << failed + 1;
    }
  }
  sim::fail_allocation(0, 0);
  EXPECT_GT(failed, 10u);
  EXPECT_EQ(first_difference(plain_result(GetParam()), everything(model, plain_step(model))), -1);
}

TEST_P(OnlineOnADevice, SaysWhatHoldsTheMemoryWhereNothingFits) {
  const DeviceModel model = make_device_model(GetParam(), kDevice);
  seed_device(kDevice, 11);
  const Tensors before = everything(model, at::zeros({}));
  Online online({.budget = Bytes(memory_count(kDevice).live + 1024), .device = kDevice});
  try {
    online.run([&] { return plain_step(model); });
    FAIL() << "a step needs more";
  } catch (const BudgetError& error) {
    EXPECT_NE(std::string(error.what()).find("online mode has evicted what it can"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(first_difference(before, everything(model, at::zeros({}))), -1);
}

INSTANTIATE_TEST_SUITE_P(Models, OnlineOnADevice, ::testing::ValuesIn(device_model_names()),
                         [](const auto& each) { return each.param; });

// In each mode, and in the one that is taken without a word.
TEST_P(OnlineOnADevice, AStepThatReadsItsNumbersTrainsWithinTheBudgetFromTheFirstCall) {
  const std::vector<Tensors> wanted = plain_results(GetParam(), &reading_step);
  const int64_t need = plain_need(make_device_model(GetParam(), kDevice));
  for (const std::optional<StepMode> mode :
       {std::optional<StepMode>(), std::optional(StepMode::kFollow),
        std::optional(StepMode::kGraph), std::optional(StepMode::kOnline)}) {
    SCOPED_TRACE(mode ? to_string(*mode) : "the mode that is taken");
    const DeviceModel model = make_device_model(GetParam(), kDevice);
    seed_device(kDevice, 11);
    reading_step(model);
    TrainStepOptions options{.mode = mode};
    options.plan.budget = Bytes(memory_count(kDevice).live + need * 85 / 100);
    options.plan.time_limit = Nanos(200'000'000);
    options.capture.measure = once();
    if (mode != StepMode::kGraph) options.capture.budget = options.plan.budget;
    const auto function = [&](const Tensors&) { return Tensors{reading_step(model)}; };
    TrainStep step(function, {model.input, model.target}, options);
    for (int k = 1; k < kCalls; ++k) {
      model.drop_gradients();
      const at::Tensor loss = step.run({model.input, model.target});
      EXPECT_LE(step.last_step().measured_peak, options.plan.budget.resolve(Bytes(0)));
      ASSERT_EQ(first_difference(wanted[k], everything(model, loss)), -1) << "step " << k;
    }
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
