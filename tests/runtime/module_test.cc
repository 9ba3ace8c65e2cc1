// A planned model as a module, what it says when something is wrong, and the allocator under it.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/serialize.h>

#include <sstream>
#include <thread>

#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/sequential.h"
#include "tight_step.h"

namespace reprise::runtime {
namespace {

namespace nn = torch::nn;
using testing::Bits;
using testing::bits_now;
using testing::CountedStages;
using testing::difference;
using testing::drop_gradients;
using testing::largest_budget;
using testing::layer;
using testing::live;
using testing::mean_square;
using testing::plain_steps;
using testing::planned_runs;
using testing::planned_step;
using testing::quick;
using testing::smallest_budget;
using testing::StepState;

// A Sequential inside a Sequential must have a forward of its own (LibTorch stores no other): a stage as
// a whole, because only that forward knows what it does.
struct ResidualImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return x + SequentialImpl::forward(x); }
};
TORCH_MODULE(Residual);

nn::Conv2d conv(int64_t from) { return nn::Conv2d(nn::Conv2dOptions(from, 8, 3).padding(1)); }

nn::Sequential nested_model() {
  return nn::Sequential(conv(3), nn::BatchNorm2d(8), nn::ReLU(nn::ReLUOptions(true)),
                        nn::Dropout(0.2), Residual(conv(8), nn::BatchNorm2d(8), nn::Tanh()),
                        Residual(conv(8), nn::Dropout(0.2)), nn::MaxPool2d(2), nn::Flatten(),
                        nn::Linear(8 * 8 * 8, 10));
}

std::vector<std::string> keys_of(const nn::Module& module) {
  std::vector<std::string> keys;
  for (const auto& item : module.named_parameters()) keys.push_back("parameter " + item.key());
  for (const auto& item : module.named_buffers()) keys.push_back("buffer " + item.key());
  return keys;
}

class ModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    at::manual_seed(13);
  }
  void TearDown() override { EXPECT_EQ(cpu_limit(), std::nullopt) << "a limit was left behind"; }

  at::Tensor images_ = at::randn({8, 3, 16, 16});
};

// --- torch::nn::Sequential

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
  // There and back: the tensors have new memory, the plan for floats is found again.
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

// The usual first minute: model and data are made before anything of ours is called.
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

// --- Errors

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Passes its input through; its backward throws while `armed`.
struct Fuse : torch::autograd::Function<Fuse> {
  static inline bool armed = false;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    if (armed) throw Boom("backward");
    return gradients;
  }
};

class ErrorTest : public ModuleTest {
 protected:
  // The stage "fragile" throws at its call number boom_at_, after it advanced its buffers.
  std::vector<Stage> fragile_stages() {
    auto block = [this](const std::string& name, int64_t from, bool fragile) -> Stage {
      nn::Sequential inner(nn::Conv2d(nn::Conv2dOptions(from, 8, 3).padding(1)), nn::BatchNorm2d(8),
                           nn::Dropout(0.2));
      return {name, inner.ptr(), [this, inner, fragile](const Tensors& x) mutable {
                at::Tensor y = inner->forward(x.at(0)).tanh();
                if (fragile && ++calls_ == boom_at_) throw Boom("forward");
                return Tensors{fragile ? Fuse::apply(y) : y};
              }};
    };
    return {block("a", 3, false), block("b", 8, false), block("fragile", 8, true),
            block("c", 8, false), block("d", 8, false)};
  }
  void TearDown() override {
    Fuse::armed = false;
    ModuleTest::TearDown();
  }

  int calls_ = 0, boom_at_ = 0;
};

TEST_F(ErrorTest, AnExceptionWhileMeasuringLeavesEverythingAsItWas) {
  const std::vector<Stage> stages = fragile_stages();
  plain_steps(stages, {images_}, mean_square, 1);  // gradients exist
  const Bits before = bits_now(stages, {images_});
  const int64_t level = live();
  const RematOptions options{.loss = mean_square, .measure = quick()};
  for (boom_at_ = 1; boom_at_ <= 5; ++boom_at_) {
    SCOPED_TRACE(boom_at_);
    calls_ = 0;
    EXPECT_THROW(reprise::runtime::remat(stages, {images_}, options), Boom);
    EXPECT_EQ(difference(before, bits_now(stages, {images_})), "");
    EXPECT_EQ(live(), level);
  }
  boom_at_ = 0;
  Fuse::armed = true;
  EXPECT_THROW(reprise::runtime::remat(stages, {images_}, options), Boom);
  EXPECT_EQ(difference(before, bits_now(stages, {images_})), "");
  EXPECT_EQ(live(), level);
}

