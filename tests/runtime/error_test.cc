// A fault is named, and the model is left as it was.
#include <torch/csrc/autograd/custom_function.h>

#include "fixture.h"
#include "reprise/io/json.h"
#include "reprise/runtime/measure.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;

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

class ErrorTest : public RuntimeTest {
 protected:
  // The stage "fragile" throws at its call number boom_at_, after it advanced its buffers.
  std::vector<Stage> fragile_stages() {
    auto block = [this](const std::string& name, int64_t from, bool fragile) -> Stage {
      nn::Sequential inner(conv(from), nn::BatchNorm2d(8), nn::Dropout(0.2));
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
    RuntimeTest::TearDown();
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
  // Every run fails once, and so does a run in the backward.
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
    EXPECT_EQ(memory_limit(), std::nullopt);
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
  // The last stage's backward needs so much that the smallest budget leaves no room beside it for
  // the other stages. They all run again.
  std::vector<Stage> stages = fragile_stages();
  stages.push_back(layer("wide", conv(8, 64)));
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  remat->plan_for({images_});
  ASSERT_GT(planned_runs(*remat).at("a"), 1);
  for (const bool input : {false, true}) {
    SCOPED_TRACE(input ? "input" : "parameter");
    const Bits before = bits_now(stages, {});
    at::Tensor loss = mean_square({remat->forward(images_)});
    {
      at::NoGradGuard no_grad;
      (input ? images_ : stages[0].module->parameters()[0]).mul_(1);
    }
    try {
      loss.backward();
      ADD_FAILURE() << "not noticed";
    } catch (const InputError& error) {
      const std::string name = input ? "input" : "'a'";
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

}  // namespace
}  // namespace reprise::runtime::testing
