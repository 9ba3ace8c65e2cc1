// User code throws: an observer, a step, a loss, a hook. The model is then as before the step, or
// as plain training would leave it.
#include "fault_subjects.h"
#include "reprise/runtime/capture.h"
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

// User code throws this exception.
struct Boom : std::runtime_error {
  Boom() : std::runtime_error("boom") {}
};

// Calls `attempt` with a counter that throws at its first call, then at its second, and so on,
// until `attempt` succeeds. Calls `check` after each failure. Returns the number of failures.
template <class Attempt, class Check>
int throw_at_each_call(Attempt&& attempt, Check&& check) {
  for (int at = 1;; ++at) {
    SCOPED_TRACE(fmt::format("call {}", at));
    int calls = 0;
    const std::function<void()> count = [&] {
      if (++calls == at) throw Boom();
    };
    try {
      attempt(count);
    } catch (const Boom&) {
      check();
      continue;
    }
    EXPECT_LT(calls, at) << "an exception was swallowed";
    return at - 1;
  }
}

class UserCodeTest : public RuntimeTest {};

TEST_F(UserCodeTest, AnObserverThatThrowsStopsFittingAndNothingElse) {
  const ChainSubject subject = convolutions_and_dropout();
  plain(subject);
  const Before before(subject);
  const int thrown = throw_at_each_call(
      [&](const std::function<void()>& call) {
        remat(subject.stages, subject.inputs,
              {.budget = "90%",
               .loss = subject.loss,
               .measure = quick(),
               .observer = [&](const Progress&) { call(); }});
      },
      [&] { before.expect_nothing_changed(); });
  EXPECT_GT(thrown, 10);
}

TEST_F(UserCodeTest, AStepThatThrowsWhileItIsCapturedLeavesNothingBehind) {
  const Case work = shared_norm();
  const ChainSubject subject{work.name, {{work.name, work.module, {}}}, work.inputs, {}};
  work.loss(work.inputs).backward();  // gradients exist
  const Before before(subject);
  const int thrown = throw_at_each_call(
      [&](const std::function<void()>& call) {
        CaptureOptions options{.measure = quick()};
        options.measure.observer = [&](const Progress&) { call(); };
        capture(
            [&](const Tensors& in) {
              call();  // before the step
              at::Tensor loss = work.loss(in);
              call();  // the statistics have advanced
              loss.register_hook([&](at::Tensor gradient) {
                call();  // in the backward pass
                return gradient;
              });
              loss.backward();
              call();  // gradients are there
              return loss;
            },
            work.inputs, options);
      },
      [&] { before.expect_nothing_changed(); });
  EXPECT_GT(thrown, 3 * 4 + 10);
}

TEST_F(UserCodeTest, AnObserverThatThrowsWhileAStepIsPlannedLeavesThePlanBefore) {
  const Case work = convolutions();
  const ChainSubject subject{work.name, {{work.name, work.module, {}}}, work.inputs, {}};
  CapturedStep step = capture(
      [&](const Tensors& in) {
        at::Tensor loss = work.loss(in);
        loss.backward();
        return loss;
      },
      work.inputs, {.measure = quick()});
  const Bits expected = bits_now(subject.stages, {}, step.run(work.inputs));
  step.plan({.budget = "100%", .time_limit = Nanos(50'000'000)});
  const PlanResult planned = step.planned();
  const int thrown = throw_at_each_call(
      [&](const std::function<void()>& call) {
        step.plan({.budget = "90%",
                   .time_limit = Nanos(50'000'000),
                   .observer = [&](const Progress&) { call(); }});
      },
      [&] {
        EXPECT_EQ(step.planned().plan->actions, planned.plan->actions);
        EXPECT_EQ(step.planned().budget, planned.budget);
        for (int n = 0; n < 2; ++n) {
          drop_gradients(subject.stages, {});
          EXPECT_EQ(difference(expected, bits_now(subject.stages, {}, step.run(work.inputs))), "");
          EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
        }
      });
  EXPECT_GT(thrown, 0);
}

// The caller's code runs between the two halves of a step. An exception in it has the same effect
// as in plain training: the forward pass has happened.
TEST_F(UserCodeTest, ALossThatThrowsLeavesWhatPlainTrainingLeaves) {
  const ChainSubject subject = convolutions_and_dropout();
  const StepState state(subject.stages, subject.inputs);
  auto model = remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()});
  model->set_budget(smallest_budget(*model));
  model->plan_for(subject.inputs);
  const int64_t level = live();
  auto step_that_throws = [&](const std::function<Tensors(const Tensors&)>& forward,
                              bool in_backward) {
    state.restore();
    EXPECT_THROW(
        {
          at::Tensor loss = subject.loss(forward(subject.inputs));
          if (!in_backward) throw Boom();
          loss.register_hook([](const at::Tensor& gradient) -> at::Tensor {
            if (gradient.defined()) throw Boom();
            return gradient;
          });
          loss.backward();
        },
        Boom);
    return bits_now(subject.stages, subject.inputs);
  };
  state.restore();
  const Bits expected = [&] {
    const at::Tensor loss = plain(subject);
    return bits_now(subject.stages, subject.inputs, loss);
  }();
  for (const bool in_backward : {false, true}) {
    const Bits left = step_that_throws(
        [&](const Tensors& x) { return run_plain(subject.stages, x); }, in_backward);
    EXPECT_EQ(difference(left, step_that_throws([&](const Tensors& x) { return model->forward(x); },
                                                in_backward)),
              "");
    EXPECT_EQ(live(), level);
    EXPECT_EQ(memory_limit(), std::nullopt);
    state.restore();
    EXPECT_EQ(
        difference(expected, planned_step(*model, subject.stages, subject.inputs, subject.loss)),
        "");
    state.restore();
  }
}

// Hooks of parameters run when the step is over. If a hook throws, the step is done, but for the
// gradients that autograd had not come to.
TEST_F(UserCodeTest, AHookOfAParameterThatThrowsLeavesBuffersAndRandomStateOfADoneStep) {
  const ChainSubject subject = convolutions_and_dropout();
  const StepState state(subject.stages, subject.inputs);
  auto model = remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()});
  model->set_budget(smallest_budget(*model));
  model->plan_for(subject.inputs);
  state.restore();
  const Bits expected = [&] {
    const at::Tensor loss = plain(subject);
    return bits_now(subject.stages, subject.inputs, loss);
  }();
  const at::Tensor parameter = parameters_of(subject.stages)[0];
  state.restore();
  const int64_t level = live();
  const unsigned hook =
      parameter.register_hook([](const at::Tensor&) -> at::Tensor { throw Boom(); });
  {
    at::Tensor loss = subject.loss(model->forward(subject.inputs));
    EXPECT_THROW(loss.backward(), Boom);
  }
  EXPECT_FALSE(parameter.grad().defined());
  drop_gradients(subject.stages, {});
  const Bits left = bits_now(subject.stages, subject.inputs);
  for (const auto& [name, bytes] : left) EXPECT_EQ(expected.at(name), bytes) << name;
  EXPECT_EQ(memory_limit(), std::nullopt);
  parameter.remove_hook(hook);
  state.restore();
  // The gradients that were on their way wait in autograd's queue for the next pass, as in plain
  // training.
  EXPECT_EQ(
      difference(expected, planned_step(*model, subject.stages, subject.inputs, subject.loss)), "");
  state.restore();
  EXPECT_EQ(live(), level);
}

}  // namespace
}  // namespace reprise::runtime::testing
