// Tests the optimizer's state on a disk: the bits of a step that keeps it in memory, the predicted
// bytes, and state that is whole after failures.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>

#include "capture_offload.h"
#include "faulty_disk.h"
#include "reprise/check/verify.h"

namespace reprise::runtime::testing {

namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using OptimizerPtr = std::unique_ptr<optim::Optimizer>;
using MakeHomedOptimizer = std::function<OptimizerPtr(std::vector<at::Tensor>)>;

OptimizerPtr adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(1e-2));
}
OptimizerPtr amsgrad(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::Adam>(std::move(parameters),
                                       optim::AdamOptions(1e-2).amsgrad(true));
}
OptimizerPtr momentum(std::vector<at::Tensor> parameters) {
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(1e-2).momentum(0.9));
}

// A Trained is a network with its optimizer, and a captured step of both.
struct Trained {
  explicit Trained(const MakeHomedOptimizer& make, int layers = 6) {
    at::manual_seed(5);
    for (int k = 0; k < layers; ++k) {
      net->push_back(nn::Linear(64, 64));
      net->push_back(nn::Tanh());
    }
    optimizer = make(net->parameters());
    x = at::randn({32, 64});
  }

  std::function<at::Tensor(const Tensors&)> step() const {
    return [net = net](const Tensors& in) mutable {
      at::Tensor loss = net->forward(in[0]).square().mean();
      loss.backward();
      return loss;
    };
  }
  CapturedStep captured() const {
    return capture(
        step(), {x},
        {.measure = quick(), .alternatives = none(), .optimizer = per_parameter(*optimizer)});
  }

  // Returns the parameters and the optimizer's state, which must be in memory.
  Bits bits() const {
    Bits all;
    put_bits(all, "parameter", net->parameters());
    const auto adapter = per_parameter(*optimizer);
    for (size_t p = 0; p < adapter->parameters().size(); ++p) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : adapter->state_of(p)) {
        if (tensor.defined()) tensors.push_back(tensor);
      }
      put_bits(all, "state" + std::to_string(p), tensors);
    }
    return all;
  }

  nn::Sequential net;
  OptimizerPtr optimizer;
  at::Tensor x;
};

class HomedState : public CaptureOffload {
 protected:
  StepPlanOptions moving(Budget budget = {}, bool arena = true) const {
    return {.budget = budget,
            .time_limit = kShort,
            .arena = arena,
            .offload = offload(disk_of(kFast)),
            .offload_optimizer = true};
  }
};

constexpr int kManySteps = 6, kFewSteps = 3;

std::vector<Bits> plain(const MakeHomedOptimizer& make, int steps, int layers = kManySteps) {
  const Trained one(make, layers);
  std::vector<Bits> all;
  for (int k = 0; k < steps; ++k) {
    one.optimizer->zero_grad();
    one.step()({one.x});
    one.optimizer->step();
    all.push_back(one.bits());
  }
  return all;
}

TEST_F(HomedState, StepsHaveTheBitsAndTheBytes) {
  for (const MakeHomedOptimizer& make :
       {MakeHomedOptimizer(adamw), MakeHomedOptimizer(amsgrad), MakeHomedOptimizer(momentum)}) {
    const std::vector<Bits> expected = plain(make, 6);
    for (const bool arena : {false, true}) {
      SCOPED_TRACE(arena);
      const Trained one(make);
      CapturedStep step = one.captured();
      step.plan({.budget = "100%", .time_limit = kShort, .offload = offload(disk_of(kFast))});
      const Bytes whole = step.planned().plan->peak;
      StepPlanOptions least = moving(Bytes(1));
      least.time_limit = kShort + kShort;
      const PlanResult none = step.try_plan(least);
      ASSERT_FALSE(none.plan);
      step.plan(moving(none.smallest_budget.value() + Bytes(1 << 14), arena));
      EXPECT_LT(step.planned().plan->peak, whole);
      EXPECT_TRUE(verify(step.graph(), *step.planned().plan, step.planned().budget, step.machine())
                      .empty());
      for (size_t k = 0; k < expected.size(); ++k) {
        SCOPED_TRACE(k);
        step.run({one.x});
        const CapturedStepReport report = step.last_step();
        // An update that makes its state needs no room for the two numbers that it is scaled with.
        const Bytes spared = report.predicted_peak - report.measured_peak;
        EXPECT_GE(spared, Bytes(0));
        EXPECT_LE(spared, Bytes(k == 0 ? 128 : 0));
        EXPECT_LE(report.measured_peak, report.budget);
        EXPECT_GT(report.moved_out, Bytes(0));
        EXPECT_EQ(report.moved_in > Bytes(0), k > 0) << "the first step makes the state";
        if (k % 2 == 1) {
          step.fetch_optimizer_state();
          EXPECT_EQ(difference(expected[k], one.bits()), "");
        }
      }
    }
  }
}

