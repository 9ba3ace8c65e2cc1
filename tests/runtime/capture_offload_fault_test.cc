// Tests a captured step whose values move to a disk: copies may take as long as they like, and
// every failure of a copy ends the step as if it had not begun.
#include <chrono>

#include "capture_offload.h"
#include "faulty_allocator.h"
#include "faulty_disk.h"

namespace reprise::runtime::testing {

namespace {

TEST_F(CaptureOffload, RandomDelaysChangeNothingButTime) {
  FaultyDisk calls;
  for (const auto most : {std::chrono::milliseconds(4), std::chrono::milliseconds(300)}) {
    const bool slow = most.count() > 100;
    at::manual_seed(3);
    const MovingStep subject = slow ? of_chain({"dense", dense_stages(4), {rows_}, mean_square})
                                    : of_chain(of_the_zoo("gpt"));
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject, 1);
    state.restore();
    const std::vector<Bits> expected = plain_steps(subject, slow ? 1 : 3);
    state.restore();
    CapturedStep step = captured(subject);
    const Machine disk = disk_of(kFast);
    step.plan(planning(budget_at(step, disk, 0.5), disk));
    calls.delay_up_to(most);
    expect_steps(step, subject, expected);
    EXPECT_GT(step.last_step().moved_out, Bytes(0));
    calls.delay_up_to(std::chrono::milliseconds(0));
  }
}

// This says how the memory of a replayed step is served.
enum class Served { kHeap, kRecorded, kArena };

// Every call of the disk fails in turn, in each way.
TEST_F(CaptureOffload, FaultsOfTheDiskEndAStepAsIfItHadNotBegun) {
  int64_t failures = 0;
  const ChainSubject chain = convolutions_and_dropout();
  const MovingStep subject = of_chain(chain);
  FaultyDisk calls;
  const StepState state(subject.stages, subject.inputs);
  plain_steps(subject, 1);
  state.restore();
  const Bits expected = plain_steps(subject, 1)[0];
  state.restore();
  drop_gradients(subject.stages, subject.inputs);
  CapturedStep step = captured(subject);
  const Machine disk = disk_of(kFast);
  const Bytes budget = budget_at(step, disk, 0.2);
  for (const Served served : {Served::kHeap, Served::kRecorded, Served::kArena}) {
    const StepPlanOptions options = planning(budget, disk, served != Served::kHeap);
    step.plan(options);
    const Plan plan = *step.planned().plan;
    for (const DiskFault fault : {DiskFault::kNoSpace, DiskFault::kError, DiskFault::kNothing,
                                  DiskFault::kFlipsBit, DiskFault::kEndsEarly}) {
      for (int64_t k = 1;; k += 2) {
        SCOPED_TRACE(fmt::format("{}, memory {}, fault {} of call {}", subject.name,
                                 static_cast<int>(served), static_cast<int>(fault), k));
        if (served == Served::kRecorded) step.use(plan, options);
        for (int n = 0; served == Served::kArena && n < 2; ++n) {
          state.restore();
          step.run(subject.inputs);
        }
        state.restore();
        drop_gradients(subject.stages, subject.inputs);
        const Before before(chain);
        std::string error;
        calls.arm(k, fault);
        try {
          step.run(subject.inputs);
        } catch (const InputError& thrown) {
          error = thrown.what();
        }
        calls.disarm();
        if (!calls.failed()) {
          EXPECT_EQ(error, "");
          break;
        }
        if (error.empty()) continue;  // the rest of a short call came
        ++failures;
        EXPECT_NE(error.find(folder_.string()), std::string::npos) << error;
        before.expect_nothing_changed();
        const at::Tensor loss = step.run(subject.inputs);
        EXPECT_EQ(difference(expected, bits_now(subject.stages, subject.inputs, loss)), "");
        EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
      }
    }
  }
  state.restore();
  EXPECT_GT(failures, 50);
}

TEST_F(CaptureOffload, RequestsForMemoryMayFailBesideCopies) {
  const ChainSubject chain = convolutions_and_dropout();
  const MovingStep subject = of_chain(chain);
  const StepState state(subject.stages, subject.inputs);
  plain_steps(subject, 1);
  state.restore();
  const Bits expected = plain_steps(subject, 1)[0];
  int64_t failures = 0;
  for (const bool arena : {false, true}) {
    SCOPED_TRACE(arena ? "arena" : "heap");
    state.restore();
    CapturedStep step = captured(subject);
    const Machine disk = disk_of(kFast);
    const StepPlanOptions options = planning(budget_at(step, disk, 0.2), disk, arena);
    step.plan(options);
    const Plan plan = *step.planned().plan;
    std::optional<Before> before;
    failures += fail_each_request(
        Fault::kMachine, 3,
        [&] {
          if (arena) step.use(plan, options);  // its first run asks the heap for everything
          state.restore();
          drop_gradients(subject.stages, subject.inputs);
          before.emplace(chain);
        },
        [&] { step.run(subject.inputs); },
        [&] {
          before->expect_nothing_changed();
          const at::Tensor loss = step.run(subject.inputs);
          EXPECT_EQ(difference(expected, bits_now(subject.stages, subject.inputs, loss)), "");
        });
    state.restore();
  }
  EXPECT_GT(failures, 20);
}

TEST_F(CaptureOffload, FaultsWhileTheDiskIsOpenedLeaveThePlanInForce) {
  const ChainSubject chain = convolutions_and_dropout();
  const MovingStep subject = of_chain(chain);
  plain_steps(subject, 1);
  FaultyDisk calls;
  {
    CapturedStep step = captured(subject);
    const Plan plan = *step.plan({.time_limit = kShort}).plan;
    const Before before(chain);
    for (int64_t k = 1; k < 30; k += 3) {
      calls.arm(k, DiskFault::kError);
      try {
        step.plan({.time_limit = kShort, .offload = {.to = "disk:" + folder_.string()}});
      } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos);
      }
      EXPECT_TRUE(calls.failed());
      calls.disarm();
      EXPECT_EQ(*step.planned().plan, plan);
      before.expect_nothing_changed();
    }
  }
  EXPECT_EQ(calls.opened(), calls.closed());
}

}  // namespace
}  // namespace reprise::runtime::testing
