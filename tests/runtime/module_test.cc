// A planned model is a module: a Sequential with its keys and files, types, budgets as people write
// them, and memory that was there before.
#include <torch/serialize.h>

#include <sstream>

#include "fixture.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/sequential.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;
using ModuleTest = RuntimeTest;

// A Sequential inside a Sequential must have a forward of its own, because LibTorch stores no
// other. It is one stage, because only that forward knows what it does.
struct InnerResidualImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return x + SequentialImpl::forward(x); }
};
TORCH_MODULE(InnerResidual);

nn::Sequential nested_model() {
  return nn::Sequential(conv(3), nn::BatchNorm2d(8), nn::ReLU(nn::ReLUOptions(true)),
                        nn::Dropout(0.2), InnerResidual(conv(8), nn::BatchNorm2d(8), nn::Tanh()),
                        InnerResidual(conv(8), nn::Dropout(0.2)), nn::MaxPool2d(2), nn::Flatten(),
                        nn::Linear(8 * 8 * 8, 10));
}

std::vector<std::string> keys_of(const nn::Module& module) {
  std::vector<std::string> keys;
  for (const auto& item : module.named_parameters()) keys.push_back("parameter " + item.key());
  for (const auto& item : module.named_buffers()) keys.push_back("buffer " + item.key());
  return keys;
}

TEST_F(ModuleTest, ASequentialTrainsWithTheSameBits) {
  nn::Sequential model = nested_model();
  const std::vector<Stage> stages = stages_of(model);
  ASSERT_EQ(stages.size(), 9u);
  const StepState state(stages, {images_});
  std::vector<Bits> expected;
  for (int k = 0; k < 3; ++k) {
    drop_gradients(stages, {});
    at::Tensor loss = mean_square({model->forward(images_)});
    loss.backward();
    expected.push_back(bits_now(stages, {images_}, loss));
  }
  state.restore();
  auto remat = reprise::runtime::remat(model, images_, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  for (int k = 0; k < 3; ++k) {
    drop_gradients(stages, {});
    at::Tensor loss = mean_square({remat->forward(images_)});
    loss.backward();
    EXPECT_EQ(difference(expected[static_cast<size_t>(k)], bits_now(stages, {images_}, loss)), "");
  }
  int runs = 0;
  for (const auto& [name, count] : planned_runs(*remat)) runs += count;
  EXPECT_GT(runs, 9);
}

TEST_F(ModuleTest, KeysAndParametersOfASequentialAreUnchanged) {
  nn::Sequential model = nested_model();
  auto remat = reprise::runtime::remat(model, images_, {.measure = quick()});
  EXPECT_EQ(keys_of(*remat), keys_of(*model));
  const auto ours = remat->parameters(), plain = model->parameters();
  ASSERT_EQ(ours.size(), plain.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].is_same(plain[i])) << i;

  // A module of several children has a key under each, as in the plain model.
  nn::Linear shared(10, 10);
  nn::Sequential tied(shared, nn::Tanh(), shared);
  auto planned = reprise::runtime::remat(tied, at::randn({4, 10}), {.measure = quick()});
  EXPECT_EQ(keys_of(*planned), keys_of(*tied));
}

TEST_F(ModuleTest, SavedStateGoesFromPlannedToPlainAndBack) {
  nn::Sequential model = nested_model();
  auto remat = reprise::runtime::remat(model, images_, {.loss = mean_square, .measure = quick()});
  std::stringstream file;
  torch::serialize::OutputArchive saved;
  remat->save(saved);
  saved.save_to(file);
  nn::Sequential other = nested_model();
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  other->load(archive);
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(other->named_parameters()[item.key()].equal(item.value())) << item.key();
  }

  // Loading replaces the memory of parameters and buffers: the planned model must notice.
  std::stringstream back;
  torch::serialize::OutputArchive changed;
  other->named_buffers()["4.1.running_mean"].fill_(3);
  other->save(changed);
  changed.save_to(back);
  torch::serialize::InputArchive reading;
  reading.load_from(back);
  remat->load(reading);
  const std::vector<Stage> stages = stages_of(model);
  const StepState state(stages, {images_});
  const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
  state.restore();
  remat->set_budget({});
  remat->plan_for({images_});  // from the level of memory that there is now
  remat->set_budget(smallest_budget(*remat));
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
}

TEST_F(ModuleTest, TrainEvalAndToReachTheModules) {
  nn::Sequential model = nested_model();
  auto remat = reprise::runtime::remat(model, images_, {.loss = mean_square, .measure = quick()});
  remat->eval();
  for (const auto& module : model->modules(false)) EXPECT_FALSE(module->is_training());
  remat->train();
  for (const auto& module : model->modules(false)) EXPECT_TRUE(module->is_training());
  remat->to(at::kCPU);
  const std::vector<Stage> stages = stages_of(model);
  // The model goes there and back. The tensors have new memory, and the plan for floats is found
  // again.
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    remat->to(type);
    for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.scalar_type(), type);
    const Tensors input{images_.to(type)};
    const StepState state(stages, input);
    const Bits expected = plain_steps(stages, input, mean_square, 1)[0];
    state.restore();
    remat->plan_for(input);
    remat->set_budget(smallest_budget(*remat) + Bytes(64));
    EXPECT_EQ(difference(expected, planned_step(*remat, stages, input, mean_square)), "");
    drop_gradients(stages, {});
    remat->set_budget({});
  }
}

