// Tests chain mode with a disk behind the device: the bits of plain training, the predicted bytes,
// nothing left behind, and every failure of a copy ends the step as if it had not begun.
#include "reprise/runtime/offload.h"

#include <algorithm>
#include <chrono>

#include "fault_subjects.h"
#include "faulty_allocator.h"
#include "faulty_disk.h"
#include "offload_fixture.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"

namespace reprise::runtime::testing {

namespace {

class OffloadTest : public WithDisk {
 protected:
  std::shared_ptr<Remat> planned(const ChainSubject& subject, const Machine& machine,
                                 const std::string& planner = {}) const {
    return remat(subject.stages, subject.inputs,
                 {.planner = planner,
                  .time_limit = Nanos(300'000'000),
                  .loss = subject.loss,
                  .measure = quick(),
                  .offload = offload(machine)});
  }
};

Bytes smallest_with_disk(const Remat& remat, const std::string& planner = {}) {
  const PlanResult none = plan(remat.chain(), {.budget = remat.chain().fixed,
                                               .planner = planner,
                                               .schedule_class = kScheduleClass,
                                               .time_limit = Nanos(300'000'000),
                                               .machine = remat.machine()});
  return none.smallest_budget.value();
}

// Runs steps at this budget, and compares them with the expected ones.
void expect_steps(Remat& remat, const ChainSubject& subject, const std::vector<Bits>& expected,
                  Bytes budget) {
  remat.set_budget(budget);
  for (const Bits& bits : expected) {
    drop_gradients(subject.stages, subject.inputs);
    EXPECT_EQ(difference(bits, planned_step(remat, subject.stages, subject.inputs, subject.loss)),
              "");
    const StepReport step = remat.last_step();
    EXPECT_EQ(step.predicted_peak.count(), step.measured_peak.count());
    EXPECT_LE(step.measured_peak, budget);
    EXPECT_EQ(step.moved_out, step.moved_in);
  }
}

bool runs_again(const Remat& remat) {
  for (const auto& [stage, runs] : planned_runs(remat)) {
    if (runs > 1) return true;
  }
  return false;
}

std::vector<ChainSubject> subjects() {
  return {convolutions_and_dropout(), of_the_zoo("mlp"),  of_the_zoo("resnet20"),
          of_the_zoo("unet"),         of_the_zoo("lstm"), of_the_zoo("gpt")};
}

TEST_F(OffloadTest, StepsHaveTheBitsAndTheBytes) {
  for (const ChainSubject& subject : subjects()) {
    SCOPED_TRACE(subject.name);
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject.stages, subject.inputs, subject.loss, 1);  // warm up
    state.restore();
    const std::vector<Bits> expected = plain_steps(subject.stages, subject.inputs, subject.loss, 2);
    state.restore();
    const int64_t level = live();
    {
      auto model = planned(subject, disk_of(kFast));
      const Bytes least = smallest_with_disk(*model), most = largest_budget(*model);
      Bytes moved;
      for (const Bytes budget : {least, Bytes((least.count() + most.count()) / 2), most}) {
        SCOPED_TRACE(budget.count());
        state.restore();
        expect_steps(*model, subject, expected, budget);
        moved = std::max(moved, model->last_step().moved_out);
        EXPECT_TRUE(verify(lower(model->chain()), *model->plan().plan, model->plan().budget,
                           model->machine())
                        .empty());
      }
      EXPECT_GT(moved, Bytes(0)) << "nothing moved: the test shows nothing";
      EXPECT_EQ(model->last_step().moved_out, Bytes(0)) << "with all memory nothing has to move";
      drop_gradients(subject.stages, subject.inputs);
    }
    state.restore();
    drop_gradients(subject.stages, subject.inputs);
    EXPECT_EQ(live(), level) << "memory was left";
  }
}

// The same with channels that are slower than the stages, so that a plan also runs stages again; and
// with channels that take turns.
TEST_F(OffloadTest, RecomputingAndMovingTogether) {
  at::manual_seed(3);
  const ChainSubject subject{"dense", dense_stages(12), {at::randn({256, 64})}, mean_square};
  const StepState state(subject.stages, subject.inputs);
  plain_steps(subject.stages, subject.inputs, subject.loss, 1);
  state.restore();
  const std::vector<Bits> expected = plain_steps(subject.stages, subject.inputs, subject.loss, 2);
  bool both = false;
  for (const int64_t rate :
       std::vector<int64_t>{50'000'000, 200'000'000, 800'000'000, 3'000'000'000}) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(fmt::format("{} bytes a second, {}", rate, turns));
      auto model = planned(subject, disk_of(rate, turns));
      const Bytes least = smallest_with_disk(*model), most = largest_budget(*model);
      state.restore();
      expect_steps(*model, subject, expected, Bytes((3 * least.count() + most.count()) / 4));
      both |= runs_again(*model) && model->last_step().moved_out > Bytes(0);
    }
  }
  EXPECT_TRUE(both) << "no plan did both: the test shows nothing";
}

TEST_F(OffloadTest, EveryPlannerThatMoves) {
  for (const char* planner : {"levels", "offload_only", "save_on_cpu"}) {
    Bytes moved;  // of all networks: `levels` may run stages again where that is faster
    for (const ChainSubject& subject : {convolutions_and_dropout(), of_the_zoo("gpt")}) {
      SCOPED_TRACE(fmt::format("{}, {}", subject.name, planner));
      const StepState state(subject.stages, subject.inputs);
      plain_steps(subject.stages, subject.inputs, subject.loss, 1);
      state.restore();
      const std::vector<Bits> expected =
          plain_steps(subject.stages, subject.inputs, subject.loss, 2);
      auto model = planned(subject, disk_of(kFast), planner);
      state.restore();
      expect_steps(*model, subject, expected, smallest_with_disk(*model, planner));
      moved += model->last_step().moved_out;
    }
    EXPECT_GT(moved, Bytes(0)) << planner << " moved nothing: the test shows nothing";
  }
}

TEST_F(OffloadTest, RandomDelaysChangeNothingButTime) {
  FaultyDisk calls;
  for (const auto most : {std::chrono::milliseconds(4), std::chrono::milliseconds(1000)}) {
    at::manual_seed(3);
    const bool slow = most.count() > 100;
    const ChainSubject subject = slow ? ChainSubject{"dense", dense_stages(4), {rows_}, mean_square}
                                      : convolutions_and_dropout();
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject.stages, subject.inputs, subject.loss, 1);
    state.restore();
    const std::vector<Bits> expected =
        plain_steps(subject.stages, subject.inputs, subject.loss, slow ? 1 : 3);
    auto model = planned(subject, disk_of(kFast));
    state.restore();
    calls.delay_up_to(most);
    expect_steps(*model, subject, expected, smallest_with_disk(*model));
    EXPECT_GT(model->last_step().waited, Nanos(0));
    calls.delay_up_to(std::chrono::milliseconds(0));
  }
}

