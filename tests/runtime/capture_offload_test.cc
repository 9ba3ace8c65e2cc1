// Graph mode with a disk behind the device: the bits of plain training, the predicted bytes, nothing
// left behind, and every failure of a copy ends the step as if it had not begun.
#include <chrono>
#include <random>

#include "fault_subjects.h"
#include "faulty_allocator.h"
#include "faulty_disk.h"
#include "forced_alternatives.h"
#include "offload_fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "step_cases.h"
#include "support/random_copies.h"

namespace reprise::runtime::testing {

namespace {

constexpr Nanos kShort{150'000'000};

// A step with what it is made of.
struct Subject {
  std::string name;
  std::vector<Stage> stages;
  Tensors inputs;
  std::function<at::Tensor(const Tensors&)> step;  // forward, loss, backward
};

Subject of_case(const Case& work) {
  return {work.name, {{work.name, work.module, {}}}, work.inputs, [work](const Tensors& in) {
            at::Tensor loss = work.loss(in);
            loss.backward();
            return loss;
          }};
}

Subject of_chain(const ChainSubject& chain) {
  return {chain.name, chain.stages, chain.inputs, [chain](const Tensors& in) {
            at::Tensor loss = chain.loss(run_plain(chain.stages, in));
            loss.backward();
            return loss;
          }};
}

// Without alternatives, operations run again or values move below plain training's peak.
AlternativeOptions none() {
  AlternativeOptions options;
  for (const AlternativeInfo& info : alternatives()) options.without.push_back(info.name);
  return options;
}

CapturedStep captured(const Subject& subject, AlternativeOptions alternatives = none()) {
  return capture(subject.step, subject.inputs,
                 {.measure = quick(), .alternatives = std::move(alternatives)});
}

std::vector<Bits> plain_steps(const Subject& subject, int count) {
  std::vector<Bits> results;
  for (int k = 0; k < count; ++k) {
    drop_gradients(subject.stages, subject.inputs);
    const at::Tensor loss = subject.step(subject.inputs);
    results.push_back(bits_now(subject.stages, subject.inputs, loss));
  }
  return results;
}

// The smallest peak that a search finds with this disk.
Bytes smallest(const CapturedStep& step, const Machine& machine) {
  const PlanResult none =
      plan(step.graph(), {.budget = step.graph().fixed, .time_limit = kShort, .machine = machine});
  return none.smallest_budget.value();
}

bool runs_again(const Plan& plan) {
  std::set<std::string> seen;
  return std::any_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
    return action.kind == ActionKind::kRun && !seen.insert(action.id).second;
  });
}

class CaptureOffload : public WithDisk {
 protected:
  StepPlanOptions planning(Bytes budget, const Machine& machine, bool arena = true) const {
    return {.budget = budget, .time_limit = kShort, .arena = arena, .offload = offload(machine)};
  }

  // Plans with the disk and all memory, and returns a budget between the smallest one (share 0) and
  // plain training's peak (share 1).
  Bytes budget_at(CapturedStep& step, const Machine& machine, double share) const {
    step.plan({.time_limit = kShort, .offload = offload(machine)});  // the buffers count now
    const int64_t least = smallest(step, machine).count();
    const int64_t most = baseline(step.graph()).peak.count();
    return Bytes(least + static_cast<int64_t>(share * static_cast<double>(most - least)));
  }

  // Runs steps, and compares them with the expected ones.
  void expect_steps(CapturedStep& step, const Subject& subject, const std::vector<Bits>& expected) {
    for (size_t n = 0; n < expected.size(); ++n) {
      SCOPED_TRACE(fmt::format("step {}", n));
      drop_gradients(subject.stages, subject.inputs);
      const at::Tensor loss = step.run(subject.inputs);
      EXPECT_EQ(difference(expected[n], bits_now(subject.stages, subject.inputs, loss)), "");
      const CapturedStepReport report = step.last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_EQ(report.waited > Nanos(0), report.moved_out > Bytes(0));
      EXPECT_LE(report.moved_out, report.moved_in) << "a value that leaves twice is sent once";
      EXPECT_EQ(report.fallbacks, 0);
    }
  }
};

std::vector<Subject> subjects() {
  at::manual_seed(3);
  std::vector<Subject> all;
  for (const Case& work : {attention(0.2), convolutions(), random_operations()}) {
    all.push_back(of_case(work));
  }
  for (const char* name : {"gpt", "unet"}) all.push_back(of_chain(of_the_zoo(name)));
  return all;
}

