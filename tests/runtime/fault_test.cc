// A step promises this when it fails, whoever failed: parameters, gradients, buffers and random
// state are as before the step, nothing stays behind, and the next step is right. Every request for
// memory fails in turn, in every stage of both modes. User code fails, too.
#include "faulty_allocator.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "training/zoo.h"
#include "small_models.h"
#include "step_cases.h"
#include "support/scale.h"

namespace reprise::runtime::testing {

using training::Model;
using training::make_model;

namespace {

// This is a model with what its step is made of.
struct Subject {
  std::string name;
  std::vector<Stage> stages;
  Tensors inputs;
  Loss loss;
};

Subject convolutions_and_dropout() {
  at::manual_seed(3);
  return {"convolutions", conv_stages(), {at::randn({2, 3, 16, 16})}, mean_square};
}

Subject of_the_zoo(const std::string& name) {
  at::manual_seed(3);
  const Model model = make_model(small_config(name));
  return {name,
          model.stages,
          {model.sample_input()},
          [model, target = model.sample_target()](const Tensors& y) {
            return model.loss(y.at(0), target);
          }};
}

std::vector<Subject> chains() {
  return {convolutions_and_dropout(), of_the_zoo("lstm"), of_the_zoo("gpt")};
}

at::Tensor plain(const Subject& subject) {
  at::Tensor loss = subject.loss(run_plain(subject.stages, subject.inputs));
  loss.backward();
  return loss;
}

// This is the state before a step: all of it, and how much memory is live.
struct Before {
  explicit Before(const Subject& s)
      : subject(s), bits(bits_now(s.stages, s.inputs)), level(live()) {}
  void expect_nothing_changed() const {
    EXPECT_EQ(difference(bits, bits_now(subject.stages, subject.inputs)), "");
    EXPECT_EQ(live(), level);
    EXPECT_EQ(cpu_limit(), std::nullopt);
  }

  const Subject& subject;
  Bits bits;
  int64_t level;
};

class FaultTest : public RuntimeTest, public ::testing::WithParamInterface<Fault> {
 protected:
  void TearDown() override {
    RecordProperty("failures", std::to_string(failures_));
    RuntimeTest::TearDown();
  }
  // The slow tier tries all requests. Elsewhere every so manyth is tried of the many requests that
  // captured steps make.
  static int stride(int quick) { return reprise::testing::test_scale(1) > 1 ? 1 : quick; }

  static constexpr int kOfCapture = 7, kOfReplay = 41;

  int64_t failures_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Each, FaultTest, ::testing::Values(Fault::kBudget, Fault::kMachine),
                         [](const auto& fault) {
                           return fault.param == Fault::kBudget ? "budget" : "machine";
                         });

TEST_P(FaultTest, FittingAChain) {
  for (const Subject& subject : chains()) {
    SCOPED_TRACE(subject.name);
    plain(subject);  // gradients exist
    const Before before(subject);
    failures_ += fail_each_request(
        GetParam(), 1, [] {},
        [&] { remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()}); },
        [&] { before.expect_nothing_changed(); });
  }
  EXPECT_GT(failures_, 500);
}

TEST_P(FaultTest, AStepOfAChain) {
  for (const Subject& subject : chains()) {
    for (const bool accumulates : {false, true}) {
      SCOPED_TRACE(subject.name + (accumulates ? ", added to gradients" : ""));
      const StepState state(subject.stages, subject.inputs);
      auto prepare = [&] {
        state.restore();
        if (accumulates) plain(subject);
      };
      plain(subject);  // warm
      prepare();
      Bits expected;
      {
        const at::Tensor loss = plain(subject);
        expected = bits_now(subject.stages, subject.inputs, loss);
      }
      prepare();
      auto model =
          remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()});
      model->set_budget(smallest_budget(*model));
      std::optional<Before> before;
      failures_ += fail_each_request(
          GetParam(), 1,
          [&] {
            prepare();
            model->plan_for(subject.inputs);
            before.emplace(subject);
          },
          [&] {
            at::Tensor loss = subject.loss(model->forward(subject.inputs));
            loss.backward();
          },
          [&] {
            before->expect_nothing_changed();
            EXPECT_EQ(difference(expected, planned_step(*model, subject.stages, subject.inputs,
                                                        subject.loss)),
                      "");
          });
      state.restore();
    }
  }
  EXPECT_GT(failures_, 500);
}

// These are the same models as steps, and cases that only graph mode takes.
struct StepSubject {
  Subject subject;
  std::function<at::Tensor(const Tensors&)> step;  // forward, loss, backward
};

std::vector<StepSubject> steps() {
  at::manual_seed(3);
  std::vector<StepSubject> all;
  for (const Case& work :
       {in_place(), shared_norm(), tied_embedding(), lstm_of_torch(), random_operations()}) {
    all.push_back(
        {{work.name, {{work.name, work.module, {}}}, work.inputs, {}}, [work](const Tensors& in) {
           at::Tensor loss = work.loss(in);
           loss.backward();
           return loss;
         }});
  }
  for (const Subject& subject : chains()) {
    all.push_back({subject, [subject](const Tensors& in) {
                     at::Tensor loss = subject.loss(run_plain(subject.stages, in));
                     loss.backward();
                     return loss;
                   }});
  }
  return all;
}

