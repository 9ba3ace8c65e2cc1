// Autograd walks back through several stages in one pass. The tests say which stages these are, and
// that nothing but the number of passes tells.
#include "runtime/chain/passes.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "fixture.h"
#include "reprise/model/lower.h"

namespace reprise::runtime::testing {

using internal::chain::Pass;
using internal::chain::Passes;
using internal::chain::Places;
using internal::chain::PreparedModel;

namespace {

namespace nn = torch::nn;

// Makes a chain of three stages, each kept in two ways.
Chain three_stages() {
  Chain chain;
  chain.input.bytes = Bytes(64);
  for (int i = 0; i < 3; ++i) {
    reprise::Stage stage;
    stage.name = fmt::format("stage{}", i);
    stage.output = Bytes(64);
    for (const char* name : {"keep", "smaller"}) {
      StageOption option;
      option.name = name;
      option.saved = Bytes(64);
      stage.options.push_back(option);
    }
    chain.stages.push_back(stage);
  }
  return chain;
}

// Makes a program of words such as "F0", "F0 fast", "F0 smaller" and "-x1" (freed).
Program program_of(const std::vector<std::string>& words) {
  std::vector<Action> actions;
  for (const std::string& word : words) {
    const size_t space = word.find(' ');
    const std::string id = word.substr(0, space);
    if (id.front() == '-') {
      actions.push_back({ActionKind::kFree, id.substr(1), ""});
    } else {
      const std::string usual = id == "loss" ? "default" : "keep";
      actions.push_back(
          {ActionKind::kRun, id, space == std::string::npos ? usual : word.substr(space + 1)});
    }
  }
  return Program(lower(three_stages()), actions);
}

std::vector<Pass> passes_of(const std::vector<std::string>& words,
                            const std::vector<bool>& copies_gradients = {false, false, false}) {
  PreparedModel model;
  model.branches = {{.name = "", .first = 0, .inputs = 1}};
  model.stages.resize(3);
  model.stages[0].parameters = {0, 1};
  model.stages[1].parameters = {1, 3};
  model.stages[2].parameters = {2};
  const Places places(model, three_stages().stages, {0, 0, 0});
  return Passes(model, places, program_of(words), three_stages().stages,
                copies_gradients)
      .all();
}

TEST(Passes, WhatIsKeptAndRunBackInARowIsOnePass) {
  const ChainIndex index{3};
  const std::vector<Pass> all = passes_of(
      {"F0", "F1", "-x1", "F2", "loss", "B2", "-g3", "-x2", "B1", "-g2", "B0", "-g1", "-x0"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0],
            (Pass{.begin = 0,
                  .end = 3,
                  .parameters = {0, 1, 2, 3},
                  .freed = {{index.gradient(2)}, {index.gradient(3), index.activation(2)}}}));
}

TEST(Passes, AnotherRunInBetweenAnotherWayToKeepAndCopiesOfGradientsEndPasses) {
  const auto ends = [](const std::vector<Pass>& all) {
    std::vector<size_t> result;
    for (const Pass& pass : all) result.push_back(pass.end);
    return result;
  };
  using Ends = std::vector<size_t>;
  const std::vector<std::string> plain{"F0", "F1", "F2", "loss", "B2", "B1", "B0"};
  EXPECT_EQ(ends(passes_of(plain)), (Ends{3}));
  EXPECT_EQ(ends(passes_of(plain, {true, false, false})), (Ends{3}));
  EXPECT_EQ(ends(passes_of(plain, {false, true, false})), (Ends{1, 3}));
  EXPECT_EQ(ends(passes_of(plain, {false, false, true})), (Ends{2, 3}));
  // Stages 0 and 1 run again for their backwards: kept in a row, behind the loss.
  EXPECT_EQ(ends(passes_of({"F0 fast", "F1 fast", "F2", "loss", "B2", "F0", "F1", "B1", "B0"})),
            (Ends{2, 3}));
  // Stages run again between the backwards.
  EXPECT_EQ(ends(passes_of({"F0 fast", "F1", "F2", "loss", "B2", "B1", "F0", "B0"})), (Ends{1, 3}));
  EXPECT_EQ(ends(passes_of({"F0", "F1 fast", "F2", "loss", "B2", "F1", "B1", "B0"})),
            (Ends{1, 2, 3}));
  EXPECT_EQ(ends(passes_of({"F0", "F1 smaller", "F2", "loss", "B2", "B1 smaller", "B0"})),
            (Ends{1, 2, 3}));
  // Stage 1 is kept twice. The second time, the graph of the first stage is not before it.
  EXPECT_EQ(ends(passes_of({"F0", "F1", "-s1.keep", "F1", "F2", "loss", "B2", "B1", "B0"})),
            (Ends{1, 2, 3}));
}

// Notes which pass of autograd runs its backward. The tensor that it holds is no saved tensor, so
// autograd does not let it go before the node itself goes.
struct Probe : torch::autograd::Function<Probe> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t scratch, int64_t notes) {
    context->saved_data["held"] = at::empty({1 << 16});
    context->saved_data["scratch"] = scratch;
    context->saved_data["notes"] = notes;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* notes = reinterpret_cast<std::vector<int>*>(context->saved_data["notes"].toInt());
    notes->push_back(torch::autograd::get_current_graph_task_id());
    at::empty({context->saved_data["scratch"].toInt()});
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

// The last backward needs `scratch` numbers while it runs.
std::vector<Stage> with_probes(const std::vector<Stage>& stages, std::vector<int>& notes,
                               int64_t scratch = 0) {
  std::vector<Stage> result;
  for (const Stage& stage : stages) {
    const int64_t own = result.empty() ? scratch : 0;
    result.push_back({stage.name, stage.module, [=, &notes](const Tensors& x) {
                        return Tensors{Probe::apply(stage.forward(x)[0], own,
                                                    reinterpret_cast<int64_t>(&notes))};
                      }});
  }
  return result;
}

class PassTest : public RuntimeTest {
 protected:
  // Returns how many passes the backwards of the planned steps took.
  static size_t count(const std::vector<int>& notes) {
    return std::set<int>(notes.begin(), notes.end()).size();
  }
};

TEST_F(PassTest, WithRoomForAllTheWholeBackwardIsOnePass) {
  std::vector<int> notes;
  const std::vector<Stage> stages = with_probes(dense_stages(6), notes);
  auto model = reprise::runtime::remat(stages, {rows_}, {.loss = mean_square, .measure = quick()});
  const auto step = [&] {
    drop_gradients(stages, {});
    notes.clear();
    planned_step(*model, stages, {rows_}, mean_square);
    EXPECT_EQ(notes.size(), stages.size());
    EXPECT_EQ(model->last_step().predicted_peak, model->last_step().measured_peak);
    return count(notes);
  };
  EXPECT_EQ(step(), 1u);
  model->set_budget(smallest_budget(*model));
  const size_t tight = step();
  EXPECT_GT(tight, 1u);
  // When the step is measured run by run, each stage is a pass.
  model->log_steps(1);
  EXPECT_EQ(step(), stages.size());
  EXPECT_EQ(step(), tight);
}

TEST_F(PassTest, WhatNodesHoldGoesWithTheirStage) {
  std::vector<int> notes;
  // The scratch memory is so large that the peak is there.
  expect_same_steps(with_probes(dense_stages(6), notes, 1 << 20), {rows_}, mean_square, false);
}

TEST_F(PassTest, AGradientThatIsCopiedEndsItsPass) {
  std::vector<int> notes;
  std::vector<Stage> stages = dense_stages(3);
  // The gradient of these weights comes in the layout of the transposed matrix, or as part of that
  // of the input.
  nn::Linear transposed(64, 64), added(64, 64);
  {
    at::NoGradGuard no_grad;
    added->bias.set_data(at::randn({256, 64}));
  }
  stages.insert(stages.begin() + 1,
                {"transposed", transposed.ptr(), [transposed](const Tensors& x) {
                   return Tensors{x[0].matmul(transposed->weight.t().contiguous()).tanh()};
                 }});
  stages.insert(stages.begin() + 3, {"added", added.ptr(), [added](const Tensors& x) {
                                       return Tensors{x[0] + added->bias};
                                     }});
  expect_same_steps(stages, {rows_});
  stages = with_probes(stages, notes);
  auto model = reprise::runtime::remat(stages, {rows_}, {.loss = mean_square, .measure = quick()});
  notes.clear();
  planned_step(*model, stages, {rows_}, mean_square);
  EXPECT_EQ(count(notes), 3u);
  drop_gradients(stages, {});
}

TEST_F(PassTest, WhereNoGradientComesThePassGoesOnWithoutIt) {
  std::vector<Stage> stages = dense_stages(5);
  stages[2].forward = [dense = stages[2].forward](const Tensors& x) {
    return dense({x[0].detach()});
  };
  expect_same_steps(stages, {rows_});
}

// A user's hook on the output of a stage belongs to that stage. When it runs, the stage behind is
// gone.
TEST_F(PassTest, AHookOnAnOutputThatTakesMemory) {
  std::vector<int> notes;
  std::vector<Stage> stages = with_probes(dense_stages(6), notes);
  stages[0].forward = [probed = stages[0].forward](const Tensors& x) {
    Tensors y = probed(x);
    if (y[0].requires_grad()) {
      y[0].register_hook([](const at::Tensor&) { at::empty({1 << 20}); });
    }
    return y;
  };
  expect_same_steps(stages, {rows_}, mean_square, false);
}

TEST_F(PassTest, AStageThatReturnsAParameterBesideItsResult) {
  nn::Linear first(64, 64), last(64, 4);
  nn::Linear middle[] = {nn::Linear(64, 64), nn::Linear(64, 64), nn::Linear(64, 64)};
  std::vector<Stage> stages{{"first", first.ptr(), [first](const Tensors& x) mutable {
                               return Tensors{first->forward(x[0]).tanh(), first->weight};
                             }}};
  for (nn::Linear& linear : middle) {
    stages.push_back(
        {fmt::format("middle{}", stages.size()), linear.ptr(), [linear](const Tensors& x) mutable {
           return Tensors{linear->forward(x[0]).matmul(x[1]).tanh(), x[1].sin()};
         }});
  }
  stages.push_back({"last", last.ptr(), [last](const Tensors& x) mutable {
                      return Tensors{last->forward(x[0]) + x[1].mean()};
                    }});
  const Bits expected = plain_steps(stages, {rows_}, mean_square, 1)[0];
  auto model = reprise::runtime::remat(stages, {rows_}, {.loss = mean_square, .measure = quick()});
  for (const Bytes budget : {smallest_budget(*model), largest_budget(*model)}) {
    model->set_budget(budget);
    drop_gradients(stages, {});
    EXPECT_EQ(difference(expected, planned_step(*model, stages, {rows_}, mean_square)), "");
    // The plan counts the parameter as part of the boundary, too.
    EXPECT_LE(model->last_step().measured_peak, model->last_step().predicted_peak);
  }
  drop_gradients(stages, {});
}

TEST_F(PassTest, AStageThatFailsInThePassLeavesAllAsItWas) {
  struct Failing : torch::autograd::Function<Failing> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              int64_t fails) {
      context->saved_data["fails"] = fails;
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      if (*reinterpret_cast<bool*>(context->saved_data["fails"].toInt())) {
        throw std::runtime_error("a stage's own failure");
      }
      return {gradients[0], at::Tensor()};
    }
  };
  bool fails = false;
  std::vector<Stage> stages = dense_stages(6);
  stages[2].forward = [dense = stages[2].forward, &fails](const Tensors& x) {
    return Tensors{Failing::apply(dense(x)[0], reinterpret_cast<int64_t>(&fails))};
  };
  const StepState state(stages, {rows_});
  plain_steps(stages, {rows_}, mean_square, 1);
  state.restore();
  const Bits expected = plain_steps(stages, {rows_}, mean_square, 1)[0];
  state.restore();
  auto model = reprise::runtime::remat(stages, {rows_}, {.loss = mean_square, .measure = quick()});
  model->set_budget(largest_budget(*model));
  const Bits before = bits_now(stages, {rows_});
  const int64_t level = live();
  fails = true;
  EXPECT_THROW(planned_step(*model, stages, {rows_}, mean_square), std::runtime_error);
  EXPECT_EQ(difference(before, bits_now(stages, {rows_})), "");
  fails = false;
  EXPECT_EQ(difference(expected, planned_step(*model, stages, {rows_}, mean_square)), "");
  EXPECT_EQ(model->last_step().predicted_peak, model->last_step().measured_peak);
  state.restore();
  EXPECT_EQ(live(), level);
}

}  // namespace
}  // namespace reprise::runtime::testing
