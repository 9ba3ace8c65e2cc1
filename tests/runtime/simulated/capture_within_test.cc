// A capture with a budget on a device takes the budget's bytes and no more, where plain training needs
// more than the device has.
#include "device_models.h"

namespace reprise::runtime::testing {
namespace {

// Gives the device so many bytes for a scope.
class Capacity {
 public:
  explicit Capacity(int64_t bytes) : before_(sim::capacity(0)) {
    sim::set_capacity(0, static_cast<size_t>(bytes));
  }
  ~Capacity() { sim::set_capacity(0, before_); }
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

 private:
  size_t before_;
};

// Many equal layers, whose activations are what plain training has most of.
DeviceModel deep_model(const std::string& name, c10::Device device) {
  at::manual_seed(1);
  DeviceModel model = make_device_model(name, c10::kCPU);
  if (name == "conv") {
    model.stages.clear();
    model.stages.push_back(layer("in", conv(3, 8)));
    for (int i = 0; i < 24; ++i) {
      const std::string number = std::to_string(i);
      model.stages.push_back(layer("conv" + number, conv(8, 8)));
      model.stages.push_back(layer("norm" + number, nn::BatchNorm2d(8)));
      model.stages.push_back(layer("relu" + number, nn::ReLU(nn::ReLUOptions(true))));
      model.stages.push_back(layer("drop" + number, nn::Dropout(0.1)));
    }
    model.stages.push_back(layer("pool", nn::AdaptiveAvgPool2d(1)));
    model.stages.push_back(layer("flatten", nn::Flatten()));
    model.stages.push_back(layer("classes", nn::Linear(8, 10)));
    model.input = at::randn({16, 3, 32, 32});
  }
  model.target = at::randint(10, {model.input.size(0)});
  model.move_to(device);
  return model;
}

int64_t live(c10::Device device) { return memory_count(device).live; }

Tensors two_steps(const DeviceModel& model, const std::function<at::Tensor()>& step) {
  seed_device(model.device, 11);
  at::Tensor loss;
  for (int repeat = 0; repeat < 2; ++repeat) {
    model.drop_gradients();
    loss = at::Tensor();
    loss = step();
  }
  return everything(model, loss);
}

TEST(CaptureWithinOnADevice, TrainsWhatPlainTrainingCannotWithItsBits) {
  const c10::Device device = sim::device(0);
  sim::take_reports();
  Tensors wanted;
  int64_t plain_peak = 0;
  {
    const int64_t before = live(device);
    const DeviceModel model = deep_model("conv", device);
    const StepFunction step = model.step();
    reset_peak(device);
    wanted = two_steps(model, [&] { return step({model.input, model.target}).at(0); });
    plain_peak = memory_count(device).peak - before;
  }
  for (const int64_t part : {4, 10}) {
    SCOPED_TRACE(part);
    const Bytes budget(live(device) + plain_peak / part);
    const DeviceModel model = deep_model("conv", device);
    auto all = std::make_unique<Capacity>(budget.count());
    CapturedStep captured(model.step(), {model.input, model.target},
                          {.budget = budget, .measure = once()});
    // The first run takes its memory block by block, with holes between the blocks.
    all.reset();
    all = std::make_unique<Capacity>(budget.count() + (int64_t{2} << 20));
    captured.plan({.time_limit = Nanos(6'000'000'000)});
    reset_peak(device);
    const Tensors found =
        two_steps(model, [&] { return captured.run_all({model.input, model.target}).at(0); });
    EXPECT_LE(memory_count(device).peak, budget.count());
    EXPECT_EQ(first_difference(wanted, found), -1);
    EXPECT_LE(captured.last_step().measured_peak, budget);
    EXPECT_EQ(captured.last_step().measured_peak, captured.last_step().predicted_peak);
    EXPECT_EQ(reports(), "");
  }
}

TEST(CaptureWithinOnADevice, RefusesWhatDependsOnComputedNumbers) {
  const c10::Device device = sim::device(0);
  const DeviceModel model = make_device_model("dense", device);
  const auto step = [&](const Tensors& in) {
    at::Tensor loss = model.loss(run_plain(model.stages, {in.at(0)}).at(0));
    if (loss.gt(0).item<bool>()) loss = loss * 2;
    loss.backward();
    return Tensors{loss};
  };
  try {
    CapturedStep captured(step, {model.input, model.target},
                          {.budget = Bytes(int64_t{256} << 20), .measure = once()});
    FAIL() << "the number was none";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("a number that it has computed"), std::string::npos)
        << error.what();
  }
  for (const at::Tensor& each : model.parameters()) EXPECT_FALSE(each.grad().defined());
}

}  // namespace
}  // namespace reprise::runtime::testing
