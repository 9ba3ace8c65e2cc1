// Tests graph mode with a disk behind the device: the bits of plain training, the predicted bytes,
// and nothing left behind.
#include "capture_offload.h"

#include <chrono>
#include <random>

#include "faulty_disk.h"
#include "forced_alternatives.h"
#include "reprise/check/verify.h"
#include "reprise/runtime/micro_batches.h"
#include "support/random_copies.h"

namespace reprise::runtime::testing {

namespace {

bool runs_again(const Plan& plan) {
  std::set<std::string> seen;
  return std::any_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
    return action.kind == ActionKind::kRun && !seen.insert(action.id).second;
  });
}

std::vector<MovingStep> subjects() {
  at::manual_seed(3);
  std::vector<MovingStep> all;
  for (const Case& work : {attention(0.2), convolutions(), random_operations()}) {
    all.push_back(of_case(work));
  }
  for (const char* name : {"gpt", "unet"}) all.push_back(of_chain(of_the_zoo(name)));
  return all;
}

TEST_F(CaptureOffload, StepsHaveTheBitsAndTheBytes) {
  for (const MovingStep& subject : subjects()) {
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
    const MovingStep subject = of_case(work);
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
  const MovingStep subject = of_chain({"dense", dense_stages(12), {rows_}, mean_square});
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

// A plan with a disk, one without, and one that does not exist.
TEST_F(CaptureOffload, TheBuffersComeAndGoWithThePlan) {
  const MovingStep subject = of_chain(of_the_zoo("gpt"));
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
  const MovingStep subject = of_chain(of_the_zoo("gpt"));
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
  const MovingStep subject = of_chain(of_the_zoo("gpt"));
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