// Every call of the disk fails in turn, in each way.
TEST_F(OffloadTest, FaultsOfTheDiskEndAStepAsIfItHadNotBegun) {
  int64_t failures = 0;
  for (const ChainSubject& subject : chains()) {
    SCOPED_TRACE(subject.name);
    FaultyDisk calls;
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject.stages, subject.inputs, subject.loss, 1);
    state.restore();
    const Bits expected = plain_steps(subject.stages, subject.inputs, subject.loss, 1)[0];
    state.restore();
    drop_gradients(subject.stages, subject.inputs);
    auto model = planned(subject, disk_of(kFast), "save_on_cpu");
    model->set_budget(smallest_with_disk(*model, "save_on_cpu"));
    for (const DiskFault fault : {DiskFault::kNoSpace, DiskFault::kError, DiskFault::kNothing,
                                  DiskFault::kFlipsBit, DiskFault::kEndsEarly}) {
      for (int64_t k = 1;; ++k) {
        SCOPED_TRACE(fmt::format("fault {} of call {}", static_cast<int>(fault), k));
        state.restore();
        drop_gradients(subject.stages, subject.inputs);
        model->plan_for(subject.inputs);
        const Before before(subject);
        std::string error;
        calls.arm(k, fault);
        try {
          at::Tensor loss = subject.loss(model->forward(subject.inputs));
          loss.backward();
        } catch (const InputError& thrown) {
          error = thrown.what();
        }
        calls.disarm();
        if (!calls.failed()) {
          EXPECT_EQ(error, "");
          break;
        }
        if (error.empty())
          continue;  // the rest of a short call came, or a write had no bit to flip
        ++failures;
        EXPECT_NE(error.find(folder_.string()), std::string::npos) << error;
        before.expect_nothing_changed();
        EXPECT_EQ(difference(expected,
                             planned_step(*model, subject.stages, subject.inputs, subject.loss)),
                  "");
      }
    }
    state.restore();
  }
  EXPECT_GT(failures, 200);
}

