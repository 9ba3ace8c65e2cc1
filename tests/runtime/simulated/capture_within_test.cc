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
  } else {
    const std::vector<Stage> few = std::exchange(model.stages, {});
    model.stages.push_back(few.front());
    for (int i = 0; i < 12; ++i) {
      const DeviceModel other = make_device_model(name, c10::kCPU);
      for (size_t s = 1; s < few.size() - 2; ++s) {
        model.stages.push_back(other.stages[s]);
        model.stages.back().name += std::to_string(i);
      }
    }
    model.stages.insert(model.stages.end(), few.end() - 2, few.end());
    model.input = at::randint(50, {32, 64});
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

class CaptureWithinOnADevice : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, CaptureWithinOnADevice, ::testing::Values("conv", "attention"),
                         [](const auto& each) { return each.param; });

// A convolutional network and a GPT whose plain peaks are 4 and 10 times the device's memory.
TEST_P(CaptureWithinOnADevice, TrainsWhatPlainTrainingCannotWithItsBits) {
  const c10::Device device = sim::device(0);
  sim::take_reports();
  Tensors wanted;
  int64_t plain_peak = 0;
  {
    const int64_t before = live(device);
    const DeviceModel model = deep_model(GetParam(), device);
    const StepFunction step = model.step();
    reset_peak(device);
    wanted = two_steps(model, [&] { return step({model.input, model.target}).at(0); });
    plain_peak = memory_count(device).peak - before;
  }
  for (const int64_t part : {4, 10}) {
    SCOPED_TRACE(part);
    const Bytes budget(live(device) + plain_peak / part);
    const DeviceModel model = deep_model(GetParam(), device);
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

// There are no numbers on stand-ins. Such a step is recorded in online mode.
TEST(CaptureWithinOnOneDevice, RecordsWhatDependsOnComputedNumbers) {
  const c10::Device device = sim::device(0);
  const auto step_of = [](const DeviceModel& model) {
    return [&model](const Tensors& in) {
      at::Tensor loss = model.loss(run_plain(model.stages, {in.at(0)}).at(0));
      if (loss.gt(0).item<bool>()) loss = loss * 2;
      loss.backward();
      return Tensors{loss};
    };
  };
  const DeviceModel plain = make_device_model("dense", c10::kCPU);
  const Tensors wanted =
      two_steps(plain, [&] { return step_of(plain)({plain.input, plain.target}).at(0); });
  const DeviceModel model = make_device_model("dense", device);
  const Bytes budget(live(device) + (int64_t{2} << 20));
  CapturedStep captured(step_of(model), {model.input, model.target},
                        {.budget = budget, .measure = once()});
  EXPECT_EQ(captured.host_reads().size(), 1u);
  captured.plan({.budget = budget, .time_limit = Nanos(1'000'000'000)});
  const Tensors found =
      two_steps(model, [&] { return captured.run_all({model.input, model.target}).at(0); });
  EXPECT_EQ(first_difference(wanted, found), -1);
  EXPECT_EQ(captured.last_step().measured_peak, captured.last_step().predicted_peak);
  EXPECT_LE(captured.last_step().measured_peak, budget);
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
