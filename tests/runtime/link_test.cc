// Tests what the planner knows of the link between ranks, and that the sums of a step hide behind
// its operations. The group has one rank, and its link is slow.
#include "runtime/graph/link.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "fixture.h"
#include "oracle/plan_laws.h"
#include "reprise/check/explain.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/runtime/capture.h"
#include "runtime/graph/link_search.h"
#include "slow_link.h"
#include "support/random_copies.h"
#include "support/scale.h"

namespace reprise::runtime {
namespace {

// A deep network whose activations take more memory than its parameters.
torch::nn::Sequential network(int layers, int64_t width) {
  torch::manual_seed(5);
  torch::nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

StepFunction step_of(torch::nn::Sequential model) {
  return [model](const Tensors& in) mutable {
    const at::Tensor loss = model->forward(in[0]).square().mean();
    loss.backward();
    return Tensors{loss};
  };
}

class LinkTest : public testing::RuntimeTest {};

TEST_F(LinkTest, ThePlanOfAGroupHasItsSumsOnTheLink) {
  const reprise::testing::SlowGroup group("slow", std::chrono::milliseconds(1), 100e6);
  torch::nn::Sequential model = network(6, 64);
  const StepFunction step = step_of(model);
  step({rows_});
  const at::Tensor expected = model->parameters()[0].grad().clone();
  model->zero_grad();
  CapturedStep captured = capture(
      step, {rows_}, {.modules = {model.ptr()}, .group = "slow", .bucket_cap = Bytes(16640)});
  const PlanResult& planned = captured.plan({.budget = "75%", .time_limit = Nanos(200'000'000)});
  const Plan plan = *planned.plan;
  const Machine machine = captured.machine();
  ASSERT_EQ(machine.channels.size(), 1U);
  EXPECT_EQ(machine.memories.at(1).name, "ranks");
  // The link sleeps at least so long, so that no sum is measured to be faster.
  EXPECT_GE(copy_time(machine.channels[0], Bytes(16640)), Nanos(1'100'000));
  EXPECT_EQ(verify(captured.graph(), plan, planned.budget, machine), std::vector<Violation>{});
  const Explanation explanation = explain(captured.graph(), plan, machine);
  ASSERT_EQ(explanation.channels.size(), 1U);
  EXPECT_EQ(explanation.channels[0].copies, 6);
  EXPECT_EQ(explanation.timeline.time, plan.time);
  EXPECT_GE(plan.time, explanation.channels[0].busy);
  EXPECT_GT(plan.lower_bound, explanation.channels[0].busy);
  EXPECT_LE(plan.lower_bound, plan.time);

  captured.log_steps(1);
  for (int run = 0; run < 2; ++run) {
    model->zero_grad();
    captured.run({rows_});
    EXPECT_TRUE(at::equal(model->parameters()[0].grad(), expected));
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
    EXPECT_GT(captured.last_step().waited, Nanos(0));
  }
  const std::optional<RunLog> log = captured.run_log();
  ASSERT_TRUE(log.has_value());
  EXPECT_NO_THROW(validate(*log, plan));
  EXPECT_EQ(log->planned.time, plan.time);

  // A plan goes back as it came, and one with other sums is refused.
  captured.use(plan, {.budget = planned.budget, .offload = {.machine = machine}});
  EXPECT_EQ(captured.planned().plan->actions, plan.actions);
  Plan without = plan;
  std::erase_if(without.actions, [](const Action& a) { return a.kind == ActionKind::kWait; });
  EXPECT_THROW(captured.use(without, {.budget = planned.budget}), InputError);
  without = plan;
  without.actions[0].id = "nothing";
  EXPECT_THROW(captured.use(without, {.budget = planned.budget}), InputError);
  // A plan that knows of no link gets the sums, too.
  const PlanResult plain = reprise::plan(captured.graph(), {.time_limit = Nanos(50'000'000)});
  captured.use(*plain.plan);
  EXPECT_GT(captured.planned().plan->time, plain.plan->time);
  model->zero_grad();
  captured.run({rows_});
  EXPECT_TRUE(at::equal(model->parameters()[0].grad(), expected));
}

using internal::graph::is_sum;
using internal::graph::search_on_link;
using internal::graph::StepProgram;
using internal::graph::with_link;
using internal::graph::with_sums;
using internal::graph::without_link;
using internal::graph::without_sums;

// Layers whose saved values are as large as each other. The last layer has no weights; the gradient
// of each other one is a bucket of its own. The later a layer stands, the faster it is to run
// again, and the sooner its backward comes. Forward i takes 8 + layers - i, and every backward 20.
StepProgram some_layers(int layers, Nanos time_of_a_sum) {
  StepProgram program;
  Graph& graph = program.lowered.graph;
  int32_t works = 0;
  const auto value = [&](const std::string& id, int64_t bytes, ValueKind kind) {
    graph.values.push_back({id, Bytes(bytes), kind});
    return static_cast<ValueIndex>(graph.values.size() - 1);
  };
  const auto op = [&](const std::string& id, Phase phase, int64_t time, const auto& reads,
                      const auto& writes) -> Variant& {
    Op& added = graph.ops.emplace_back();
    added.id = id;
    added.phase = phase;
    added.once = phase != Phase::kForward;
    Variant& variant = added.variants.emplace_back();
    variant.time = Nanos(time);
    variant.reads = reads;
    variant.writes = writes;
    program.lowered.works.push_back({works++});
    return variant;
  };
  using List = std::vector<ValueIndex>;
  graph.name = "some layers";
  List layer{value("x0", 1, ValueKind::kInput)}, saved;
  for (int i = 0; i < layers; ++i) {
    layer.push_back(value("x" + std::to_string(i + 1), 1, ValueKind::kActivation));
    saved.push_back(value("s" + std::to_string(i), 100, ValueKind::kSaved));
    op("f" + std::to_string(i), Phase::kForward, 8 + layers - i,
       List{layer[static_cast<size_t>(i)]}, List{layer.back(), saved.back()});
  }
  ValueIndex gradient = value("g" + std::to_string(layers), 1, ValueKind::kGradient);
  op("loss", Phase::kLoss, 1, List{layer.back()}, List{gradient});
  List sums;
  for (int i = layers - 1; i >= 0; --i) {
    const std::string n = std::to_string(i);
    const ValueIndex next = value("g" + n, 1, ValueKind::kGradient);
    const ValueIndex weight = i + 1 < layers ? value("w" + n, 1, ValueKind::kGradient) : -1;
    op("b" + n, Phase::kBackward, 20, List{gradient, saved[static_cast<size_t>(i)]},
       i + 1 < layers ? List{next, weight} : List{next});
    gradient = next;
    if (i + 1 == layers) continue;
    sums.push_back(value("v" + n, 1, ValueKind::kGradient));
    op("start" + n, Phase::kBackward, 0, List{weight}, List{sums.back()}).reuses = {
        {sums.back(), weight}};
    program.step.buckets.all.push_back({.start = works - 1});
  }
  for (size_t b = 0; b < sums.size(); ++b) {
    const ValueIndex end = value("u" + std::to_string(b), 1, ValueKind::kGradient);
    op("wait" + std::to_string(b), Phase::kBackward, 0, List{sums[b]}, List{end}).reuses = {
        {end, sums[b]}};
    program.step.buckets.all[b].wait = works - 1;
    graph.results.push_back(end);
  }
  program.link.memories.push_back({"ranks"});
  program.link.channels.push_back(
      {.from = 0, .to = 1, .bytes_per_second = 1'000'000'000'000, .latency = time_of_a_sum});
  return program;
}

// Returns the plan with its sums, and how often it runs a layer.
std::pair<Plan, std::vector<int>> planned_on_link(const StepProgram& program, Bytes budget) {
  const Graph& graph = program.lowered.graph;
  const StepPlanOptions options{.budget = budget, .time_limit = Nanos(300'000'000)};
  const auto found = search_on_link(program, graph, options, Bytes(0), std::nullopt);
  const PlanResult shown =
      with_sums(program.lowered, graph, program.step.buckets, found.result, program.link);
  std::vector<int> runs(16, 0);
  for (const Action& action : shown.plan->actions) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (action.kind == ActionKind::kRun && action.id == "f" + std::to_string(i)) ++runs[i];
    }
  }
  EXPECT_EQ(verify(graph, *shown.plan, budget, program.link), std::vector<Violation>{});
  return {*shown.plan, runs};
}

// A host behind the device, with channels as fast as one likes.
Machine with_host(Nanos latency) {
  Machine machine;
  machine.memories.push_back({"host"});
  machine.channels.push_back({0, 1, 1'000'000'000'000, latency});
  machine.channels.push_back({1, 0, 1'000'000'000'000, latency});
  return machine;
}

TEST(SumsOnALink, AMachineOfMemoriesAndALinkComesApartAgain) {
  const Machine memories = with_host(Nanos(3)), link = some_layers(2, Nanos(5)).link;
  const Machine machine = with_link(memories, link);
  ASSERT_EQ(machine.memories.size(), 3U);
  EXPECT_EQ(machine.memories[2].name, "ranks");
  EXPECT_EQ(machine.channels.back().to, 2);
  EXPECT_EQ(with_link(machine, link), machine);
  EXPECT_EQ(without_link(machine), memories);
  EXPECT_EQ(with_link({}, link), link);
}

// Plain training moves values at random moments, also those that are summed.
TEST(SumsOnALink, EveryAccountAgrees) {
  std::mt19937_64 random(17);
  reprise::testing::Tight tight;
  reprise::testing::Judged judged;
  int64_t sums = 0, copies = 0;
  for (int number = 0; number < reprise::testing::test_scale(200); ++number) {
    const StepProgram program = some_layers(2 + static_cast<int>(random() % 5),
                                            Nanos(static_cast<int64_t>(random() % 60)));
    const Graph& graph = program.lowered.graph;
    const Machine memories = reprise::testing::random_machine(random, {.most_memories = 2});
    const Machine machine = with_link(memories, program.link);
    const std::vector<Action> moved = reprise::testing::with_random_copies(
        random, graph, memories, with_frees(graph, plain_runs(graph)));
    const std::vector<Action> actions =
        with_sums(program.lowered, graph, program.step.buckets, moved, machine);
    SCOPED_TRACE(fmt::format("plan {} on {}", number, to_json(machine)));
    const Timeline timeline = simulate(graph, actions, machine);
    const Plan plan = reprise::testing::claimed(graph, machine, actions);
    reprise::testing::expect_accounts_agree(graph, machine, plan, timeline,
                                            explain(graph, plan, machine));
    reprise::testing::expect_bytes_for_any_durations(graph, machine, actions, random, tight);
    reprise::testing::expect_damaged_is_refused_or_holds(graph, machine, actions, random, judged);
    if (HasFailure()) return;
    const auto count = std::count_if(actions.begin(), actions.end(), is_sum);
    sums += count;
    copies += static_cast<int64_t>(timeline.transfers.size());
  }
  EXPECT_GT(sums, 1000);
  EXPECT_GT(copies, sums);
  EXPECT_GT(tight.first, 100);
  EXPECT_GT(judged.refused, 50);
}

// A sum writes its bucket until it is over. So the bucket moves behind the wait for the sum, and copies
// keep the copies that they come after.
TEST(SumsOnALink, ABucketMovesWhenItsSumIsOver) {
  const StepProgram program = some_layers(3, Nanos(100));
  const Graph& graph = program.lowered.graph;
  const Machine memories = with_host(Nanos(1)), machine = with_link(memories, program.link);
  Plan plan;
  plan.actions = with_frees(graph, plain_runs(graph));
  const auto run_of = [&](const std::string& op) {
    return std::find_if(plan.actions.begin(), plan.actions.end(),
                        [&](const Action& action) { return action.id == op; });
  };
  // The first sum, v1, is under way when it moves to the host; it comes back for its wait.
  const auto moved = run_of("start0") + 1;
  const auto first = static_cast<int64_t>(moved - plan.actions.begin());
  plan.actions.insert(moved, {{ActionKind::kCopy, "v1", "", "device", "host"},
                              {ActionKind::kWait, "v1", "", "host"},
                              {ActionKind::kFree, "v1", ""},
                              {ActionKind::kCopy, "v1", "", "host", "device", {first}},
                              {ActionKind::kWait, "v1", "", "device"},
                              {ActionKind::kFree, "v1", "", "host"}});
  ASSERT_NO_THROW(simulate(graph, plan.actions, memories));
  Plan summed = plan;
  summed.actions = with_sums(program.lowered, graph, program.step.buckets, plan.actions, machine);
  EXPECT_NO_THROW(simulate(graph, summed.actions, machine));
  std::vector<std::string> of_value;
  for (const Action& action : summed.actions) {
    if (action.id != "v1") continue;
    of_value.push_back(std::string(to_string(action.kind)) + " " + action.at + " " + action.to);
  }
  const std::vector<std::string> expected{"copy device ranks", "wait ranks ",  "free ranks ",
                                          "copy device host",  "wait host ",   "free  ",
                                          "copy host device",  "wait device ", "free host "};
  EXPECT_EQ(of_value, expected);
  EXPECT_EQ(std::count_if(summed.actions.begin(), summed.actions.end(), is_sum), 2 * 3);
  for (const Action& action : summed.actions) {
    if (action.after.empty()) continue;
    EXPECT_EQ(summed.actions[action.after.at(0)].to, "host");
  }
  EXPECT_EQ(without_sums(graph, summed, machine).actions, plan.actions);
}

TEST(LinkSearch, ALayerRunsAgainWhereTheStepWouldWaitForTheLink) {
  const int forward = 12 + 11 + 10 + 9, loss = 1, backward = 20;
  const Bytes budget(350);  // for three of the four values
  // The link is fast: the layer runs again that takes least time.
  const auto [fast, cheapest] = planned_on_link(some_layers(4, Nanos(2)), budget);
  EXPECT_EQ(cheapest[2], 2);
  EXPECT_EQ(cheapest[0] + cheapest[1], 2);
  EXPECT_EQ(fast.time, Nanos(forward + loss + 4 * backward + 10 + 3));
  // The link is slow: it begins with the gradient of layer 2, which nothing delays now. What runs
  // again takes more time, and none of the step's.
  const auto [slow, hidden] = planned_on_link(some_layers(4, Nanos(100)), budget);
  EXPECT_EQ(hidden[2], 1);
  EXPECT_EQ(hidden[0] + hidden[1], 3);
  EXPECT_EQ(slow.time, Nanos(forward + loss + 2 * backward + 3 * 101));
  EXPECT_EQ(slow.termination, Termination::kOptimal);
}

TEST(LinkSearch, MostOfTheLinksTimeIsHiddenWhereTheBoundAllowsIt) {
  for (const int64_t room : {10'000, 900, 600}) {
    const StepProgram program = some_layers(12, Nanos(15));
    const auto [plan, runs] = planned_on_link(program, Bytes(room));
    const Explanation explanation = explain(program.lowered.graph, plan, program.link);
    const ChannelUse& link = explanation.channels.at(0);
    EXPECT_EQ(link.copies, 11);
    EXPECT_EQ(link.busy, Nanos(11 * 16));
    // Nothing can hide the last sum.
    EXPECT_EQ(link.waited, Nanos(16)) << room;
  }
}

}  // namespace
}  // namespace reprise::runtime
