// Checks what may go from one stage to the next: tuples, views, and tensors that are passed on or
// changed in place.
#include "fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/lower.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;

using BoundaryTest = RuntimeTest;

TEST_F(BoundaryTest, TuplesWithIntegersAndConstantsAmongThem) {
  nn::Linear first(64, 64), second(64, 64), third(64, 64), fourth(64, 64);
  std::vector<Stage> stages{{"split", first.ptr(),
                             [first](const Tensors& x) mutable {
                               const at::Tensor y = first->forward(x[0]).tanh();
                               return Tensors{y, y.detach().argmax(1), y.detach().abs()};
                             }},
                            {"mix", second.ptr(),
                             [second](const Tensors& x) mutable {
                               return Tensors{second->forward(x[0]).tanh() + x[1].unsqueeze(1),
                                              x[1], x[2] * 2, x[0].sin()};
                             }},
                            {"more", third.ptr(),
                             [third](const Tensors& x) mutable {
                               return Tensors{third->forward(x[0] + x[2]).tanh(), x[3].exp(), x[1]};
                             }},
                            {"end", fourth.ptr(), [fourth](const Tensors& x) mutable {
                               return Tensors{fourth->forward(x[0] * x[1]).index_select(0, x[2])};
                             }}};
  expect_same_steps(stages, {rows_});
}

TEST_F(BoundaryTest, SeveralInputsAndOutputs) {
  nn::Linear first(64, 64);
  std::vector<Stage> stages{{"join", first.ptr(), [first](const Tensors& x) mutable {
                               return Tensors{first->forward(x[0]).tanh() * x[1], x[1].sin()};
                             }}};
  for (int i = 0; i < 4; ++i) {
    nn::Linear linear(64, 64);
    stages.push_back({fmt::format("pair{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                        return Tensors{linear->forward(x[0]).tanh(), x[1].sin() + x[0]};
                      }});
  }
  const at::Tensor gate = at::randn({256, 64}).set_requires_grad(true);
  expect_same_steps(stages, {rows_, gate});
}

TEST_F(BoundaryTest, AnInputReturnedUnchangedBesideANewTensor) {
  std::vector<Stage> stages = dense_stages(2);
  for (int i = 0; i < 3; ++i) {
    nn::Linear linear(64, 64);
    stages.push_back({fmt::format("beside{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                        Tensors y = x;  // all that came, and one more
                        y.push_back(linear->forward(x.back()).tanh());
                        return y;
                      }});
  }
  stages.push_back({"sum", nullptr, [](const Tensors& x) {
                      at::Tensor sum = x[0].sin();
                      for (size_t e = 1; e < x.size(); ++e) sum = sum + x[e].sin();
                      return Tensors{sum};
                    }});
  expect_same_steps(stages, {rows_});
  expect_same_steps(stages, {rows_.clone().set_requires_grad(true)});
}

TEST_F(BoundaryTest, StagesThatOnlyReturnViewsFirstMiddleAndLast) {
  std::vector<Stage> stages = dense_stages(5);
  nn::Flatten flatten;
  stages.insert(stages.begin() + 3, layer("identity", nn::Identity()));
  stages.insert(stages.begin() + 3, layer("flatten", flatten));
  stages.insert(stages.begin(), layer("identity0", nn::Identity()));
  stages.insert(stages.begin(), layer("flatten0", nn::Flatten()));
  stages.push_back(layer("last", nn::Flatten()));
  expect_same_steps(stages, {rows_.view({256, 8, 8})});
  expect_same_steps(stages, {at::randn({256, 8, 8}).set_requires_grad(true)});
}

TEST_F(BoundaryTest, PartsOfOneTensorAsATuple) {
  std::vector<Stage> stages = dense_stages(4);
  stages.push_back({"chunk", nullptr, [](const Tensors& x) { return x[0].chunk(2, 1); }});
  nn::Linear linear(32, 64);
  stages.push_back({"both", linear.ptr(), [linear](const Tensors& x) mutable {
                      return Tensors{linear->forward(x[0].tanh()) * linear->forward(x[1])};
                    }});
  for (Stage& stage : dense_stages(2)) stages.push_back(stage);
  stages[6].name = "a", stages[7].name = "b";
  expect_same_steps(stages, {rows_});
}

