// Tests parameters on a disk: the bits of plain training, the predicted bytes, frozen parameters that
// are never written back, and parameters that are whole after failures.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "capture_offload.h"
#include "faulty_disk.h"
#include "reprise/check/verify.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

// A stack of layers, each with a small adapter beside it.
struct AdaptedImpl : nn::Module {
  explicit AdaptedImpl(int layers) {
    for (int k = 0; k < layers; ++k) {
      base.push_back(register_module(fmt::format("base{}", k), nn::Linear(64, 64)));
      down.push_back(register_module(fmt::format("down{}", k),
                                     nn::Linear(nn::LinearOptions(64, 8).bias(false))));
      up.push_back(register_module(fmt::format("up{}", k),
                                   nn::Linear(nn::LinearOptions(8, 64).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t k = 0; k < base.size(); ++k) x = at::tanh(base[k](x) + up[k](down[k](x)));
    return x;
  }
  std::vector<nn::Linear> base, down, up;
};
TORCH_MODULE(Adapted);

struct Way {
  bool frozen = true;  // whether the adapters alone are trained
  bool inside = true;  // whether the optimizer is in the step
  bool adam = false;   // else SGD with momentum

  bool operator==(const Way&) const = default;
};
constexpr Way kOutside{.inside = false}, kInside{.adam = true}, kAll{.frozen = false, .adam = true},
    kAllMomentum{.frozen = false};
constexpr int kMany = 6, kFew = 2;

// A Tuned is a network that is fine-tuned, with its optimizer.
struct Tuned {
  explicit Tuned(const Way& of, int layers = kMany) : way(of), net(layers) {
    at::manual_seed(5);
    for (at::Tensor& parameter : net->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.normal_(0, 0.1);
    }
    std::vector<at::Tensor> trained;
    for (const auto& item : net->named_parameters()) {
      const bool is_frozen = way.frozen && item.key().rfind("base", 0) == 0;
      if (is_frozen) item.value().set_requires_grad(false);
      if (!is_frozen) trained.push_back(item.value());
    }
    if (way.adam) {
      optimizer = std::make_unique<optim::AdamW>(trained, optim::AdamWOptions(1e-2));
    } else {
      optimizer = std::make_unique<optim::SGD>(trained, optim::SGDOptions(1e-2).momentum(0.9));
    }
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
    CaptureOptions options{.modules = {net.ptr()}, .measure = quick(), .alternatives = none()};
    if (way.inside) options.optimizer = per_parameter(*optimizer);
    return capture(step(), {x}, std::move(options));
  }
  void plain_step() const {
    step()({x});
    optimizer->step();
    optimizer->zero_grad();
  }
  void run(CapturedStep& step) const {
    step.run({x});
    if (way.inside) return;
    optimizer->step();
    optimizer->zero_grad();
  }

  // Returns parameters and state, which must be in memory.
  Bits bits() const {
    Bits all;
    for (const auto& item : net->named_parameters()) put_bits(all, item.key(), item.value());
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

  Way way;
  Adapted net;
  std::unique_ptr<optim::Optimizer> optimizer;
  at::Tensor x;
};

// Returns the bits before the first step and after each.
std::vector<Bits> plain(const Way& way, int steps, int layers = kMany) {
  const Tuned one(way, layers);
  std::vector<Bits> all = {one.bits()};
  for (int k = 0; k < steps; ++k) {
    one.plain_step();
    all.push_back(one.bits());
  }
  return all;
}

void fetch(CapturedStep& step) {
  step.fetch_parameters();
  step.fetch_optimizer_state();
}

class HomedParameters : public CaptureOffload {
 protected:
  StepPlanOptions moving(const Way& way, Budget budget = {}, bool arena = true) const {
    return {.budget = budget,
            .time_limit = kShort,
            .arena = arena,
            .offload = offload(disk_of(kFast)),
            .offload_optimizer = way.inside && !way.frozen,
            .offload_parameters = true};
  }
};

TEST_F(HomedParameters, StepsHaveTheBitsAndTheBytes) {
  for (const Way& way : {kOutside, kInside, kAll}) {
    const std::vector<Bits> expected = plain(way, 6);
    for (const bool arena : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {} {}", way.frozen, way.inside, arena));
      const Tuned one(way);
      CapturedStep step = one.captured();
      step.plan({.budget = "100%", .time_limit = kShort, .offload = offload(disk_of(kFast))});
      const Bytes whole = step.planned().plan->peak;
      StepPlanOptions least = moving(way, Bytes(1));
      least.time_limit = kShort + kShort;
      const PlanResult none = step.try_plan(least);
      ASSERT_FALSE(none.plan);
      step.plan(moving(way, none.smallest_budget.value() + Bytes(1 << 15), arena));
      EXPECT_LT(step.planned().plan->peak, whole);
      EXPECT_TRUE(verify(step.graph(), *step.planned().plan, step.planned().budget, step.machine())
                      .empty());
      for (size_t k = 1; k < expected.size(); ++k) {
        SCOPED_TRACE(k);
        one.run(step);
        const CapturedStepReport report = step.last_step();
        EXPECT_EQ(report.predicted_peak, report.measured_peak);
        EXPECT_LE(report.measured_peak, report.budget);
        // The budget has room for two of the weights.
        EXPECT_GE(report.moved_in, Bytes((kMany - 2) * 64 * 64 * 4));
        if (k % 2 == 1) continue;
        fetch(step);
        EXPECT_EQ(difference(expected[k], one.bits()), "");
      }
    }
  }
}

// The peak without the weights is lower by their bytes, but for those of one or two layers.
TEST_F(HomedParameters, ThePeakNoLongerHoldsTheWeights) {
  const Tuned one(kOutside);
  CapturedStep step = one.captured();
  const auto smallest_peak = [&](bool parameters) {
    StepPlanOptions least = moving(kOutside, Bytes(1));
    least.offload_parameters = parameters;
    return step.try_plan(least).smallest_budget.value().count();
  };
  const int64_t weights = kMany * 64 * 64 * 4;
  EXPECT_LE(smallest_peak(true), smallest_peak(false) - weights * 2 / 3);
}

TEST_F(HomedParameters, FrozenOnesAreNeverWrittenBackAndTrainedOnesThatSomebodyElseUpdatesStay) {
  const auto moved = [&](const CapturedStep& step, bool out) {
    const std::vector<Action>& actions = step.planned().plan->actions;
    return std::count_if(actions.begin(), actions.end(), [&](const Action& action) {
      return action.kind == ActionKind::kCopy && action.id.rfind("parameter.", 0) == 0 &&
             (action.at == "device") == out;
    });
  };
  const auto values = [](const CapturedStep& step) {
    const std::vector<Value>& all = step.graph().values;
    return std::count_if(all.begin(), all.end(),
                         [](const Value& value) { return !value.home.empty(); });
  };
  Tuned one(kOutside);
  one.net->base[1]->weight.set_requires_grad(true);  // The optimizer does not know it.
  CapturedStep step = one.captured();
  step.plan(moving(kOutside));
  EXPECT_EQ(values(step), kMany - 1);
  EXPECT_GE(moved(step, false), kMany - 1);
  EXPECT_EQ(moved(step, true), 0);
  step.run({one.x});
  EXPECT_EQ(step.last_step().moved_out, Bytes(0));
  const Tuned other(kAll);
  CapturedStep all = other.captured();
  all.plan(moving(kAll));
  EXPECT_EQ(moved(all, true), kMany);
}

TEST_F(HomedParameters, ParametersThatAreAwayRefuseToBeRead) {
  const Tuned one(kInside);
  const std::vector<Bits> expected = plain(kInside, 4);
  {
    CapturedStep step = one.captured();
    step.plan(moving(kInside));
    one.run(step);
    one.run(step);
    const at::Tensor weight = one.net->base[0]->weight;
    for (const auto& access :
         {std::function<void()>([&] { weight.sum(); }), std::function<void()>([&] {
            const at::NoGradGuard no_grad;
            weight.detach().zero_();
          })}) {
      try {
        access();
        FAIL() << "a parameter was read or written that is not there";
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("fetch_parameters()"), std::string::npos);
      }
    }
    // A plan without the option brings the parameters back.
    step.plan({.time_limit = kShort});
    EXPECT_EQ(difference(expected[2], one.bits()), "");
    one.run(step);
    EXPECT_EQ(difference(expected[3], one.bits()), "");
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
    step.plan(moving(kInside));
    one.run(step);
  }
  EXPECT_EQ(difference(expected[4], one.bits()), "") << "the end brings them back, too";
}

// Bits that are loaded between two runs take the place of what is away, in place or as other memory.
TEST_F(HomedParameters, ParametersMayBeLoaded) {
  const Tuned one(kOutside), other(kOutside);
  CapturedStep step = one.captured();
  step.plan(moving(kOutside));
  for (const bool in_place : {true, false}) {
    one.run(step);
    other.plain_step();
    at::manual_seed(9);
    const at::Tensor loaded = at::randn({64, 64});
    if (in_place) {
      step.fetch_parameters();
      const at::NoGradGuard no_grad;
      one.net->base[2]->weight.detach().copy_(loaded);
      other.net->base[2]->weight.detach().copy_(loaded);
    } else {
      one.net->base[2]->weight.set_data(loaded.clone());
      other.net->base[2]->weight.set_data(loaded.clone());
    }
  }
  one.run(step);
  other.plain_step();
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  step.fetch_parameters();
  EXPECT_EQ(difference(other.bits(), one.bits()), "");
}

// Within a budget, what pays stays on the device: with a slow disk as much as there is room for. Whatever
// a plan keeps or sends away, the next plan may do otherwise.
TEST_F(HomedParameters, WhatPaysStaysOnTheDevice) {
  for (const Way& way : {kOutside, kAll}) {
    SCOPED_TRACE(way.frozen);
    const std::vector<Bits> expected = plain(way, 10);
    const Tuned one(way);
    CapturedStep step = one.captured();
    size_t done = 0;
    const auto train = [&] {
      for (int k = 0; k < 2; ++k) {
        one.run(step);
        ++done;
        const CapturedStepReport report = step.last_step();
        EXPECT_EQ(report.predicted_peak, report.measured_peak);
        EXPECT_LE(report.measured_peak, report.budget);
      }
      fetch(step);
      EXPECT_EQ(difference(expected[done], one.bits()), "");
    };
    const auto away = [&] {
      const Graph& graph = step.graph();
      const std::vector<char> stays = stays_on_device(graph, step.planned().plan->actions);
      int count = 0;
      for (size_t v = 0; v < graph.values.size(); ++v) {
        const Value& value = graph.values[v];
        count += !value.home.empty() && value.kind == ValueKind::kInput && stays[v] == 0;
      }
      return count;
    };
    StepPlanOptions slow = moving(way);
    slow.offload = offload(disk_of(10'000'000));
    slow.time_limit = Nanos(200'000'000);
    step.plan(slow);
    const int most = away();
    EXPECT_EQ(most, way.frozen ? kMany : 2 * kMany) << "without a budget nothing is kept";
    const Nanos alone = step.planned().plan->time;
    train();
    slow.budget = "95%";
    step.plan(slow);
    const int some = away();
    EXPECT_LT(some, most);
    EXPECT_LT(step.planned().plan->time, alone);
    const Plan kept = *step.planned().plan;
    const Bytes budget = step.planned().budget;
    train();
    slow.budget = Bytes(1);
    const Bytes least = step.try_plan(slow).smallest_budget.value();
    slow.budget = least + Bytes(1 << 14);
    step.plan(slow);
    EXPECT_GT(away(), some);
    train();
    slow.budget = budget;
    step.use(kept, slow);
    EXPECT_EQ(away(), some);
    train();
    // Somebody takes the bytes of what is kept, so that it leaves.
    const Bytes taken = budget - least - Bytes(1 << 15);
    const at::Tensor other = at::empty({taken.count()}, at::kByte);
    train();
    EXPECT_GT(away(), some);
  }
}

// The function runs again when another outcome is captured, and reads parameters that are away.
TEST_F(HomedParameters, OutcomesAreCapturedWhileParametersAreAway) {
  const Tuned one(kOutside), other(kOutside);
  const auto step_of = [](const Tuned& of) {
    return [net = of.net](const Tensors& in) mutable {
      const bool doubled = in[1].item<bool>();
      at::Tensor loss = net->forward(doubled ? in[0] * 2 : in[0]).square().mean();
      loss.backward();
      return loss;
    };
  };
  CapturedStep step = capture(step_of(one), {one.x, at::full({}, true)},
                              {.modules = {one.net.ptr()},
                               .on_miss = OnMiss::kRecapture,
                               .measure = quick(),
                               .alternatives = none()});
  step.plan(moving(kOutside));
  for (const bool doubled : {true, false, true, false}) {
    const Tensors inputs = {one.x, at::full({}, doubled)};
    const at::Tensor loss = step.run(inputs), expected = step_of(other)(inputs);
    EXPECT_TRUE(at::equal(loss, expected.detach()));
    EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
    for (const Tuned* of : {&one, &other}) {
      of->optimizer->step();
      of->optimizer->zero_grad();
    }
  }
  EXPECT_EQ(step.outcomes().size(), 2U);
  step.fetch_parameters();
  EXPECT_EQ(difference(other.bits(), one.bits()), "");
}

// Whatever call of the disk fails, in the run that sends the parameters away or in the next one: if
// nothing was updated, all is as before the run; else the message says so, and each parameter and its
// state have the bits of before or of after the update, together.
TEST_F(HomedParameters, FaultsOfTheDiskLeaveWholeParameters) {
  for (const Way& way : {kOutside, kAllMomentum}) {
    const std::vector<Bits> expected = plain(way, 3, kFew);
    int before_updates = 0, behind_updates = 0;
    FaultyDisk calls;
    for (int64_t k = 1;; ++k) {
      SCOPED_TRACE(fmt::format("call {}", k));
      const Tuned one(way, kFew);
      CapturedStep step = one.captured();
      StepPlanOptions options = moving(way);
      options.time_limit = Nanos(20'000'000);
      step.plan(options);
      calls.arm(k, k % 2 == 0 ? DiskFault::kNoSpace : DiskFault::kError);
      std::string message;
      size_t done = 0;
      try {
        for (; done < 2; ++done) one.run(step);
      } catch (const std::exception& error) {
        message = error.what();
      }
      calls.disarm();
      if (!calls.failed()) break;
      fetch(step);
      const Bits now = one.bits();
      if (message.empty()) {  // The system need not know how to take room for a file.
        EXPECT_EQ(difference(expected[done], now), "");
        continue;
      }
      if (message.find("updated already") == std::string::npos) {
        ++before_updates;
        EXPECT_EQ(difference(expected[done], now), "");
        one.run(step);
        fetch(step);
        EXPECT_EQ(difference(expected[done + 1], one.bits()), "") << "the next run tries again";
        continue;
      }
      ++behind_updates;
      const auto adapter = per_parameter(*one.optimizer);
      for (size_t p = 0; p < adapter->parameters().size(); ++p) {
        for (const auto& item : one.net->named_parameters()) {
          if (!item.value().is_same(adapter->parameters()[p])) continue;
          const std::string name = item.key(), state = fmt::format("state{} 0", p);
          const bool is_new = now.at(name) == expected[done + 1].at(name);
          EXPECT_TRUE(is_new || now.at(name) == expected[done].at(name)) << name;
          EXPECT_EQ(is_new, expected[done].contains(state)
                                ? now.at(state) == expected[done + 1].at(state)
                                : now.contains(state))
              << name;
        }
      }
    }
    EXPECT_GT(before_updates, 0);
    EXPECT_EQ(behind_updates > 0, way.inside);
  }
}

TEST_F(HomedParameters, MistakesAreNamed) {
  const auto refuses = [](CapturedStep& of, const StepPlanOptions& options, const char* words) {
    try {
      of.plan(options);
      FAIL() << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const Tuned one(kOutside);
  CapturedStep step = one.captured();
  StepPlanOptions options = moving(kOutside);
  for (const char* nowhere : {"", "auto"}) {
    options.offload = {.to = nowhere};
    refuses(step, options, "needs a memory");
  }
  CapturedStep trained = Tuned({.frozen = false, .inside = false}).captured();
  refuses(trained, moving(kOutside), "freeze what is not trained");
}

}  // namespace
}  // namespace reprise::runtime::testing