TEST_F(OffloadTest, FaultsWhileTheDiskIsOpenedLeaveNothing) {
  const ChainSubject subject = convolutions_and_dropout();
  plain(subject);
  const Before before(subject);
  FaultyDisk calls;
  for (int64_t k = 1; k < 40; ++k) {
    calls.arm(k, DiskFault::kError);
    try {
      remat(subject.stages, subject.inputs,
            {.loss = subject.loss,
             .measure = quick(),
             .offload = {.to = "disk:" + folder_.string()}});
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos);
    }
    EXPECT_TRUE(calls.failed());
    calls.disarm();
    before.expect_nothing_changed();
  }
  EXPECT_EQ(calls.opened(), calls.closed());
}

TEST_F(OffloadTest, RequestsForMemoryMayFailBesideCopies) {
  int64_t failures = 0;
  for (const Fault fault : {Fault::kBudget, Fault::kMachine}) {
    const ChainSubject subject = convolutions_and_dropout();
    const StepState state(subject.stages, subject.inputs);
    plain(subject);
    state.restore();
    Bits expected;
    {
      const at::Tensor loss = plain(subject);
      expected = bits_now(subject.stages, subject.inputs, loss);
    }
    state.restore();
    auto model = planned(subject, disk_of(kFast), "save_on_cpu");
    model->set_budget(smallest_with_disk(*model, "save_on_cpu"));
    std::optional<Before> before;
    failures += fail_each_request(
        fault, 1,
        [&] {
          state.restore();
          model->plan_for(subject.inputs);
          before.emplace(subject);
        },
        [&] {
          at::Tensor loss = subject.loss(model->forward(subject.inputs));
          loss.backward();
        },
        [&] {
          before->expect_nothing_changed();
          EXPECT_EQ(difference(expected,
                               planned_step(*model, subject.stages, subject.inputs, subject.loss)),
                    "");
        });
    state.restore();
  }
  EXPECT_GT(failures, 100);
}

TEST_F(OffloadTest, StepsThatEndEarlyGiveEverythingBack) {
  const ChainSubject subject = convolutions_and_dropout();
  const StepState state(subject.stages, subject.inputs);
  plain(subject);
  state.restore();
  const std::vector<Bits> expected = plain_steps(subject.stages, subject.inputs, subject.loss, 1);
  FaultyDisk calls;
  calls.delay_up_to(std::chrono::milliseconds(5));
  auto model = planned(subject, disk_of(kFast), "save_on_cpu");
  model->set_budget(smallest_with_disk(*model, "save_on_cpu"));
  state.restore();
  const int64_t level = live();
  for (int k = 0; k < 3; ++k) {
    const at::Tensor y = model->forward(subject.inputs[0]);  // no backward follows
  }
  EXPECT_EQ(live(), level);
  state.restore();
  drop_gradients(subject.stages, subject.inputs);
  expect_steps(*model, subject, expected, model->plan().budget);
}

// Who holds a tensor whose memory is elsewhere cannot read it, and is told why.
TEST_F(OffloadTest, AReadOfWhatIsAwayThrows) {
  std::vector<Stage> stages = dense_stages(6);
  at::Tensor kept;
  stages[2].forward = [&kept, inner = stages[2].forward](const Tensors& x) {
    Tensors y = inner(x);
    kept = y[0].detach();
    return y;
  };
  const ChainSubject subject{"dense", stages, {rows_}, mean_square};
  auto model = planned(subject, disk_of(kFast), "save_on_cpu");
  kept = at::Tensor();
  model->set_budget(smallest_with_disk(*model, "save_on_cpu"));
  const at::Tensor y = model->forward(subject.inputs[0]);
  std::string told;
  try {
    kept.sum();
  } catch (const std::exception& error) {
    told = error.what();
  }
  EXPECT_NE(told.find("moved the memory of this tensor away"), std::string::npos) << told;
  kept = at::Tensor();
}

