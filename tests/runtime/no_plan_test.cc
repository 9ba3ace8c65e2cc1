// If no plan fits, the message says how large a share of the smallest peak is held by gradients
// that wait for the optimizer. The tests compare this share with the real one.
#include "runtime/graph/no_plan.h"

#include <torch/optim/sgd.h>

#include <regex>

#include "fixture.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"

namespace reprise::runtime::testing {
namespace {

class NoPlanTest : public RuntimeTest {
 protected:
  static StepFunction step_of(nn::Sequential model) {
    return [model](const Tensors& in) mutable {
      const at::Tensor loss = model->forward(in[0]).square().mean();
      loss.backward();
      return Tensors{loss};
    };
  }
  // Returns the exception of a plan within too few bytes.
  template <class Plan>
  static BudgetError refusal_of(Plan&& plan) {
    try {
      plan();
    } catch (const BudgetError& error) {
      return error;
    }
    ADD_FAILURE() << "a plan was found";
    return BudgetError("", 0, 0, 0);
  }
  // Returns the share of gradients in the message, in percent; -1 if there is none.
  static int share_in(const std::string& message) {
    std::smatch found;
    const bool has = std::regex_search(message, found, std::regex("gradients are ([0-9]+) %"));
    return has ? std::stoi(found[1]) : -1;
  }

  // The gradients of the weights are far larger than the activations of a batch of eight rows.
  nn::Sequential wide_{nn::Linear(64, 512), nn::Tanh(), nn::Linear(512, 512), nn::Tanh(),
                       nn::Linear(512, 64)};
  at::Tensor few_ = at::randn({8, 64});
  int64_t gradients_ = 4 * (64 * 512 + 512 + 512 * 512 + 512 + 512 * 64 + 64);
};

TEST_F(NoPlanTest, TheShareOfTheGradientsIsTheRealOne) {
  CapturedStep step(step_of(wide_), {few_}, {.measure = quick()});
  EXPECT_EQ(internal::graph::gradients_held(step.graph()).count(), gradients_);
  const BudgetError error = refusal_of([&] { step.plan({.budget = step.graph().fixed}); });
  ASSERT_GT(error.requested(), gradients_);
  const double share =
      100.0 * static_cast<double>(gradients_) / static_cast<double>(error.requested());
  EXPECT_EQ(share_in(error.what()), static_cast<int>(std::lround(share))) << error.what();
  EXPECT_NE(std::string(error.what()).find("optimizer="), std::string::npos) << error.what();
}

TEST_F(NoPlanTest, TheOptimizerHelpsAsTheMessageSays) {
  CapturedStep held(step_of(wide_), {few_}, {.measure = quick()});
  const int64_t smallest =
      refusal_of([&] { held.plan({.budget = held.graph().fixed}); }).requested();
  torch::optim::SGD sgd(wide_->parameters(), 0.1);
  CapturedStep step(step_of(wide_), {few_}, {.measure = quick(), .optimizer = per_parameter(sgd)});
  EXPECT_EQ(internal::graph::gradients_held(step.graph()).count(), 0);
  const BudgetError error = refusal_of([&] { step.plan({.budget = step.graph().fixed}); });
  EXPECT_EQ(share_in(error.what()), -1) << error.what();
  EXPECT_LT(error.requested(), smallest);
  step.plan({.budget = Bytes(smallest - 1)});  // There was no plan for this budget.
}

TEST_F(NoPlanTest, ASmallShareIsNotMentioned) {
  nn::Sequential narrow(nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 4));
  CapturedStep step(step_of(narrow), {at::randn({4096, 64})}, {.measure = quick()});
  const BudgetError error = refusal_of([&] { step.plan({.budget = step.graph().fixed}); });
  EXPECT_EQ(share_in(error.what()), -1) << error.what();
}

TEST_F(NoPlanTest, MicroBatchesSayIt) {
  auto part = [model = wide_](const Tensors& in, double share) mutable {
    const at::Tensor loss = model->forward(in[0]).square().mean() * share;
    loss.backward();
    return Tensors{loss.detach()};
  };
  const BudgetError error = refusal_of([&] {
    micro_batches(part, {few_},
                  {.parts = {1, 2}, .capture = {.measure = quick()}, .plan = {.budget = Bytes(1)}});
  });
  EXPECT_GT(share_in(error.what()), 20) << error.what();
}

}  // namespace
}  // namespace reprise::runtime::testing
