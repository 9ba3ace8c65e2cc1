// Runs steps at budgets so tight that stages really run again, and compares them with plain steps.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plain_step.h"
#include "reprise/model/errors.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/remat.h"

namespace reprise::runtime::testing {

// Holds results by name, as bytes in host memory that the allocator does not count.
using Bits = std::map<std::string, std::string>;

inline void put_bits(Bits& bits, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const at::Tensor x = tensor.detach().contiguous();
  bits[name].assign(static_cast<const char*>(x.const_data_ptr()), x.nbytes());
}

inline void put_bits(Bits& bits, const std::string& name, const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i)
    put_bits(bits, fmt::format("{} {}", name, i), tensors[i]);
}

inline Bits bits_now(const std::vector<Stage>& stages, const Tensors& inputs,
                     const at::Tensor& loss = {}) {
  const StepResult now = snapshot(stages, inputs, loss);
  Bits bits;
  put_bits(bits, "loss", now.loss);
  put_bits(bits, "gradient", now.gradients);
  put_bits(bits, "input gradient", now.input_gradients);
  put_bits(bits, "buffer", now.buffers);
  put_bits(bits, "random state", now.random);
  put_bits(bits, "parameter", parameters_of(stages));
  return bits;
}

// Names what differs, in words. The text is empty if nothing does.
inline std::string difference(const Bits& a, const Bits& b) {
  std::set<std::string> names;
  for (const auto& [name, bytes] : a) {
    if (auto other = b.find(name); other == b.end() || other->second != bytes) names.insert(name);
  }
  for (const auto& [name, bytes] : b) {
    if (!a.contains(name)) names.insert(name);
  }
  return fmt::format("{}", fmt::join(names, "; "));
}

inline int64_t live() { return memory_count(c10::kCPU).live; }

// Times do not matter here, and these tests write loss = f(forward(x)).
inline MeasureOptions quick() {
  return {.min_repeats = 1, .max_repeats = 1, .min_time = Nanos(0), .output_held = false};
}

// Switches off the options that keep less. Below the memory that keeping everything takes, some
// stage must then run again, whatever times were measured for the options.
inline MeasureOptions without_options() {
  MeasureOptions options = quick();
  for (const AlternativeInfo& kind : alternatives()) {
    if (kind.in_chain) options.alternatives.without.push_back(kind.name);
  }
  return options;
}

