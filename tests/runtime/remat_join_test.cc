// Tests branches that meet in one loss: the same bits as plain training and the predicted bytes, at
// every budget.
#include "reprise/runtime/remat_join.h"

#include <ATen/ops/cat.h>

#include "fixture.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;

// A JoinCase is a model of branches, and what the tests compare of it.
struct JoinCase {
  std::vector<StageBranch> branches;
  std::vector<Tensors> inputs;
  Loss loss;
  std::vector<Stage> tail = {};

  std::vector<Stage> stages() const {
    std::vector<Stage> all;
    for (const StageBranch& branch : branches) {
      all.insert(all.end(), branch.stages.begin(), branch.stages.end());
    }
    all.insert(all.end(), tail.begin(), tail.end());
    return all;
  }
  Tensors all_inputs() const {
    Tensors all;
    for (const Tensors& own : inputs) all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  Tensors run_plain() const {
    Tensors outputs;
    for (size_t b = 0; b < branches.size(); ++b) {
      const Tensors own = testing::run_plain(branches[b].stages, inputs[b]);
      outputs.insert(outputs.end(), own.begin(), own.end());
    }
    return testing::run_plain(tail, outputs);
  }
  template <class Forward>
  Bits step(const Forward& forward) const {
    drop_gradients(stages(), all_inputs());
    at::Tensor value = loss(forward());
    value.backward();
    return bits_now(stages(), all_inputs(), value);
  }
};

at::Tensor contrast(const Tensors& outputs) {
  at::Tensor sum;
  for (size_t e = 1; e < outputs.size(); ++e) {
    const at::Tensor apart = (outputs[e - 1] - outputs[e]).square().sum(1);
    const at::Tensor term = (apart - 0.5).square().mean() + (2 - apart).clamp_min(0).mean();
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

int64_t smallest_budget(RematJoin& model, const std::vector<Tensors>& inputs) {
  model.set_budget(Budget(Bytes(1)));
  try {
    model.plan_for(inputs);
  } catch (const BudgetError& error) {
    return error.requested();
  }
  ADD_FAILURE() << "one byte is enough?";
  return 0;
}

int forward_runs(const RematJoin& model) {
  int runs = 0;
  for (const Action& action : model.plan().plan->actions) {
    runs += action.kind == ActionKind::kRun && action.id.find("/F") != std::string::npos ? 1 : 0;
  }
  return runs;
}

// Checks the promise at the smallest budget, at that of plain training, and at budgets between them.
// Returns at how many of them the backwards of the branches run in another order than plain
// training's.
int expect_same_steps(const JoinCase& wanted, const MeasureOptions& measure = quick()) {
  int reordered = 0;
  constexpr int kSteps = 2;
  const std::vector<Stage> stages = wanted.stages();
  const StepState state(stages, wanted.all_inputs());
  const auto plain = [&] { return wanted.run_plain(); };
  wanted.step(plain);  // warm up
  state.restore();
  std::vector<Bits> expected;
  for (int k = 0; k < kSteps; ++k) expected.push_back(wanted.step(plain));
  state.restore();
  const Bits before = bits_now(stages, wanted.all_inputs());
  auto model = remat_join(wanted.branches, wanted.tail, wanted.inputs,
                          {.loss = wanted.loss, .measure = measure});
  EXPECT_EQ(difference(before, bits_now(stages, wanted.all_inputs())), "") << "by measuring";
  const int64_t largest = model->plan().plan->peak.count();
  const int fewest = forward_runs(*model);
  const int64_t smallest = smallest_budget(*model, wanted.inputs);
  EXPECT_GT(smallest, 0);
  EXPECT_LT(smallest, largest);
  model->set_budget(Budget(Bytes(smallest - 1)));
  EXPECT_THROW(model->plan_for(wanted.inputs), BudgetError);
  for (int k = 0; k <= 4; ++k) {
    const int64_t budget = smallest + (largest - smallest) * k / 4;
    SCOPED_TRACE(fmt::format("budget {} of {}", budget, largest));
    model->set_budget(Budget(Bytes(budget)));
    state.restore();
    for (size_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(fmt::format("step {}", step));
      const Bits got = wanted.step([&] { return model->forward(wanted.inputs); });
      EXPECT_EQ(difference(expected[step], got), "");
      const StepReport report = model->last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
      EXPECT_LE(report.measured_peak.count(), budget);
    }
    if (budget == smallest) {
      EXPECT_GT(forward_runs(*model), fewest) << "nothing ran again";
    }
    const Join join = model->join();
    const Plan& plan = *model->plan().plan;
    const Graph graph = lower(join, interleaving_of(join, plan.actions));
    EXPECT_TRUE(verify(graph, plan, Bytes(budget), problem_id(join)).empty());
    reordered += interleaving_of(join, plan.actions) != plain_interleaving(join) ? 1 : 0;
  }
  state.restore();
  return reordered;
}

class RematJoinTest : public RuntimeTest {};

std::vector<Stage> named(std::vector<Stage> stages, const std::string& prefix) {
  for (Stage& stage : stages) stage.name = prefix + stage.name;
  return stages;
}

TEST_F(RematJoinTest, TowersOfDifferentLengths) {
  const int reordered =
      expect_same_steps({.branches = {{"image", dense_stages(5)}, {"text", dense_stages(3)}},
                         .inputs = {{rows_}, {at::randn({256, 64})}},
                         .loss = contrast});
  EXPECT_GT(reordered, 0) << "the plans have the order of plain training";
}

TEST_F(RematJoinTest, ASiameseNetworkSharesItsWeights) {
  const std::vector<Stage> tower = dense_stages(5);
  expect_same_steps({.branches = {{"left", tower}, {"right", tower}},
                     .inputs = {{rows_}, {at::randn({256, 64})}},
                     .loss = contrast});
}

TEST_F(RematJoinTest, SharedBatchNormsAndDropoutAdvanceAsInPlainTraining) {
  const std::vector<Stage> tower = conv_stages();
  expect_same_steps({.branches = {{"left", tower}, {"right", tower}},
                     .inputs = {{images_}, {at::randn({8, 3, 16, 16})}},
                     .loss = contrast});
}

TEST_F(RematJoinTest, ThreeBranchesSumInTheOrderOfPlainTraining) {
  std::vector<Stage> tower = dense_stages(3);
  tower.push_back(tower[0]);  // twice in each branch
  tower.back().name = "again";
  const at::Tensor leaf = at::randn({256, 64}).requires_grad_();
  expect_same_steps({.branches = {{"a", tower}, {"b", tower}, {"c", tower}},
                     .inputs = {{leaf}, {leaf}, {leaf}},
                     .loss = contrast});
}

TEST_F(RematJoinTest, ATailIsPartOfTheLoss) {
  const std::vector<Stage> left = named(dense_stages(4), "l"), right = named(dense_stages(3), "r");
  nn::Linear head(128, 64);
  Stage meet{"meet", head.ptr(), [head](const Tensors& y) mutable {
               return Tensors{head->forward(at::cat({y.at(0), y.at(1)}, 1)).relu()};
             }};
  // The last stage has the weights of a stage of the left branch.
  Stage again = left[1];
  again.name = "tied";
  const Loss loss = [](const Tensors& y) { return y.at(0).square().mean(); };
  const JoinCase wanted{.branches = {{"left", left}, {"right", right}},
                    .inputs = {{rows_}, {at::randn({256, 64})}},
                    .loss = loss,
                    .tail = {meet, layer("norm", nn::BatchNorm1d(64)), again}};
  expect_same_steps(wanted);
}

TEST_F(RematJoinTest, BranchesMayBeGivenOneGradient) {
  const std::vector<Stage> tower = dense_stages(4);
  const std::vector<Tensors> inputs{{rows_}, {at::randn({256, 64})}};
  // Autograd gives the same tensor to both branches; parts of one tensor; and an expanded number.
  const std::vector<Loss> losses{
      [](const Tensors& y) { return (y.at(0) + y.at(1)).square().mean(); },
      [](const Tensors& y) {
        return at::cat({y.at(0), y.at(1)}, 1).square().mean();
      },
      [](const Tensors& y) { return (y.at(0) + y.at(1)).sum(); }};
  for (const Loss& loss : losses) {
    SCOPED_TRACE(&loss - losses.data());
    expect_same_steps(
        {.branches = {{"left", tower}, {"right", tower}}, .inputs = inputs, .loss = loss});
  }
}

TEST_F(RematJoinTest, OutputsThatAreHeldCount) {
  const std::vector<Stage> tower = dense_stages(4);
  const JoinCase wanted{
      .branches = {{"left", tower}, {"right", named(conv_stages(), "c")}},
      .inputs = {{at::randn({8, 64})}, {images_}},
      .loss = [](const Tensors& y) { return y.at(0).square().mean() + y.at(1).square().mean(); }};
  auto model = remat_join(wanted.branches, {}, wanted.inputs, {.loss = wanted.loss});
  const int64_t smallest = smallest_budget(*model, wanted.inputs);
  const int64_t largest = 2 * smallest;
  for (int64_t budget = smallest; budget <= largest; budget += (largest - smallest) / 8) {
    SCOPED_TRACE(budget);
    model->set_budget(Budget(Bytes(budget)));
    drop_gradients(wanted.stages(), wanted.all_inputs());
    const Tensors outputs = model->forward(wanted.inputs);
    wanted.loss(outputs).backward();
    EXPECT_EQ(model->last_step().predicted_peak.count(), model->last_step().measured_peak.count());
  }
}

TEST_F(RematJoinTest, ABudgetErrorInAStepLeavesAllAsItWas) {
  const std::vector<Stage> tower = conv_stages();
  nn::Linear head(20, 10);
  const Stage meet{"head", head.ptr(), [head](const Tensors& y) mutable {
                     return Tensors{head->forward(at::cat({y.at(0), y.at(1)}, 1)), y.at(0)};
                   }};
  const JoinCase two{.branches = {{"left", tower}, {"right", tower}},
                 .inputs = {{images_}, {at::randn({8, 3, 16, 16})}},
                 .loss = contrast,
                 .tail = {meet}};
  const StepState state(two.stages(), two.all_inputs());
  auto model =
      remat_join(two.branches, two.tail, two.inputs, {.loss = two.loss, .measure = quick()});
  const int64_t smallest = smallest_budget(*model, two.inputs);
  model->set_budget(Budget(Bytes(smallest)));
  const Bits expected = two.step([&] { return model->forward(two.inputs); });
  state.restore();
  const Bits before = bits_now(two.stages(), two.all_inputs());
  {
    // The loss asks for too much, and the backward half never runs.
    const at::Tensor value = two.loss(model->forward(two.inputs));
    EXPECT_THROW(at::empty({smallest}, at::kByte), BudgetError);
  }
  EXPECT_EQ(difference(before, bits_now(two.stages(), two.all_inputs())), "");
  {
    // Memory that comes between the halves makes the backward half fail.
    at::Tensor value = two.loss(model->forward(two.inputs));
    const int64_t room = *memory_limit() - memory_count(c10::kCPU).live;
    const at::Tensor taken = at::empty({room / 64 * 64}, at::kByte);
    EXPECT_THROW(value.backward(), BudgetError);
  }
  EXPECT_EQ(difference(before, bits_now(two.stages(), two.all_inputs())), "");
  EXPECT_EQ(difference(expected, two.step([&] { return model->forward(two.inputs); })), "");
}

TEST_F(RematJoinTest, MistakesAreNamed) {
  const std::vector<Stage> tower = dense_stages(2);
  const auto refused = [&](std::vector<StageBranch> branches, RematOptions options,
                           const std::vector<Tensors>& inputs) {
    try {
      remat_join(std::move(branches), {}, inputs, std::move(options));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::vector<Tensors> two{{rows_}, {rows_}};
  const RematOptions with_loss{.loss = contrast, .measure = quick()};
  EXPECT_NE(refused({{"a", tower}}, with_loss, {{rows_}}).find("two branches"), std::string::npos);
  EXPECT_NE(refused({{"a", tower}, {"a", tower}}, with_loss, two).find("unique"),
            std::string::npos);
  EXPECT_NE(refused({{"a/b", tower}, {"c", tower}}, with_loss, two).find("'a/b'"),
            std::string::npos);
  EXPECT_NE(refused({{"a", tower}, {"b", tower}}, {}, two).find("loss"), std::string::npos);
  EXPECT_NE(refused({{"a", tower}, {"b", {}}}, with_loss, two).find("branch 'b'"),
            std::string::npos);
  EXPECT_NE(refused({{"a", tower}, {"b", tower}}, with_loss, {{rows_}}).find("inputs for 1"),
            std::string::npos);
  RematOptions graph = with_loss;
  graph.planner = "graph";
  EXPECT_NE(refused({{"a", tower}, {"b", tower}}, graph, two).find("planner"), std::string::npos);
}

TEST_F(RematJoinTest, WithoutGradientsTheStagesJustRun) {
  const std::vector<Stage> tower = dense_stages(2);
  const JoinCase wanted{.branches = {{"left", tower}, {"right", tower}},
                    .inputs = {{rows_}, {at::randn({256, 64})}},
                    .loss = contrast};
  RematJoin model(wanted.branches, {}, {.loss = contrast});
  at::NoGradGuard no_grad;
  const Tensors outputs = model.forward(wanted.inputs), expected = wanted.run_plain();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(outputs[0].equal(expected[0]) && outputs[1].equal(expected[1]));
  EXPECT_EQ(model.named_children().keys(),
            (std::vector<std::string>{"left_dense0", "left_dense1"}));
  EXPECT_THROW(model.plan(), InputError);
}

}  // namespace
}  // namespace reprise::runtime::testing
