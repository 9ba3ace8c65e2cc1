// Very many steps in a row lose no byte and no bit, in both modes.
#include <torch/optim/sgd.h>

#include <cstring>

#include "both_modes.h"
#include "support/scale.h"

namespace reprise::runtime::testing {
namespace {

// Holds what a run of many steps leaves: every loss, and the parameters and buffers at its end.
struct Course {
  std::vector<float> losses;
  Bits last;
};

// The run has momentum and batches of three sizes, which are drawn as training goes on.
class LongRun : public RuntimeTest {
 protected:
  static constexpr int64_t kSizes[] = {48, 64, 32};
  static constexpr int kStretch = 250;  // steps with one size

  // So many steps come before anything is compared. After them every kind of batch has come once,
  // and the optimizer has its state.
  static constexpr int kFirst = 3;

  void SetUp() override {
    RuntimeTest::SetUp();
    steps_ = reprise::testing::test_scale(2500);
    stages_ = small_stages();
    for (const at::Tensor& p : parameters_of(stages_)) initial_.push_back(p.detach().clone());
    state_.emplace(stages_, Tensors{});
  }

  template <class Step, class Boundary>
  Course train(Step&& step, Boundary&& boundary) {
    {
      at::NoGradGuard no_grad;
      state_->restore();
      const std::vector<at::Tensor> parameters = parameters_of(stages_);
      for (size_t i = 0; i < initial_.size(); ++i) at::Tensor(parameters[i]).copy_(initial_[i]);
    }
    torch::optim::SGD optimizer(parameters_of(stages_),
                                torch::optim::SGDOptions(0.01).momentum(0.9));
    Course course;
    course.losses.reserve(static_cast<size_t>(steps_));
    for (int n = 0; n < steps_; ++n) {
      {
        const int64_t size = n < kFirst ? kSizes[n] : kSizes[n / kStretch % 3];
        const at::Tensor loss = step(at::randn({size, 16}));
        course.losses.push_back(loss.item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
      boundary(n);
    }
    course.last = bits_now(stages_, {});
    return course;
  }

  void expect_same_course(const Course& course) {
    const Course expected =
        train([&](const at::Tensor& x) { return plain(stages_, {x}); }, [](int) {});
    ASSERT_EQ(expected.losses.size(), course.losses.size());
    EXPECT_EQ(std::memcmp(expected.losses.data(), course.losses.data(),
                          expected.losses.size() * sizeof(float)),
              0);
    EXPECT_EQ(difference(expected.last, course.last), "");
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    RecordProperty("steps", steps_);
  }

  int steps_ = 0;
  std::vector<Stage> stages_;
  std::vector<at::Tensor> initial_;
  std::optional<StepState> state_;
};

TEST_F(LongRun, ChainModeLosesNoByteAndNoBit) {
  auto model =
      remat(stages_, {at::randn({kSizes[0], 16})}, {.loss = mean_square, .measure = quick()});
  int64_t level = 0, leaks = 0;
  Bytes smallest;
  const Course course = train(
      [&](const at::Tensor& x) {
        at::Tensor loss = mean_square({model->forward(x)});
        loss.backward();
        EXPECT_LE(model->last_step().measured_peak, model->last_step().budget);
        return loss;
      },
      [&](int n) {
        if (n + 1 == kFirst) {
          level = live();
          model->set_budget({});  // plans again: each kind of batch beside what all kinds hold
          for (const int64_t size : kSizes) {
            model->plan_for({at::empty({size, 16})});
            smallest = std::max(smallest, smallest_budget(*model));
          }
        }
        if (n >= kFirst) leaks += live() != level;
        // The plan changes, also in the middle of a stretch.
        if (n >= kFirst && n % 100 == 0) {
          model->set_budget(n % 300 == 0 ? Budget() : Budget(smallest + Bytes(n % 7 * 1024)));
        }
      });
  EXPECT_EQ(leaks, 0);
  EXPECT_GT(model->last_step().plans, steps_ / 200);
  RecordProperty("plans", static_cast<int>(model->last_step().plans));
  expect_same_course(course);
}

TEST_F(LongRun, GraphModeLosesNoByteAndNoBit) {
  CaptureOptions options{.on_miss = OnMiss::kRecapture, .measure = quick()};
  CapturedStep step(step_of(stages_), {at::randn({kSizes[0], 16})}, options);
  int64_t level = 0, leaks = 0, served = 0;
  Bytes most;  // the peak of plain training with the largest batch so far
  const Course course = train(
      [&](const at::Tensor& x) {
        at::Tensor loss = step.run({x});
        EXPECT_LE(step.last_step().measured_peak, step.last_step().budget);
        served += step.last_step().served > 0;
        most = std::max(most, step.planned().baseline.peak);
        return loss;
      },
      [&](int n) {
        if (n + 1 == kFirst) level = live();
        if (n >= kFirst) leaks += live() != level;
        if (n >= kFirst && n % 500 == 0) {
          step.plan({.budget = n % 1000 == 0 ? Budget() : Budget(Budget("98%").resolve(most)),
                     .time_limit = Nanos(20'000'000)});
        }
      });
  EXPECT_EQ(leaks, 0);
  EXPECT_GT(served, steps_ * 9 / 10) << "the arena served too few steps";
  RecordProperty("plans", static_cast<int>(step.last_step().plans));
  expect_same_course(course);
}

}  // namespace
}  // namespace reprise::runtime::testing