TEST_F(ModuleTest, WeightsOfAnotherTypeUnderTheSameInputPlanAgain) {
  nn::Embedding embedding(64, 32);
  const std::vector<Stage> stages{layer("embedding", embedding), layer("one", nn::Linear(32, 64)),
                                  layer("two", nn::Linear(64, 64)),
                                  layer("out", nn::Linear(64, 4))};
  const Tensors tokens{at::randint(64, {256})};
  auto remat = reprise::runtime::remat(stages, tokens, {.loss = mean_square, .measure = quick()});
  remat->to(at::kDouble);
  const StepState state(stages, tokens);
  const Bits expected = plain_steps(stages, tokens, mean_square, 1)[0];
  state.restore();
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, tokens, mean_square)), "");
  EXPECT_EQ(remat->last_step().predicted_peak.count(), remat->last_step().measured_peak.count());
}

TEST_F(ModuleTest, AParameterFrozenOrThawedBetweenStepsIsNoticed) {
  nn::Sequential model = nested_model();
  const std::vector<Stage> stages = stages_of(model);
  auto remat = reprise::runtime::remat(model, images_, {.loss = mean_square, .measure = quick()});
  const StepState state(stages, {images_});
  for (const bool wanted : {false, true}) {
    at::Tensor(model->named_parameters()["4.0.weight"]).set_requires_grad(wanted);
    state.restore();
    const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
    state.restore();
    EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
  }
}

TEST_F(ModuleTest, BudgetsAsStringsSharesAndBytes) {
  nn::Sequential model = nested_model();
  RematOptions options{.loss = mean_square, .measure = quick()};
  auto free = reprise::runtime::remat(model, images_, options);
  const int64_t baseline = free->plan().baseline.peak.count();
  options.budget = "80%";
  auto share = reprise::runtime::remat(model, images_, options);
  EXPECT_EQ(share->plan().budget.count(), share->plan().baseline.peak.count() * 8 / 10);
  options.budget = fmt::format("{} KiB", baseline / 1024);
  EXPECT_EQ(reprise::runtime::remat(model, images_, options)->plan().budget.count(),
            baseline / 1024 * 1024);
  options.budget = Bytes(baseline);
  EXPECT_EQ(reprise::runtime::remat(model, images_, options)->plan().budget, Bytes(baseline));
  share->set_budget("90 %");
  mean_square({share->forward(images_)}).backward();
  EXPECT_EQ(share->last_step().budget.count(), share->plan().baseline.peak.count() * 9 / 10);
  EXPECT_THROW(share->set_budget("9 apples"), InputError);
}

// Model and data are often made before anything of ours is called.
TEST_F(ModuleTest, MemoryThatTheAllocatorDidNotHandOutCounts) {
  std::vector<std::vector<float>> host;
  auto foreign = [&host](const at::Tensor& tensor) {
    host.emplace_back(static_cast<size_t>(tensor.numel()));
    at::Tensor view = at::from_blob(host.back().data(), tensor.sizes());
    return view.copy_(tensor.detach());
  };
  std::vector<Stage> stages;
  for (int i = 0; i < 5; ++i) {
    nn::Linear linear(64, 64);
    for (at::Tensor p : linear->parameters()) p.set_data(foreign(p));
    stages.push_back(layer(fmt::format("dense{}", i), linear));
  }
  const Tensors inputs{foreign(at::randn({256, 64}))};
  const int64_t foreign_bytes = 5 * (64 * 64 + 64) * 4 + 256 * 64 * 4;
  const Profile profiled = profile(stages, inputs, mean_square, quick());
  const Chain& chain = std::get<Chain>(profiled.problem);
  EXPECT_GE((chain.fixed + chain.input.bytes).count(), foreign_bytes);
  const StepState state(stages, inputs);
  const Bits expected = plain_steps(stages, inputs, mean_square, 1)[0];
  state.restore();
  auto remat = reprise::runtime::remat(stages, inputs, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, inputs, mean_square)), "");
  EXPECT_EQ(remat->last_step().predicted_peak.count(), remat->last_step().measured_peak.count());
  EXPECT_LE(remat->last_step().measured_peak, remat->last_step().budget);
  EXPECT_GE(remat->last_step().measured_peak.count(), foreign_bytes);
}

TEST_F(ModuleTest, PlanningDoesNotHoldTheSample) {
  nn::Linear linear(64, 64);
  const int64_t before = live();
  {
    at::Tensor sample = at::randn({1024, 64}).set_requires_grad(true);
    auto remat = reprise::runtime::remat({layer("linear", linear)}, {sample}, {.measure = quick()});
    at::Tensor used = sample * 2;
    mean_square({remat->forward(used)}).backward();
    drop_gradients({layer("linear", linear)}, {sample});
    used.reset();
    const int64_t with_sample = live();
    sample.reset();
    EXPECT_LE(live(), with_sample - 1024 * 64 * 4);
  }
  EXPECT_EQ(live(), before);
}

}  // namespace
}  // namespace reprise::runtime::testing