// The sequence gets shorter. The backward reads the state, and the rest is only needed until the
// forward ends. There most memory is needed.
TEST_F(BoundaryTest, ATupleOfWhichTheBackwardReadsASmallPart) {
  std::vector<Stage> stages;
  for (int i = 0; i < 5; ++i) {
    nn::Linear linear(64, 64);
    stages.push_back({fmt::format("step{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                        const at::Tensor state = (linear->forward(x[0]) + x[1].select(1, 0)).sin();
                        return Tensors{state, x[1].narrow(1, 1, x[1].size(1) - 1).contiguous()};
                      }});
  }
  nn::Linear head(64, 4);
  stages.push_back({"head", head.ptr(),
                    [head](const Tensors& x) mutable { return Tensors{head->forward(x[0])}; }});
  const Tensors inputs{rows_, at::randn({256, 9, 64})};
  expect_same_steps(stages, inputs);

  const auto remat =
      reprise::runtime::remat(stages, inputs, {.loss = mean_square, .measure = quick()});
  const reprise::StageOption& option = remat->chain().stages[1].options[0];
  EXPECT_TRUE(option.consumes_input && !option.reads_input);
  const Plan& plan = *remat->plan().plan;
  const Timeline timeline = simulate(lower(remat->chain()), plan.actions);
  const Action& peak = plan.actions.at(static_cast<size_t>(timeline.peak_action));
  EXPECT_EQ(peak.id, "F1");
}

TEST_F(BoundaryTest, AFirstOperationInPlace) {
  const Stage relu = layer("relu", nn::ReLU(nn::ReLUOptions(true)));
  // Where the first stage works in place, plain training changes the caller's tensor. A planned
  // step works on a copy.
  std::vector<Stage> stages = conv_stages();
  stages.insert(stages.begin(), relu);
  const at::Tensor kept = images_.clone();
  const StepState state(stages, {images_});
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  const Bits planned = planned_step(*remat, stages, {images_}, mean_square);
  EXPECT_TRUE(images_.equal(kept)) << "the caller's input was changed";
  state.restore();
  const Tensors copy{images_.clone()};
  EXPECT_EQ(difference(plain_steps(stages, copy, mean_square, 1)[0], planned), "");

  // These stages change their input in place and work on with it.
  std::vector<Stage> mixed{layer("linear0", nn::Linear(64, 64))};
  for (int i = 1; i < 6; ++i) {
    nn::Linear linear(64, 64);
    mixed.push_back({fmt::format("linear{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                       x[0].mul_(0.5).add_(1);
                       return Tensors{linear->forward(x[0].tanh())};
                     }});
  }
  expect_same_steps(mixed, {rows_});
}

// The caller holds the output while the last stage makes another one, because its backward reads an
// output.
TEST_F(BoundaryTest, AHeldOutputBesideTheOneThatIsMadeAgainForTheBackward) {
  std::vector<Stage> stages = dense_stages(2);
  nn::Sequential wide(nn::Linear(64, 4096), nn::ReLU(), nn::Linear(4096, 64), nn::Sigmoid());
  stages.push_back({"wide", wide.ptr(), [wide](const Tensors& x) mutable {
                      // The forward needs more for a moment than the backward does.
                      const at::Tensor scale = x[0].detach().repeat({1, 400}).mean(1, true);
                      return Tensors{wide->forward(x[0] * scale)};
                    }});
  // The loss needs so much that it is better if the last stage keeps nothing meanwhile.
  const Loss distances = [](const Tensors& y) {
    const at::Tensor some = y[0].narrow(1, 0, 20).contiguous();
    return (some.unsqueeze(0) - some.unsqueeze(1)).square().mean();
  };
  MeasureOptions measure = quick();
  measure.output_held = true;
  auto remat = reprise::runtime::remat(stages, {rows_}, {.loss = distances, .measure = measure});
  const Bytes output(256 * 64 * 4), largest = largest_budget(*remat);
  for (const Bytes budget : {smallest_budget(*remat) + output, largest}) {
    drop_gradients(stages, {rows_});
    remat->set_budget(budget);
    const Tensors y = remat->forward(Tensors{rows_});
    distances(y).backward();
    EXPECT_EQ(remat->last_step().predicted_peak, remat->last_step().measured_peak);
    EXPECT_LE(remat->last_step().measured_peak, budget);
    EXPECT_EQ(planned_runs(*remat)["wide"], budget == largest ? 1 : 2);
    const Graph problem = lower(std::get<Chain>(remat->profile().problem));
    const std::vector<Violation> violations = verify(problem, *remat->plan().plan, budget);
    EXPECT_TRUE(violations.empty()) << violations[0].message;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