TEST_F(ErrorTest, AnExceptionInAStageReachesTheCallerAndUndoesTheStep) {
  const std::vector<Stage> stages = fragile_stages();
  const StepState state(stages, {images_});
  plain_steps(stages, {images_}, mean_square, 1);
  state.restore();
  const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
  state.restore();
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  calls_ = 0;
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
  const int runs = calls_;
  ASSERT_GT(runs, 1) << "the stage never runs again";
  // One failure for each run, and one in its backward.
  for (int fail = 1; fail <= runs + 1; ++fail) {
    SCOPED_TRACE(fmt::format("failure {} of {}", fail, runs + 1));
    state.restore();
    const Bits before = bits_now(stages, {images_});
    const int64_t level = live();
    calls_ = 0;
    boom_at_ = fail <= runs ? fail : 0;
    Fuse::armed = fail > runs;
    EXPECT_THROW(planned_step(*remat, stages, {images_}, mean_square), Boom);
    EXPECT_EQ(difference(before, bits_now(stages, {images_})), "");
    EXPECT_EQ(live(), level);
    EXPECT_EQ(cpu_limit(), std::nullopt);
    boom_at_ = 0;
    Fuse::armed = false;
    EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
  }
}

TEST_F(ErrorTest, ASecondBackwardAndDoubleBackwardAreRefused) {
  const std::vector<Stage> stages = fragile_stages();
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  at::Tensor loss = remat->forward(images_).sum();
  loss.backward({}, /*retain_graph=*/true);
  const Bits once = bits_now(stages, {images_});
  EXPECT_THROW(loss.backward(), InputError);
  EXPECT_EQ(difference(once, bits_now(stages, {images_})), "");
  loss = remat->forward(images_).sum();
  EXPECT_THROW(loss.backward({}, std::nullopt, /*create_graph=*/true), InputError);
}

TEST_F(ErrorTest, ChangesBetweenForwardAndBackwardAreNoticed) {
  const std::vector<Stage> stages = fragile_stages();
  const StepState state(stages, {images_});
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  remat->plan_for({images_});
  // Of a stage that runs again.
  size_t again = 0;
  while (planned_runs(*remat).at(stages[again].name) == 1) ++again;
  for (const bool input : {false, true}) {
    SCOPED_TRACE(input ? "input" : "parameter");
    if (input && planned_runs(*remat).at("a") == 1) GTEST_SKIP() << "the first stage runs once";
    const Bits before = bits_now(stages, {});
    at::Tensor loss = mean_square({remat->forward(images_)});
    {
      at::NoGradGuard no_grad;
      (input ? images_ : stages[again].module->parameters()[0]).mul_(1);
    }
    try {
      loss.backward();
      ADD_FAILURE() << "not noticed";
    } catch (const InputError& error) {
      const std::string name = input ? "input" : stages[again].name;
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
    EXPECT_EQ(difference(before, bits_now(stages, {})), "");
  }
}

TEST_F(ErrorTest, AnInfeasibleBudgetNamesTheSmallestOneWhichWorks) {
  const std::vector<Stage> stages = fragile_stages();
  const StepState state(stages, {images_});
  const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
  state.restore();
  RematOptions options{.budget = Bytes(1000), .loss = mean_square, .measure = quick()};
  try {
    reprise::runtime::remat(stages, {images_}, options);
    FAIL() << "1000 bytes were enough";
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.budget(), 1000);
    EXPECT_NE(std::string(error.what()).find(fmt::format("{}", error.requested())),
              std::string::npos)
        << error.what();
    options.budget = Bytes(error.requested());
  }
  state.restore();
  auto remat = reprise::runtime::remat(stages, {images_}, options);
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
  drop_gradients(stages, {});
  options.budget = options.budget.resolve({}) - Bytes(1);
  EXPECT_THROW(reprise::runtime::remat(stages, {images_}, options), BudgetError);
}

TEST_F(ErrorTest, AStageThatCannotBeUsedIsNamed) {
  struct Case {
    const char* what;
    std::function<Tensors(const Tensors&)> forward;
  };
  const std::vector<Case> cases{
      {"no tensor", [](const Tensors&) { return Tensors{}; }},
      {"undefined", [](const Tensors&) { return Tensors{at::Tensor()}; }},
      {"meta", [](const Tensors& x) { return Tensors{x[0].to(at::kMeta)}; }},
      {"fails", [](const Tensors& x) { return Tensors{at::matmul(x[0], at::ones({5}))}; }}};
  for (const Case& bad : cases) {
    std::vector<Stage> stages = fragile_stages();
    stages.insert(stages.begin() + 2, {"culprit", nullptr, bad.forward});
    const Bits before = bits_now(stages, {});
    try {
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
      ADD_FAILURE() << bad.what;
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'culprit'"), std::string::npos) << text;
      EXPECT_NE(text.find(bad.what), std::string::npos) << text;
    }
    EXPECT_EQ(difference(before, bits_now(stages, {})), "");
  }
  EXPECT_THROW(reprise::runtime::remat(std::vector<Stage>{}, {images_}), InputError);
  EXPECT_THROW(reprise::runtime::remat(fragile_stages(), Tensors{}), InputError);
  EXPECT_THROW(reprise::runtime::remat(fragile_stages(), {images_, at::Tensor()}), InputError);
  Remat unplanned(fragile_stages(), {});
  EXPECT_THROW(unplanned.plan(), InputError);
}

