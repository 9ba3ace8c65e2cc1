// Tests hostile programs: each changes something between two calls of a captured step. The captured
// step is right over all calls, or it refuses a call with the reason and changes nothing. None is
// silently wrong. tests/python/test_hostile.py has those of Python.
#include "hostile_programs.h"
#include "reprise/runtime/miss.h"

namespace reprise::runtime::testing {
namespace {

using namespace hostile;

// Global state is as before after the scope.
class FreshWorld {
 public:
  FreshWorld() { at::manual_seed(5); }
  ~FreshWorld() {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setUserEnabledMkldnn(true);
    torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
    at::set_num_threads(threads_);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::GradMode::set_enabled(true);
  }
  FreshWorld(const FreshWorld&) = delete;
  FreshWorld& operator=(const FreshWorld&) = delete;

 private:
  int threads_ = at::get_num_threads();
};

// A Life is one program from its first call on.
class Life {
 public:
  explicit Life(const Hostile& program) : program_(program) {
    for (int i = 0; i < kCalls; ++i) {
      batches_.push_back({at::randn({5, 6}), at::randn({5, 6})});
    }
  }

  Tensors inputs(int call) { return program_.inputs(batches_[static_cast<size_t>(call)], call); }

  template <class Step>
  Bits call(int number, Step step) {
    if (number == kChange) program_.change(world);
    const Tensors in = inputs(number);
    const at::Tensor loss = step(in);
    return bits_now(stages(), in, loss);
  }

  // Does the optimizer's step, and leaves no gradients behind it.
  void update() {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : world.net->parameters()) {
      if (!parameter.grad().defined()) continue;
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad() = at::Tensor();
    }
  }

  std::vector<Stage> stages() { return {{"net", world.net.ptr(), {}}}; }

  World world;

 private:
  const Hostile& program_;
  std::vector<Tensors> batches_;
};

std::vector<Bits> trained_plainly(const Hostile& program) {
  const FreshWorld fresh;
  Life life(program);
  std::vector<Bits> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(life.call(i, [&](const Tensors& in) { return program.step(life.world, in); }));
    life.update();
  }
  return calls;
}

// Returns "right", or the reason of a refusal.
std::string judged(const Hostile& program, const std::vector<Bits>& expected) {
  const FreshWorld fresh;
  Life life(program);
  CaptureOptions options{.lockstep = Lockstep::kAlways, .measure = quick()};
  if (program.named) options.modules = {life.world.net.ptr()};
  if (program.watched) {
    options.watched = program.watched(life.world);
    options.lockstep = Lockstep::kNever;
  }
  Bits before;
  try {
    const auto step = [&](const Tensors& in) { return Tensors{program.step(life.world, in)}; };
    CapturedStep captured(step, life.inputs(0), std::move(options));
    for (int i = 0; i < kCalls; ++i) {
      const Bits now = life.call(i, [&](const Tensors& in) {
        before = bits_now(life.stages(), in);
        return captured.run(in);
      });
      EXPECT_EQ(difference(expected[static_cast<size_t>(i)], now), "") << "call " << i;
      if (::testing::Test::HasFailure()) return "wrong";
      life.update();
    }
  } catch (const InputError& error) {
    if (!before.empty()) {
      EXPECT_EQ(difference(before, bits_now(life.stages(), {})), "") << "a refusal changed it";
    }
    EXPECT_GT(std::string(error.what()).size(), 30U);
    return error.what();
  }
  return "right";
}

class HostileTest : public RuntimeTest {};

TEST_F(HostileTest, IsRightOrRefusedWithTheReason) {
  int right = 0, refused = 0;
  for (const Hostile& program : hostile_programs()) {
    SCOPED_TRACE(program.name);
    const std::string verdict = judged(program, trained_plainly(program));
    (verdict == "right" ? right : refused) += 1;
    if (program.right) {
      EXPECT_EQ(verdict, "right");
    }
    std::cout << program.name << ": " << verdict.substr(0, 160) << "\n";
    if (HasFailure()) return;
  }
  EXPECT_GE(right, 4);
  EXPECT_GE(refused, 25);
}

// A watched value is compared before anything runs, whatever lockstep does.
TEST_F(HostileTest, AWatchedValueIsNamedWithBothTexts) {
  World world;
  const Tensors batch{at::randn({5, 6})};
  CapturedStep step([&](const Tensors& in) { return Tensors{scaled(world, in)}; }, batch,
                    {.watched = {watch("the factor", world.number)},
                     .lockstep = Lockstep::kNever,
                     .measure = quick()});
  const std::vector<std::string> guards = step.guards();
  EXPECT_EQ(guards.back(), "the factor");
  step.run(batch);
  world.number = 0.1;
  try {
    step.run(batch);
    FAIL() << "nothing was noticed";
  } catch (const StepMiss& miss) {
    EXPECT_EQ(miss.kind(), StepMiss::Kind::kState);
    EXPECT_NE(std::string(miss.what()).find("the factor: 0.1 instead of 1"), std::string::npos)
        << miss.what();
  }
  world.number = 1;
  step.run(batch);
}

TEST_F(HostileTest, AWatchedValueThatChangesIsCapturedAgain) {
  World world;
  world.net->eval();  // so that two runs compute the same
  const Tensors batch{at::randn({5, 6})};
  CapturedStep step([&](const Tensors& in) { return Tensors{scaled(world, in)}; }, batch,
                    {.watched = {watch("the factor", world.number)},
                     .on_miss = OnMiss::kRecapture,
                     .lockstep = Lockstep::kNever,
                     .measure = quick()});
  for (const double factor : {1.0, 0.5, 2.0}) {
    world.number = factor;
    world.net->zero_grad();
    const at::Tensor found = step.run(batch);
    EXPECT_TRUE(at::equal(found, scaled(world, batch).detach())) << factor;
  }
}

TEST_F(HostileTest, AWatchedValueWithoutAFunctionIsRefused) {
  World world;
  EXPECT_THROW(CapturedStep([&](const Tensors& in) { return Tensors{scaled(world, in)}; },
                            {at::randn({5, 6})}, {.watched = {{"empty", {}}}}),
               InputError);
}

enum class Half { kFirst, kSecond };

TEST(WatchedValues, HaveTextsThatDifferWhereTheValuesDiffer) {
  double number = 0.1;
  float small = 0.1F;
  int64_t count = -3;
  bool flag = false;
  std::string text = "adam";
  Half phase = Half::kFirst;
  const std::vector<WatchedValue> values = {watch("a", number), watch("b", small),
                                            watch("c", count),  watch("d", flag),
                                            watch("e", text),   watch("f", phase)};
  std::vector<std::string> before;
  for (const WatchedValue& value : values) before.push_back(value.read());
  EXPECT_EQ(before, (std::vector<std::string>{"0.1", "0.1", "-3", "false", "adam", "0"}));
  number = std::nextafter(0.1, 1.0);
  small = std::nextafter(0.1F, 1.0F);
  count = 4;
  flag = true;
  text = "sgd";
  phase = Half::kSecond;
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NE(values[i].read(), before[i]) << i;
}

}  // namespace
}  // namespace reprise::runtime::testing