CapturedStep captured(const StepSubject& step) {
  return capture(step.step, step.subject.inputs, {.measure = quick()});
}

TEST_P(FaultTest, CapturingAStep) {
  for (const StepSubject& step : steps()) {
    SCOPED_TRACE(step.subject.name);
    step.step(step.subject.inputs);  // gradients exist
    const Before before(step.subject);
    failures_ += fail_each_request(
        GetParam(), stride(kOfCapture), [] {}, [&] { captured(step); },
        [&] { before.expect_nothing_changed(); });
  }
  EXPECT_GT(failures_, 1000 / stride(kOfCapture));
}

// This says how the memory of a replayed step is served.
enum class Served { kHeap, kRecorded, kArena };

TEST_P(FaultTest, ReplayingAStep) {
  for (const StepSubject& step : steps()) {
    const Subject& subject = step.subject;
    const StepState state(subject.stages, subject.inputs);
    step.step(subject.inputs);  // warm
    for (const bool accumulates : {false, true}) {
      for (const Served served : {Served::kHeap, Served::kRecorded, Served::kArena}) {
        SCOPED_TRACE(fmt::format("{}{}, memory {}", subject.name,
                                 accumulates ? ", added to gradients" : "",
                                 static_cast<int>(served)));
        auto prepare = [&] {
          state.restore();
          if (accumulates) step.step(subject.inputs);
        };
        prepare();
        Bits expected;
        {
          const at::Tensor loss = step.step(subject.inputs);
          expected = bits_now(subject.stages, subject.inputs, loss);
        }
        prepare();
        CapturedStep replayed = captured(step);
        const Baseline plain = baseline(replayed.graph());
        const PlanResult tight = plan(
            replayed.graph(), {.budget = replayed.graph().fixed, .time_limit = Nanos(100'000'000)});
        const StepPlanOptions options{
            .budget = Bytes((plain.peak.count() + tight.smallest_budget->count()) / 2),
            .time_limit = Nanos(100'000'000),
            .arena = served != Served::kHeap};
        replayed.plan(options);
        std::optional<Before> before;
        failures_ += fail_each_request(
            GetParam(), stride(kOfReplay),
            [&] {
              if (served == Served::kRecorded) replayed.use(*replayed.planned().plan, options);
              for (int n = 0; served == Served::kArena && n < 2; ++n) {
                state.restore();
                replayed.run(subject.inputs);
              }
              prepare();
              before.emplace(subject);
            },
            [&] { replayed.run(subject.inputs); },
            [&] {
              before->expect_nothing_changed();
              EXPECT_EQ(difference(expected, bits_now(subject.stages, subject.inputs,
                                                      replayed.run(subject.inputs))),
                        "");
            });
        state.restore();
      }
    }
  }
  EXPECT_GT(failures_, 1000 / stride(kOfReplay));
}

// This memory looks as if a heap had given it out before: it has the bytes of a literal of the
// step.
class UsedMemory final : public BlockSource {
 public:
  void* take(int64_t bytes) override {
    constexpr float kLiteral[] = {2.0F, 3.0F};  // of in_place()
    void* data = std::aligned_alloc(64, static_cast<size_t>(bytes));
    for (int64_t at = 0; at < bytes; at += 8) {
      std::memcpy(static_cast<char*>(data) + at, kLiteral, sizeof kLiteral);
    }
    return data;
  }
  void give_back(void* data, int64_t) override { std::free(data); }
};

// The host writes literals without an operator, which shows only where it changes bytes.
TEST_F(RuntimeTest, ALiteralIsFoundInMemoryThatHeldItBefore) {
  const Case work = in_place();
  const std::vector<Stage> stages{{work.name, work.module, {}}};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = work.loss(in);
    loss.backward();
    return loss;
  };
  const Bits expected = bits_now(stages, {}, step(work.inputs));
  std::optional<CapturedStep> captured;
  {
    const BlockSourceScope used(std::make_shared<UsedMemory>());
    captured.emplace(capture(step, work.inputs, {.measure = quick()}));
  }
  for (int n = 0; n < 2; ++n) {
    drop_gradients(stages, {});
    EXPECT_EQ(difference(expected, bits_now(stages, {}, captured->run(work.inputs))), "");
  }
}

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
  const Subject subject = convolutions_and_dropout();
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
  const Subject subject{work.name, {{work.name, work.module, {}}}, work.inputs, {}};
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
  const Subject subject{work.name, {{work.name, work.module, {}}}, work.inputs, {}};
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
  const Subject subject = convolutions_and_dropout();
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
    EXPECT_EQ(cpu_limit(), std::nullopt);
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
  const Subject subject = convolutions_and_dropout();
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
  EXPECT_EQ(cpu_limit(), std::nullopt);
  parameter.remove_hook(hook);
  state.restore();
  // The gradients that were on their way wait in autograd's queue for the next pass, as in plain training.
  EXPECT_EQ(
      difference(expected, planned_step(*model, subject.stages, subject.inputs, subject.loss)), "");
  state.restore();
  EXPECT_EQ(live(), level);
}

}  // namespace
}  // namespace reprise::runtime::testing