TEST_F(CaptureOffload, StepsHaveTheBitsAndTheBytes) {
  for (const Subject& subject : subjects()) {
    SCOPED_TRACE(subject.name);
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject, 1);  // warm up
    state.restore();
    const std::vector<Bits> expected = plain_steps(subject, 3);
    state.restore();
    drop_gradients(subject.stages, subject.inputs);
    const int64_t level = live();
    {
      CapturedStep step = captured(subject);
      const Machine disk = disk_of(kFast);
      Bytes moved, moved_in_arena;
      for (const auto& [arena, share] : {std::pair(false, 0.1), {true, 0.2}, {true, 0.5}}) {
        SCOPED_TRACE(fmt::format("{}, share {}", arena ? "arena" : "heap", share));
        state.restore();
        drop_gradients(subject.stages, subject.inputs);
        step.plan(planning(budget_at(step, disk, share), disk, arena));
        expect_steps(step, subject, expected);
        const CapturedStepReport report = step.last_step();
        Bytes& most = report.arena_height > Bytes(0) ? moved_in_arena : moved;
        most = std::max(most, report.moved_out);
        const PlanResult& result = step.planned();
        EXPECT_EQ(result.planner, "graph_levels");
        EXPECT_TRUE(verify(step.graph(), *result.plan, result.budget, step.machine()).empty());
      }
      EXPECT_GT(moved, Bytes(0)) << "nothing moved: the test shows nothing";
      EXPECT_GT(moved_in_arena, Bytes(0)) << "nothing moved in an arena";
      state.restore();
      step.plan({.time_limit = kShort, .offload = offload(disk)});
      expect_steps(step, subject, expected);
      EXPECT_EQ(step.last_step().moved_out, Bytes(0)) << "with all memory nothing has to move";
      drop_gradients(subject.stages, subject.inputs);
    }
    state.restore();
    drop_gradients(subject.stages, subject.inputs);
    EXPECT_EQ(live(), level) << "memory was left";
  }
}

// Values of every kind move at random moments, in plans that also run operations again. Here are
// values that are written in place, of which others are views, that random operations make.
TEST_F(CaptureOffload, WhateverMovesAtWhateverMomentComesBack) {
  std::mt19937_64 random(7);
  const Machine disk = disk_of(kFast);
  at::manual_seed(3);
  for (const Case& work : {in_place(), shared_norm(), tied_embedding(), lstm_of_torch(),
                           random_operations(), fine_tuning(), input_gradient(), autocast()}) {
    SCOPED_TRACE(work.name);
    const Subject subject = of_case(work);
    const StepState state(subject.stages, subject.inputs);
    plain_steps(subject, 1);
    state.restore();
    const std::vector<Bits> expected = plain_steps(subject, 3);
    state.restore();
    CapturedStep step = captured(subject, every_bitwise());
    step.plan({.budget = Budget(), .offload = offload(disk)});
    const Graph& graph = step.graph();
    const PlanResult tight = plan(graph, {.budget = graph.fixed, .time_limit = Nanos(30'000'000)});
    PlanResult result =
        plan(graph, {.budget = tight.smallest_budget.value(), .time_limit = kShort});
    if (!result.plan) result = plan(graph, {.time_limit = kShort});
    Plan moving = *result.plan;
    moving.actions = reprise::testing::with_random_copies(random, graph, disk, moving.actions);
    const Timeline timeline = simulate(graph, moving.actions, disk);
    moving.peak = timeline.peak;
    moving.time = timeline.time;
    moving.termination = Termination::kFeasible;
    step.use(moving, {.offload = offload(disk)});
    state.restore();
    expect_steps(step, subject, expected);  // the first one on the heap, the others in an arena
    EXPECT_GT(step.last_step().arena_height, Bytes(0));
    EXPECT_GT(step.last_step().moved_out, Bytes(0));
    state.restore();
  }
}

// The same with channels that are slower than the operations, so that a plan also runs operations
// again; and with channels that take turns.
TEST_F(CaptureOffload, RecomputingAndMovingTogether) {
  at::manual_seed(3);
  const Subject subject = of_chain({"dense", dense_stages(12), {rows_}, mean_square});
  const StepState state(subject.stages, subject.inputs);
  plain_steps(subject, 1);
  state.restore();
  const std::vector<Bits> expected = plain_steps(subject, 2);
  state.restore();
  CapturedStep step = captured(subject);
  bool both = false;
  for (const int64_t rate : std::vector<int64_t>{100'000'000, 400'000'000, 1'600'000'000}) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(fmt::format("{} bytes a second, {}", rate, turns));
      const Machine disk = disk_of(rate, turns);
      state.restore();
      drop_gradients(subject.stages, subject.inputs);
      step.plan(planning(budget_at(step, disk, 0.1), disk));
      expect_steps(step, subject, expected);
      both |= runs_again(*step.planned().plan) && step.last_step().moved_out > Bytes(0);
    }
  }
  EXPECT_TRUE(both) << "no plan did both: the test shows nothing";
}