// A stage may hand on memory of its module, which cannot be taken away.
TEST_F(OffloadTest, MemoryOfOthersStays) {
  std::vector<Stage> stages = dense_stages(5);
  auto module = std::make_shared<nn::Module>();
  const at::Tensor table = module->register_buffer("table", at::randn({256, 64}));
  stages[1].module = nullptr;
  stages[1] = {"table", module, [table](const Tensors& x) {
                 return Tensors{x.at(0).relu(), table};
               }};
  stages[2].forward = [inner = stages[2].forward](const Tensors& x) {
    return inner({x.at(0) * x.at(1)});
  };
  const ChainSubject subject{"table", stages, {rows_}, mean_square};
  const StepState state(subject.stages, subject.inputs);
  plain(subject);
  state.restore();
  const std::vector<Bits> expected = plain_steps(subject.stages, subject.inputs, subject.loss, 1);
  state.restore();
  auto model = planned(subject, disk_of(kFast), "offload_only");
  model->set_budget(smallest_with_disk(*model, "offload_only"));
  drop_gradients(subject.stages, subject.inputs);
  EXPECT_EQ(
      difference(expected[0], planned_step(*model, subject.stages, subject.inputs, subject.loss)),
      "");
  EXPECT_GT(model->last_step().moved_out, Bytes(0));
}

TEST_F(OffloadTest, StepsInFlightAndModelsBesideEachOther) {
  const ChainSubject subject = convolutions_and_dropout();
  const StepState state(subject.stages, subject.inputs);
  plain(subject);
  auto first = planned(subject, disk_of(kFast), "save_on_cpu");
  auto second = planned(subject, disk_of(kFast), "save_on_cpu");
  auto step = [&](const std::vector<Remat*>& models) {
    state.restore();
    drop_gradients(subject.stages, subject.inputs);
    std::vector<at::Tensor> losses;
    for (Remat* model : models) losses.push_back(subject.loss(model->forward(subject.inputs)));
    for (const at::Tensor& loss : losses) loss.backward();
    return bits_now(subject.stages, subject.inputs, losses.back());
  };
  auto whole = remat(subject.stages, subject.inputs, {.loss = subject.loss, .measure = quick()});
  const Bits expected = step({whole.get(), whole.get()});
  EXPECT_EQ(difference(expected, step({first.get(), first.get()})), "");
  EXPECT_EQ(difference(expected, step({first.get(), second.get()})), "");
}

TEST_F(OffloadTest, ARunLogHasEveryRun) {
  const ChainSubject subject = convolutions_and_dropout();
  auto model = planned(subject, disk_of(kFast), "save_on_cpu");
  model->log_steps(2);
  for (int k = 0; k < 2; ++k) {
    drop_gradients(subject.stages, subject.inputs);
    planned_step(*model, subject.stages, subject.inputs, subject.loss);
  }
  const std::optional<RunLog> log = model->run_log();
  ASSERT_TRUE(log);
  EXPECT_EQ(log->steps, 2);
  size_t runs = 0;
  for (const Action& action : model->plan().plan->actions) {
    runs += action.kind == ActionKind::kRun ? 1 : 0;
  }
  EXPECT_EQ(log->actions.size() + 1, runs) << "all but the loss";
  EXPECT_EQ(log->planned.peak, log->measured.peak);
}

TEST_F(OffloadTest, MeasuresTheDiskByItself) {
  const ChainSubject subject = convolutions_and_dropout();
  auto model = remat(
      subject.stages, subject.inputs,
      {.loss = subject.loss, .measure = quick(), .offload = {.to = "disk:" + folder_.string()}});
  EXPECT_EQ(model->machine().channels.size(), 2U);
  EXPECT_GT(model->machine().channels[0].bytes_per_second, 1'000'000);
  EXPECT_EQ(model->plan().planner, "levels");
}

TEST_F(OffloadTest, MistakesAreNamed) {
  const ChainSubject subject = convolutions_and_dropout();
  auto error_of = [&](OffloadOptions options) -> std::string {
    try {
      remat(subject.stages, subject.inputs,
            {.loss = subject.loss, .measure = quick(), .offload = std::move(options)});
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(error_of({.to = "tape:/dev/st0"}).find("\"disk:DIRECTORY\""), std::string::npos);
  EXPECT_NE(error_of({.to = "disk:"}).find("\"disk:DIRECTORY\""), std::string::npos);
  EXPECT_NE(error_of({.to = "disk:/no/such/place"}).find("/no/such/place"), std::string::npos);
  EXPECT_NE(error_of({.to = "disk:" + folder_.string(), .machine = parse_offload("host=1GB/s")})
                .find("named \"disk\""),
            std::string::npos);
  EXPECT_NE(error_of({.to = "disk:" + folder_.string(),
                      .machine = parse_offload("disk=1GB/s"),
                      .block = Bytes(1000)})
                .find("multiple of 4096"),
            std::string::npos);
}

}  // namespace
}  // namespace reprise::runtime::testing
