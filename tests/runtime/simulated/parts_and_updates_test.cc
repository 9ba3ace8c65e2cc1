// Tests the same promises on a device for steps that run in parts of the batch, and for steps that
// update parameters: the bits of plain training on the CPU, predicted bytes, no missing
// synchronisation.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "device_models.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/optimizer.h"

namespace reprise::runtime::testing {
namespace {

constexpr int kSteps = 3;

std::vector<std::shared_ptr<nn::Module>> modules_of(const DeviceModel& model) {
  std::vector<std::shared_ptr<nn::Module>> all;
  for (const Stage& stage : model.stages) {
    if (stage.module) all.push_back(stage.module);
  }
  return all;
}

// Parameters and all that everything() has.
Tensors with_parameters(const DeviceModel& model, const at::Tensor& loss) {
  Tensors all = everything(model, loss);
  for (const at::Tensor& each : model.parameters()) all.push_back(each.detach().cpu());
  return all;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name,
                                                      const DeviceModel& model) {
  if (name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(model.parameters(),
                                                 torch::optim::AdamWOptions(1e-2));
  }
  return std::make_unique<torch::optim::SGD>(model.parameters(),
                                             torch::optim::SGDOptions(1e-2).momentum(0.9));
}

class Updates : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Updates, InsideTheStepHaveTheBitsOfAnOptimizerBehindIt) {
  const auto& [name, kind] = GetParam();
  const DeviceModel plain = make_device_model(name, c10::kCPU);
  const auto behind = optimizer_of(kind, plain);
  seed_device(c10::kCPU, 11);
  at::Tensor wanted_loss;
  for (int step = 0; step < kSteps; ++step) {
    wanted_loss = plain.plain_loss();
    wanted_loss.backward();
    behind->step();
    plain.drop_gradients();
  }
  const Tensors wanted = with_parameters(plain, wanted_loss);

  sim::take_reports();
  const c10::Device device = sim::device(1);
  const DeviceModel model = make_device_model(name, device);
  const auto inside = optimizer_of(kind, model);
  CapturedStep step(
      model.step(), {model.input, model.target},
      {.modules = modules_of(model), .measure = once(), .optimizer = per_parameter(*inside)});
  step.plan({.budget = "90%", .time_limit = Nanos(200'000'000)});
  seed_device(device, 11);
  at::Tensor loss;
  for (int repeat = 0; repeat < kSteps; ++repeat) {
    loss = at::Tensor();
    loss = step.run({model.input, model.target});
    const CapturedStepReport report = step.last_step();
    // The first updates make the optimizer's state, and need no temporary value of one granule.
    EXPECT_LE(report.measured_peak, report.predicted_peak) << "step " << repeat;
    EXPECT_LE(report.predicted_peak - report.measured_peak, Bytes(512)) << "step " << repeat;
    if (repeat > 0) {
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
    }
    EXPECT_LE(report.measured_peak, report.budget);
  }
  EXPECT_EQ(first_difference(wanted, with_parameters(model, loss)), -1);
  EXPECT_EQ(reports(), "");
}

INSTANTIATE_TEST_SUITE_P(Device, Updates,
                         ::testing::Combine(::testing::ValuesIn(device_model_names()),
                                            ::testing::Values("sgd", "adamw")),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

// The loss of a part of the batch, with its share of the whole one.
PartFunction part_of(const DeviceModel& model) {
  return [model](const Tensors& in, double share) {
    at::Tensor loss =
        torch::cross_entropy_loss(run_plain(model.stages, {in.at(0)}).at(0), in.at(1));
    if (share != 1) loss = loss * share;
    loss.backward();
    return Tensors{loss};
  };
}

class Parts : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(Parts, OfTheBatchHaveTheBitsOfAccumulationByHand) {
  const auto& [name, parts] = GetParam();
  const DeviceModel plain = make_device_model(name, c10::kCPU);
  const PartFunction by_hand = part_of(plain);
  const int64_t rows = plain.input.size(0);
  seed_device(c10::kCPU, 11);
  at::Tensor sum;
  for (int step = 0; step < kSteps; ++step) {
    plain.drop_gradients();
    sum = at::Tensor();
    for (int64_t p = 0, begin = 0; p < parts; ++p) {
      const int64_t end = rows * (p + 1) / parts;
      const at::Tensor loss =
          by_hand({plain.input.slice(0, begin, end), plain.target.slice(0, begin, end)},
                  static_cast<double>(end - begin) / static_cast<double>(rows))
              .at(0)
              .detach();
      sum = sum.defined() ? sum + loss : loss;
      begin = end;
    }
  }
  const Tensors wanted = everything(plain, sum);

  sim::take_reports();
  const c10::Device device = sim::device(0);
  const DeviceModel model = make_device_model(name, device);
  MicroBatchOptions options{.parts = {parts}};
  options.capture.modules = modules_of(model);
  options.capture.measure = once();
  options.plan.budget = "100%";
  options.plan.time_limit = Nanos(200'000'000);
  MicroBatches found = micro_batches(part_of(model), {model.input, model.target}, options);
  ASSERT_EQ(found.chosen.parts, parts);
  seed_device(device, 11);
  at::Tensor loss;
  for (int repeat = 0; repeat < kSteps; ++repeat) {
    model.drop_gradients();
    loss = at::Tensor();
    loss = found.step.run({model.input, model.target});
    const CapturedStepReport report = found.step.last_step();
    EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count()) << "step " << repeat;
    EXPECT_LE(report.measured_peak, report.budget);
  }
  EXPECT_EQ(first_difference(wanted, everything(model, loss)), -1);
  EXPECT_EQ(reports(), "");
}

INSTANTIATE_TEST_SUITE_P(Device, Parts,
                         ::testing::Combine(::testing::ValuesIn(device_model_names()),
                                            ::testing::Values(int64_t{2}, int64_t{3})),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace reprise::runtime::testing