// The peak without the state is lower by the bytes of the state that moves, but for one update's.
TEST_F(HomedState, ThePeakNoLongerHoldsTheState) {
  const Trained one(adamw);
  CapturedStep step = one.captured();
  const auto smallest_peak = [&](const StepPlanOptions& options) {
    StepPlanOptions least = options;
    least.budget = Bytes(1);
    return step.try_plan(least).smallest_budget.value().count();
  };
  const int64_t state = 6 * 2 * 64 * 64 * 4;
  StepPlanOptions here = moving();
  here.offload_optimizer = false;
  const int64_t without = smallest_peak(here), with = smallest_peak(moving());
  EXPECT_LE(with, without - state * 5 / 6);
  EXPECT_EQ(step.graph().results.size(), 1U) << "no plan was found, so that nothing has changed";
}

TEST_F(HomedState, StateThatIsAwayRefusesToBeRead) {
  const Trained one(adamw);
  {
    CapturedStep step = one.captured();
    step.plan(moving());
    step.run({one.x});
    step.run({one.x});
    try {
      one.bits();
      FAIL() << "state was read that is not there";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("fetch_optimizer_state()"), std::string::npos);
    }
    // A plan without the option brings the state back.
    step.plan({.time_limit = kShort});
    const std::vector<Bits> expected = plain(adamw, 4);
    EXPECT_EQ(difference(expected[1], one.bits()), "");
    step.run({one.x});
    EXPECT_EQ(difference(expected[2], one.bits()), "");
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
    step.plan(moving());
    step.run({one.x});
  }
  EXPECT_EQ(difference(plain(adamw, 4)[3], one.bits()), "") << "the end brings the state back, too";
}

// State that is loaded between two runs takes the place of what is away.
TEST_F(HomedState, StateMayBeLoaded) {
  const Trained one(momentum);
  const std::vector<Bits> expected = plain(momentum, 3);
  CapturedStep step = one.captured();
  step.plan(moving());
  step.run({one.x});
  step.fetch_optimizer_state();
  std::vector<at::Tensor> parameters, buffers;
  auto& states = one.optimizer->state();
  const std::vector<at::Tensor> all = one.net->parameters();
  for (const at::Tensor& parameter : all) {
    parameters.push_back(parameter.detach().clone());
    buffers.push_back(
        static_cast<optim::SGDParamState&>(*states.at(parameter.unsafeGetTensorImpl()))
            .momentum_buffer()
            .clone());
  }
  step.run({one.x});
  for (size_t p = 0; p < all.size(); ++p) {
    const at::NoGradGuard no_grad;
    all[p].detach().copy_(parameters[p]);
    static_cast<optim::SGDParamState&>(*states.at(all[p].unsafeGetTensorImpl()))
        .momentum_buffer(buffers[p]);
  }
  step.run({one.x});
  step.run({one.x});
  step.fetch_optimizer_state();
  EXPECT_EQ(difference(expected[2], one.bits()), "");
}

// Whatever call of the disk fails: if no parameter was updated, all is as before the step; else the
// message names those that were, and each of them has the state of after its update.
TEST_F(HomedState, FaultsOfTheDiskLeaveWholeState) {
  const std::vector<Bits> expected = plain(momentum, 3, kFewSteps);
  int before_updates = 0, behind_updates = 0;
  FaultyDisk calls;
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(fmt::format("call {}", k));
    const Trained one(momentum, kFewSteps);
    CapturedStep step = one.captured();
    step.plan(moving());
    step.run({one.x});
    calls.arm(k, k % 2 == 0 ? DiskFault::kNoSpace : DiskFault::kError);
    std::string message;
    try {
      step.run({one.x});
    } catch (const std::exception& error) {
      message = error.what();
    }
    calls.disarm();
    if (!calls.failed()) break;
    step.fetch_optimizer_state();
    const Bits now = one.bits();
    if (message.empty()) {  // The system need not know how to take room for a file.
      EXPECT_EQ(difference(expected[1], now), "");
      continue;
    }
    if (message.find("updated already") == std::string::npos) {
      ++before_updates;
      EXPECT_EQ(difference(expected[0], now), "");
      step.run({one.x});
      step.fetch_optimizer_state();
      EXPECT_EQ(difference(expected[1], one.bits()), "") << "the next step tries again";
      continue;
    }
    ++behind_updates;
    for (const auto& [name, bits] : now) {
      EXPECT_TRUE(bits == expected[0].at(name) || bits == expected[1].at(name)) << name;
    }
    // A parameter and its state belong together.
    const size_t parameters = one.net->parameters().size();
    for (size_t p = 0; p < parameters; ++p) {
      const std::string name = fmt::format("parameter {}", p), state = fmt::format("state{} 0", p);
      EXPECT_EQ(now.at(name) == expected[1].at(name), now.at(state) == expected[1].at(state));
    }
  }
  EXPECT_GT(before_updates, 0);
  EXPECT_GT(behind_updates, 0);
}

TEST_F(HomedState, MistakesAreNamed) {
  const Trained one(momentum);
  CapturedStep step = one.captured();
  const auto refuses = [](CapturedStep& of, const StepPlanOptions& options, const char* words) {
    try {
      of.plan(options);
      FAIL() << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  StepPlanOptions nowhere = moving();
  nowhere.offload = {};
  refuses(step, nowhere, "needs a memory");
  StepPlanOptions automatic = moving();
  automatic.offload.to = "auto";
  refuses(step, automatic, "needs a memory");
  CapturedStep without = capture(one.step(), {one.x}, {.measure = quick()});
  refuses(without, moving(), "the step has none");
}

}  // namespace

}  // namespace reprise::runtime::testing
