// These tests show the messages of the runtime where a device cannot do something that the CPU can.
// They also show that the CPU still can do it beside devices.
#include "device_models.h"

namespace reprise::runtime::testing {
namespace {

TEST(DeviceLimits, TheCpuCountsAndEnforcesBesideDevices) {
  EXPECT_TRUE(cpu_allocator_installed());
  const DeviceModel model = make_device_model("conv", c10::kCPU);
  const auto chain = remat(model.stages, {model.input},
                           {.budget = "85%", .loss = model.loss_of_any_batch(), .measure = once()});
  seed_device(c10::kCPU, 11);
  at::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    model.drop_gradients();
    loss = at::Tensor();
    loss = model.loss(chain->forward(model.input));
    loss.backward();
    EXPECT_EQ(chain->last_step().predicted_peak.count(), chain->last_step().measured_peak.count());
  }
  EXPECT_EQ(first_difference(plain_result("conv"), everything(model, loss)), -1);
}

TEST(DeviceLimits, ADiskForADeviceIsRefusedByName) {
  const DeviceModel model = make_device_model("dense", sim::device(0));
  RematOptions options{.loss = model.loss_of_any_batch(), .measure = once()};
  options.offload.to = "disk:/tmp";
  try {
    remat(model.stages, {model.input}, options);
    FAIL() << "values of a device were moved to a disk";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("this one is on sim:0"), std::string::npos)
        << error.what();
  }
}

// Puts the second half of the stages on sim:1. The budget of graph mode is that of both devices.
DeviceModel on_two_devices() {
  DeviceModel model = make_device_model("dense", sim::device(0));
  const size_t half = model.stages.size() / 2;
  for (size_t s = half; s < model.stages.size(); ++s) model.stages[s].module->to(sim::device(1));
  model.stages[half].forward = [inner = model.stages[half].forward](const Tensors& x) {
    return inner({x.at(0).to(sim::device(1))});
  };
  model.target = model.target.to(sim::device(1));
  return model;
}

TEST(DeviceLimits, GraphModeOverTwoDevicesHasTheBitsOfTheCpu) {
  sim::take_reports();
  const DeviceModel model = on_two_devices();
  CapturedStep step(model.step(), {model.input, model.target}, {.measure = once()});
  step.plan({});
  for (const int index : {0, 1}) seed_device(sim::device(index), 11);
  at::Tensor loss;
  for (int repeat = 0; repeat < 2; ++repeat) {
    model.drop_gradients();
    loss = step.run_all({model.input, model.target}).at(0);
  }
  EXPECT_EQ(first_difference(plain_result("dense"), everything(model, loss)), -1);
  EXPECT_TRUE(sim::take_reports().empty());
}

TEST(DeviceLimits, ChainModeRefusesTwoDevices) {
  const DeviceModel model = on_two_devices();
  EXPECT_THROW(
      remat(model.stages, {model.input}, {.loss = model.loss_of_any_batch(), .measure = once()}),
      InputError);
}

}  // namespace
}  // namespace reprise::runtime::testing
