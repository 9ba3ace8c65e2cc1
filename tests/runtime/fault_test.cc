// Every request for memory fails in turn, in every stage of both modes. Parameters, gradients,
// buffers and random state are then as before the step, nothing stays behind, and the next step is
// right.
#include "fault_subjects.h"
#include "faulty_allocator.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "step_cases.h"
#include "support/scale.h"

namespace reprise::runtime::testing {

namespace {

class FaultTest : public RuntimeTest, public ::testing::WithParamInterface<Fault> {
 protected:
  void TearDown() override {
    RecordProperty("failures", std::to_string(failures_));
    RuntimeTest::TearDown();
  }
  // The slow tier tries all requests. Elsewhere every so manyth is tried of the many requests that
  // captured steps make.
  static int stride(int quick) { return reprise::testing::test_scale(1) > 1 ? 1 : quick; }

  static constexpr int kOfFitting = 5, kOfCapture = 11, kOfReplay = 41;

  int64_t failures_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Each, FaultTest, ::testing::Values(Fault::kBudget, Fault::kMachine),
                         [](const auto& fault) {
                           return fault.param == Fault::kBudget ? "budget" : "machine";
                         });

TEST_P(FaultTest, FittingAChain) {
  for (const ChainSubject& subject : chains()) {
    SCOPED_TRACE(subject.name);
    plain(subject);  // gradients exist
    const Before before(subject);
    failures_ += fail_each_request(
        GetParam(), stride(kOfFitting), [] {},
        [&] { remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()}); },
        [&] { before.expect_nothing_changed(); });
  }
  EXPECT_GT(failures_, 500 / stride(kOfFitting));
}

TEST_P(FaultTest, AStepOfAChain) {
  for (const ChainSubject& subject : chains()) {
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
  ChainSubject subject;
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
  for (const ChainSubject& subject : chains()) {
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
    const ChainSubject& subject = step.subject;
    const StepState state(subject.stages, subject.inputs);
    step.step(subject.inputs);  // warm
    for (const bool accumulates : {false, true}) {
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
      for (const Served served : {Served::kHeap, Served::kRecorded, Served::kArena}) {
        SCOPED_TRACE(fmt::format("{}{}, memory {}", subject.name,
                                 accumulates ? ", added to gradients" : "",
                                 static_cast<int>(served)));
        prepare();
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

}  // namespace
}  // namespace reprise::runtime::testing