TEST_F(CaptureOffload, RandomDelaysChangeNothingButTime) {
  FaultyDisk calls;
  for (const auto most : {std::chrono::milliseconds(4), std::chrono::milliseconds(300)}) {
    const bool slow = most.count() > 100;
    at::manual_seed(3);
    const Subject subject = slow ? of_chain({"dense", dense_stages(4), {rows_}, mean_square})
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
  const Subject subject = of_chain(chain);
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
  const Subject subject = of_chain(chain);
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
  const Subject subject = of_chain(chain);
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

// A plan with a disk, one without, and one that does not exist.
TEST_F(CaptureOffload, TheBuffersComeAndGoWithThePlan) {
  const Subject subject = of_chain(of_the_zoo("gpt"));
  plain_steps(subject, 1);
  drop_gradients(subject.stages, subject.inputs);
  CapturedStep step = captured(subject);
  const Bytes fixed = step.graph().fixed;
  const int64_t level = live();
  const Machine disk = disk_of(kFast);
  step.plan(planning(budget_at(step, disk, 0.2), disk));
  step.run(subject.inputs);
  drop_gradients(subject.stages, subject.inputs);
  const int64_t buffers = live() - level;
  EXPECT_EQ(buffers, step.graph().fixed.count() - fixed.count());
  EXPECT_GE(buffers, 2 << 16);
  EXPECT_THROW(step.plan(planning(fixed, disk)), BudgetError);
  EXPECT_FALSE(step.try_plan(planning(fixed, disk)).plan);
  EXPECT_EQ(live() - level, buffers);
  step.run(subject.inputs);
  EXPECT_GT(step.last_step().moved_out, Bytes(0)) << "the plan before is in force";
  drop_gradients(subject.stages, subject.inputs);
  OffloadOptions larger = offload(disk);
  larger.block = Bytes(1 << 17);
  step.plan({.time_limit = kShort, .offload = larger});
  step.run(subject.inputs);
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  drop_gradients(subject.stages, subject.inputs);
  EXPECT_GE(live() - level, 2 << 17);
  step.plan({.time_limit = kShort});
  step.run(subject.inputs);
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  drop_gradients(subject.stages, subject.inputs);
  EXPECT_EQ(live(), level);
  EXPECT_EQ(step.graph().fixed, fixed);
  EXPECT_TRUE(step.machine().channels.empty());
}

// Gradients that are used up one by one may move before they are.
TEST_F(CaptureOffload, WithAnOptimizerInTheStep) {
  at::manual_seed(3);
  const auto parameters_after = [&](bool moves) {
    at::manual_seed(5);
    nn::Sequential net;
    for (int k = 0; k < 6; ++k) {
      net->push_back(nn::Linear(64, 64));
      net->push_back(nn::Tanh());
    }
    torch::optim::Adam adam(net->parameters());
    const auto step = [&](const Tensors& in) {
      const at::Tensor loss = net->forward(in[0]).square().mean();
      loss.backward();
      return loss;
    };
    Bytes moved;
    if (moves) {
      CapturedStep captured =
          capture(step, {rows_},
                  {.measure = quick(), .alternatives = none(), .optimizer = per_parameter(adam)});
      const Machine disk = disk_of(kFast);
      captured.plan(planning(budget_at(captured, disk, 0.2), disk));
      for (int k = 0; k < 4; ++k) {
        captured.run({rows_});
        EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
      }
      EXPECT_GT(captured.last_step().moved_out, Bytes(0));
    } else {
      for (int k = 0; k < 4; ++k) {
        adam.zero_grad();
        step({rows_});
        adam.step();
      }
    }
    Bits bits;
    put_bits(bits, "parameter", net->parameters());
    return bits;
  };
  EXPECT_EQ(difference(parameters_after(false), parameters_after(true)), "");
}

// A run that reads another number ends while copies are under way, and another outcome runs.
TEST_F(CaptureOffload, OutcomesThatDifferWhileCopiesAreUnderWay) {
  FaultyDisk calls;
  calls.delay_up_to(std::chrono::milliseconds(2));
  const std::vector<Stage> stages = dense_stages(8);
  const auto plain = [&](const Tensors& in) {
    Tensors x = {in[0]};
    for (size_t s = 0; s < stages.size(); ++s) {
      if (s == 5 && in[1].gt(0).item<bool>()) x[0] = x[0] * 2;
      x = stages[s].forward(x);
    }
    at::Tensor loss = x[0].square().mean();
    loss.backward();
    return loss;
  };
  const Tensors yes = {rows_, at::ones({})}, no = {rows_, at::zeros({})};
  CapturedStep step = capture(plain, no,
                              {.on_miss = OnMiss::kRecapture,
                               .lockstep = Lockstep::kNever,
                               .measure = quick(),
                               .alternatives = none()});
  const Machine disk = disk_of(kFast);
  step.plan(planning(budget_at(step, disk, 0.3), disk));
  for (const Tensors& inputs : {no, yes, no, no, yes, yes, no}) {
    drop_gradients(stages, {});
    const Bits expected = bits_now(stages, {}, plain(inputs));
    drop_gradients(stages, {});
    EXPECT_EQ(difference(expected, bits_now(stages, {}, step.run(inputs))), "");
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
    EXPECT_GT(step.last_step().moved_out, Bytes(0));
  }
  EXPECT_EQ(step.outcomes().size(), 2U);
}

TEST_F(CaptureOffload, ARunLogHasEveryRun) {
  const Subject subject = of_chain(of_the_zoo("gpt"));
  CapturedStep step = captured(subject);
  const Machine disk = disk_of(kFast);
  step.plan(planning(budget_at(step, disk, 0.3), disk));
  step.log_steps(2);
  for (int k = 0; k < 2; ++k) {
    drop_gradients(subject.stages, subject.inputs);
    step.run(subject.inputs);
  }
  const std::optional<RunLog> log = step.run_log();
  ASSERT_TRUE(log);
  const std::vector<Action>& actions = step.planned().plan->actions;
  const auto runs = std::count_if(actions.begin(), actions.end(), [](const Action& action) {
    return action.kind == ActionKind::kRun;
  });
  EXPECT_LT(runs, static_cast<int64_t>(actions.size()));
  EXPECT_EQ(static_cast<int64_t>(log->actions.size()), runs);
  EXPECT_EQ(log->planned.peak, log->measured.peak);
}

TEST_F(CaptureOffload, InPartsAlongTheBatch) {
  const auto model = std::make_shared<nn::Linear>(64, 64);
  const auto part = [model](const Tensors& in, double share) {
    const at::Tensor loss = model->get()->forward(in[0].tanh()).tanh().square().mean() * share;
    loss.backward();
    return Tensors{loss};
  };
  MicroBatchOptions options;
  options.parts = {2};
  options.capture.measure = quick();
  options.plan.time_limit = kShort;
  options.plan.offload = {.to = "disk:" + folder_.string()};
  MicroBatches found = micro_batches(part, {rows_}, options);
  found.step.run({rows_});
  EXPECT_EQ(found.chosen.result.planner, "graph_levels");
  EXPECT_EQ(found.step.machine().channels.size(), 2U);
  EXPECT_GT(found.step.machine().channels[0].bytes_per_second, 1'000'000) << "it was measured";
  options.plan.offload.machine = found.step.machine();
  options.plan.budget = found.step.graph().fixed;
  EXPECT_THROW(micro_batches(part, {rows_}, options), BudgetError);
  options.infeasible_is_an_answer = true;
  EXPECT_FALSE(micro_batches(part, {rows_}, options).chosen.result.plan);
}

TEST_F(CaptureOffload, MistakesAreNamed) {
  const Subject subject = of_chain(of_the_zoo("gpt"));
  CapturedStep step = captured(subject);
  const auto error_of = [&](const StepPlanOptions& options) -> std::string {
    try {
      step.plan(options);
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto expect = [&](const std::string& words, const StepPlanOptions& options) {
    const std::string error = error_of(options);
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  expect("\"disk:DIRECTORY\"", {.offload = {.to = "tape:/dev/st0"}});
  expect("take a disk", {.offload = {.to = "host"}});
  expect("/no/such/place", {.offload = {.to = "disk:/no/such/place"}});
  expect("name the memory", {.offload = {.machine = disk_of(kFast)}});
  expect("does not move values", {.planner = "graph", .offload = offload(disk_of(kFast))});

  // A plan from elsewhere that moves what is not the step's own.
  const Machine disk = disk_of(kFast);
  step.plan({.time_limit = kShort, .offload = offload(disk)});
  Plan plan = *step.planned().plan;
  const std::string id = step.graph().values[0].id;
  plan.actions.push_back({ActionKind::kCopy, id, "", "device", "disk"});
  plan.actions.push_back({ActionKind::kWait, id, "", "disk"});
  plan.actions.push_back({ActionKind::kFree, id, "", "disk"});
  plan.time = simulate(step.graph(), plan.actions, disk).time;
  plan.termination = Termination::kFeasible;
  try {
    step.use(plan, {.offload = offload(disk)});
    FAIL() << "an input has moved";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot move"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