// --- Measuring

TEST_F(ErrorTest, AProfileChangesNothingAndIsAFile) {
  const std::vector<Stage> stages = fragile_stages();
  const Tensors inputs{images_.clone().set_requires_grad(true)};
  plain_steps(stages, inputs, mean_square, 1);
  const Bits before = bits_now(stages, inputs);
  const int64_t level = live();
  const Profile measured = profile(stages, inputs, mean_square);
  EXPECT_EQ(live(), level);
  EXPECT_EQ(difference(before, bits_now(stages, inputs)), "");
  EXPECT_EQ(parse_profile(to_json(measured)), measured);
  const Chain& chain = std::get<Chain>(measured.problem);
  EXPECT_NO_THROW(validate(chain));
  ASSERT_EQ(chain.stages.size(), stages.size());
  EXPECT_GT(chain.loss.cost.time.count(), 0);
  for (const reprise::Stage& stage : chain.stages) {
    EXPECT_TRUE(stage.random);
    EXPECT_GT(stage.forward.time.count(), 0);
    EXPECT_GT(stage.options.at(0).forward.time.count(), 0);
    EXPECT_GT(stage.options.at(0).backward.time.count(), 0);
    EXPECT_EQ(stage.output.count(), 8 * 8 * 16 * 16 * 4);
  }
  EXPECT_EQ(chain.input.bytes.count(), 8 * 3 * 16 * 16 * 4);
  EXPECT_EQ(chain.input.gradient.count(), 8 * 3 * 16 * 16 * 4);
  for (const TimeSpread& spread : measured.spread) {
    EXPECT_GE(spread.repeats, 3);
    EXPECT_LE(spread.min, spread.median);
    EXPECT_LE(spread.median, spread.max);
  }
}

// --- The allocator

TEST(Allocator, CountsBlocksOf64BytesAndGivesThemBack) {
  install_cpu_allocator();
  install_cpu_allocator();
  EXPECT_TRUE(cpu_allocator_installed());
  const int64_t before = live();
  for (const int64_t bytes : {1, 63, 64, 65, 128, 4097}) {
    reset_peak(c10::kCPU);
    const at::Tensor block = at::empty({bytes}, at::kByte);
    EXPECT_EQ(live() - before, (bytes + 63) / 64 * 64);
    EXPECT_TRUE(cpu_allocator_owns(block.const_data_ptr()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.const_data_ptr()) % 64, 0u);
    EXPECT_EQ(memory_count(c10::kCPU).allocations, 1);
    EXPECT_EQ(memory_count(c10::kCPU).peak, live());
  }
  EXPECT_EQ(live(), before);
  const at::Tensor nothing = at::empty({0});
  EXPECT_EQ(live(), before);
  float host = 0;
  EXPECT_FALSE(cpu_allocator_owns(at::from_blob(&host, {1}).const_data_ptr()));
}

TEST(Allocator, TheLimitIsSharp) {
  install_cpu_allocator();
  const int64_t before = live();
  {
    CpuLimitGuard limit(before + 1024);
    EXPECT_NO_THROW(at::empty({1024}, at::kByte));
    EXPECT_NO_THROW(at::empty({1000}, at::kByte));
  }
  {
    CpuLimitGuard limit(before + 1023);
    try {
      at::empty({1000}, at::kByte);  // counts as 1024
      ADD_FAILURE() << "over the limit";
    } catch (const BudgetError& error) {
      EXPECT_EQ(error.budget(), before + 1023);
      EXPECT_EQ(error.live(), before);
      EXPECT_EQ(error.requested(), 1024);
    }
    EXPECT_NO_THROW(at::empty({960}, at::kByte));
  }
  EXPECT_EQ(cpu_limit(), std::nullopt);
  EXPECT_EQ(live(), before);
}

TEST(Allocator, ManyThreads) {
  install_cpu_allocator();
  const int64_t before = live();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::vector<at::Tensor> held(16);
      for (int64_t i = 0; i < 2000; ++i) {
        held[static_cast<size_t>(i % 16)] = at::empty({(i * 37 + t) % 5000 + 1}, at::kByte);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live(), before);
}

}  // namespace
}  // namespace reprise::runtime