inline at::Tensor mean_square(const Tensors& outputs) {
  at::Tensor sum;
  for (const at::Tensor& y : outputs) {
    if (!y.requires_grad()) continue;
    const at::Tensor term = y.to(at::kFloat).square().mean();
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

// Makes a stage of a module.
template <class Holder>
Stage layer(const std::string& name, Holder module) {
  return {name, module.ptr(),
          [module](const Tensors& x) mutable { return Tensors{module->forward(x.at(0))}; }};
}

// Counts the forward calls of stages, by name.
class CountedStages {
 public:
  explicit CountedStages(std::vector<Stage> plain) : stages(std::move(plain)) {
    for (Stage& stage : stages) {
      stage.forward = [calls = calls_, name = stage.name, inner = stage.forward](const Tensors& x) {
        ++(*calls)[name];
        return inner(x);
      };
    }
  }
  void reset() { calls_->clear(); }
  int total() const {
    int sum = 0;
    for (const auto& [name, count] : *calls_) sum += count;
    return sum;
  }
  const std::map<std::string, int>& calls() const { return *calls_; }

  std::vector<Stage> stages;

 private:
  std::shared_ptr<std::map<std::string, int>> calls_ =
      std::make_shared<std::map<std::string, int>>();
};

// Returns how often the plan runs each stage forward. Joined stages ("a+b") count for each part.
inline std::map<std::string, int> planned_runs(const Remat& remat) {
  std::map<std::string, int> runs;
  for (const Action& action : remat.plan().plan->actions) {
    if (action.kind != ActionKind::kRun || action.id.front() != 'F') continue;
    std::string name = remat.chain().stages.at(std::stoul(action.id.substr(1))).name;
    for (size_t plus; (plus = name.find('+')) != std::string::npos; name.erase(0, plus + 1)) {
      ++runs[name.substr(0, plus)];
    }
    ++runs[name];
  }
  return runs;
}

// Counts the runs that keep less for their backward than plain training's do.
inline int planned_options(const Remat& remat) {
  int options = 0;
  for (const Action& action : remat.plan().plan->actions) {
    if (action.kind != ActionKind::kRun || action.id.front() != 'F') continue;
    const auto& stage = remat.chain().stages.at(std::stoul(action.id.substr(1)));
    options += action.variant != "fast" && action.variant != stage.options.front().name ? 1 : 0;
  }
  return options;
}

inline Bytes smallest_budget(const Remat& remat) {
  return frontier(remat.chain(), {.schedule_class = kScheduleClass}).points.front().budget;
}
inline Bytes largest_budget(const Remat& remat) {
  return frontier(remat.chain(), {.schedule_class = kScheduleClass}).points.back().budget;
}

inline void drop_gradients(const std::vector<Stage>& stages, const Tensors& inputs) {
  for (const at::Tensor& p : parameters_of(stages)) p.mutable_grad() = at::Tensor();
  for (const at::Tensor& x : inputs) {
    if (x.is_leaf() && x.requires_grad()) x.mutable_grad() = at::Tensor();
  }
}

// Runs `count` plain steps in a row from the present state, and drops the gradients between them.
inline std::vector<Bits> plain_steps(const std::vector<Stage>& stages, const Tensors& inputs,
                                     const Loss& loss, int count) {
  std::vector<Bits> results;
  for (int k = 0; k < count; ++k) {
    drop_gradients(stages, inputs);
    at::Tensor value = loss(run_plain(stages, inputs));
    value.backward();
    results.push_back(bits_now(stages, inputs, value));
  }
  return results;
}

inline Bits planned_step(Remat& remat, const std::vector<Stage>& stages, const Tensors& inputs,
                         const Loss& loss) {
  at::Tensor value = loss(remat.forward(inputs));
  value.backward();
  return bits_now(stages, inputs, value);
}

// Checks the promise. At the smallest budget, at plain training's and at one between them, several
// steps in a row equal plain training's, in the predicted bytes, and each stage runs as often as
// the plan says. With `recomputes`, some stage runs more than once or in another way at the
// smallest budget; measured times decide in which way.
inline void expect_same_steps(const std::vector<Stage>& plain, const Tensors& inputs,
                              const Loss& loss = mean_square, bool recomputes = true) {
  install_cpu_allocator();
  constexpr int kSteps = 3;
  CountedStages counted(plain);
  const StepState state(plain, inputs);
  plain_steps(plain, inputs, loss, 1);  // warm up
  state.restore();
  const std::vector<Bits> expected = plain_steps(plain, inputs, loss, kSteps);
  state.restore();
  const Bits before = bits_now(plain, inputs);
  auto remat = reprise::runtime::remat(counted.stages, inputs, {.loss = loss, .measure = quick()});
  EXPECT_EQ(difference(before, bits_now(plain, inputs)), "") << "changed by measuring";
  const Bytes smallest = smallest_budget(*remat), largest = largest_budget(*remat);
  for (const Bytes budget : {smallest, Bytes((smallest.count() + largest.count()) / 2), largest}) {
    SCOPED_TRACE(fmt::format("budget {} of {}", budget.count(), largest.count()));
    remat->set_budget(budget);
    state.restore();
    for (int k = 0; k < kSteps; ++k) {
      SCOPED_TRACE(fmt::format("step {}", k));
      drop_gradients(plain, inputs);
      counted.reset();
      EXPECT_EQ(
          difference(expected[static_cast<size_t>(k)], planned_step(*remat, plain, inputs, loss)),
          "");
      EXPECT_EQ(counted.calls(), planned_runs(*remat));
      EXPECT_EQ(remat->last_step().predicted_peak.count(),
                remat->last_step().measured_peak.count());
      EXPECT_LE(remat->last_step().measured_peak.count(), budget.count());
    }
    if (recomputes && budget == smallest) {
      EXPECT_GT(counted.total() + planned_options(*remat), static_cast<int>(plain.size()))
          << "nothing ran again: the test shows nothing";
    }
  }
  state.restore();
}

}  // namespace reprise::runtime::testing
