// Makes training steps with each optimizer of LibTorch that updates parameters one by one.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "reprise/runtime/capture.h"
#include "small_models.h"
#include "step_cases.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

namespace optim = torch::optim;

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

struct Rule {
  std::string name;
  MakeOptimizer make;
};

template <class Kind, class Options>
Rule rule(const std::string& name, const Options& options) {
  return {name, [options](const Parameters& p) { return std::make_unique<Kind>(p, options); }};
}

// Puts the second half of the parameters into a group of its own.
inline Rule groups() {
  return {"groups", [](const Parameters& p) {
            const auto half = p.begin() + static_cast<std::ptrdiff_t>(p.size() / 2);
            std::vector<optim::OptimizerParamGroup> all;
            all.emplace_back(Parameters(p.begin(), half));
            all.emplace_back(Parameters(half, p.end()), std::make_unique<optim::SGDOptions>(
                                                            optim::SGDOptions(0.02).momentum(0.5)));
            return std::make_unique<optim::SGD>(all, optim::SGDOptions(0.1).weight_decay(0.1));
          }};
}

inline std::vector<Rule> rules() {
  return {
      rule<optim::SGD>("sgd", optim::SGDOptions(0.1)),
      rule<optim::SGD>("sgd_nesterov",
                       optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true)),
      rule<optim::SGD>("sgd_dampening", optim::SGDOptions(0.05).momentum(0.9).dampening(0.3)),
      groups(),
      rule<optim::Adam>("adam", optim::AdamOptions(0.01)),
      rule<optim::Adam>("adam_amsgrad", optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true)),
      rule<optim::AdamW>("adamw", optim::AdamWOptions(0.01)),
      rule<optim::Adagrad>("adagrad", optim::AdagradOptions(0.01).weight_decay(0.1)),
      rule<optim::RMSprop>("rmsprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
  };
}

inline Rule rule_called(const std::string& name) {
  for (Rule& rule : rules()) {
    if (rule.name == name) return rule;
  }
  throw std::logic_error(name);
}

// Adds the state of every parameter, where there is one.
inline void put_state(Bits& bits, optim::Optimizer& optimizer) {
  size_t k = 0;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = fmt::format("state {} ", k++);
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const optim::OptimizerParamState* state = found->second.get();
      if (const auto* sgd = dynamic_cast<const optim::SGDParamState*>(state)) {
        put_bits(bits, name + "momentum", sgd->momentum_buffer());
      } else if (const auto* adam = dynamic_cast<const optim::AdamParamState*>(state)) {
        bits[name + "step"] = std::to_string(adam->step());
        put_bits(bits, name + "moments",
                 {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
      } else if (const auto* adamw = dynamic_cast<const optim::AdamWParamState*>(state)) {
        bits[name + "step"] = std::to_string(adamw->step());
        put_bits(bits, name + "moments",
                 {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()});
      } else if (const auto* adagrad = dynamic_cast<const optim::AdagradParamState*>(state)) {
        bits[name + "step"] = std::to_string(adagrad->step());
        put_bits(bits, name + "sum", adagrad->sum());
      } else if (const auto* rms = dynamic_cast<const optim::RMSpropParamState*>(state)) {
        bits[name + "step"] = std::to_string(rms->step());
        put_bits(bits, name + "sums", {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()});
      } else {
        ADD_FAILURE() << "state of an unknown kind";
      }
    }
  }
}

// This is a model with its inputs and its optimizer. It is the same whenever it is made.
struct Training {
  std::vector<Stage> stages;
  Tensors inputs;
  StepFunction step;  // forward, loss, backward
  std::unique_ptr<optim::Optimizer> optimizer;

  Bits bits(const at::Tensor& loss) const {
    Bits all = bits_now(stages, inputs, loss);
    put_state(all, *optimizer);
    return all;
  }
  at::Tensor plain() const {
    const at::Tensor loss = step(inputs)[0];
    optimizer->step();
    optimizer->zero_grad();
    return loss;
  }
  CapturedStep capture() const {
    CaptureOptions options{.measure = quick(), .optimizer = per_parameter(*optimizer)};
    for (const Stage& stage : stages) {
      if (stage.module) options.modules.push_back(stage.module);
    }
    return runtime::capture(step, inputs, options);
  }
};

using MakeTraining = std::function<Training()>;

inline Training zoo_training(const std::string& name, const MakeOptimizer& make) {
  at::manual_seed(5);
  Training training;
  const training::Model model = training::make_model(small_config(name));
  training.stages = model.stages;
  training.inputs = {model.sample_input(), model.sample_target()};
  training.step = [model](const Tensors& in) {
    at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
    loss.backward();
    return Tensors{loss};
  };
  training.optimizer = make(parameters_of(training.stages));
  return training;
}

inline Training case_training(size_t number, const MakeOptimizer& make) {
  at::manual_seed(5);
  const Case work = cases().at(number);
  Training training;
  training.stages = {{work.name, work.module, {}}};
  training.inputs = work.inputs;
  training.step = [work](const Tensors& in) {
    at::Tensor loss = work.loss(in);
    loss.backward();
    return Tensors{loss};
  };
  training.optimizer = make(parameters_of(training.stages));
  return training;
}

}  // namespace reprise::runtime::testing
