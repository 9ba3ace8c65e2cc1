#include "runtime/saved/optimizer_fields.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::saved {
namespace {

namespace optim = torch::optim;

std::vector<Field> options_of(optim::SGDOptions& o) {
  return {{"lr", &o.lr()},
          {"momentum", &o.momentum()},
          {"dampening", &o.dampening()},
          {"weight_decay", &o.weight_decay()},
          {"nesterov", &o.nesterov()}};
}
template <class AdamLike>
std::vector<Field> options_like_adam(AdamLike& o) {
  return {{"lr", &o.lr()},
          {"betas", &o.betas()},
          {"eps", &o.eps()},
          {"weight_decay", &o.weight_decay()},
          {"amsgrad", &o.amsgrad()}};
}
std::vector<Field> options_of(optim::AdamOptions& o) { return options_like_adam(o); }
std::vector<Field> options_of(optim::AdamWOptions& o) { return options_like_adam(o); }
std::vector<Field> options_of(optim::AdagradOptions& o) {
  return {{"lr", &o.lr()},
          {"lr_decay", &o.lr_decay()},
          {"weight_decay", &o.weight_decay()},
          {"initial_accumulator_value", &o.initial_accumulator_value()},
          {"eps", &o.eps()}};
}
std::vector<Field> options_of(optim::RMSpropOptions& o) {
  return {{"lr", &o.lr()},
          {"alpha", &o.alpha()},
          {"eps", &o.eps()},
          {"weight_decay", &o.weight_decay()},
          {"momentum", &o.momentum()},
          {"centered", &o.centered()}};
}

std::vector<Field> fields_of(optim::SGDParamState& s) {
  return {{"momentum_buffer", &s.momentum_buffer()}};
}
template <class AdamLike>
std::vector<Field> fields_like_adam(AdamLike& s) {
  return {{"step", &s.step()},
          {"exp_avg", &s.exp_avg()},
          {"exp_avg_sq", &s.exp_avg_sq()},
          {"max_exp_avg_sq", &s.max_exp_avg_sq()}};
}
std::vector<Field> fields_of(optim::AdamParamState& s) { return fields_like_adam(s); }
std::vector<Field> fields_of(optim::AdamWParamState& s) { return fields_like_adam(s); }
std::vector<Field> fields_of(optim::AdagradParamState& s) {
  return {{"step", &s.step()}, {"sum", &s.sum()}};
}
std::vector<Field> fields_of(optim::RMSpropParamState& s) {
  return {{"step", &s.step()},
          {"square_avg", &s.square_avg()},
          {"momentum_buffer", &s.momentum_buffer()},
          {"grad_avg", &s.grad_avg()}};
}

template <class Options, class State>
constexpr OptimizerKind kind(const char* name) {
  return {
      .name = name,
      .options = [](optim::OptimizerOptions& o) { return options_of(static_cast<Options&>(o)); },
      .state = [](optim::OptimizerParamState& s) { return fields_of(static_cast<State&>(s)); },
      .make_state = []() -> std::unique_ptr<optim::OptimizerParamState> {
        return std::make_unique<State>();
      }};
}

constexpr OptimizerKind kSgd = kind<optim::SGDOptions, optim::SGDParamState>("SGD"),
                        kAdam = kind<optim::AdamOptions, optim::AdamParamState>("Adam"),
                        kAdamW = kind<optim::AdamWOptions, optim::AdamWParamState>("AdamW"),
                        kAdagrad = kind<optim::AdagradOptions, optim::AdagradParamState>("Adagrad"),
                        kRmsprop = kind<optim::RMSpropOptions, optim::RMSpropParamState>("RMSprop");

}  // namespace

const OptimizerKind& kind_of(const optim::Optimizer& optimizer) {
  // A class that is derived from one of these may keep anything beside.
  if (typeid(optimizer) == typeid(optim::SGD)) return kSgd;
  if (typeid(optimizer) == typeid(optim::Adam)) return kAdam;
  if (typeid(optimizer) == typeid(optim::AdamW)) return kAdamW;
  if (typeid(optimizer) == typeid(optim::Adagrad)) return kAdagrad;
  if (typeid(optimizer) == typeid(optim::RMSprop)) return kRmsprop;
  throw InputError(
      "the state of SGD, Adam, AdamW, Adagrad and RMSprop of torch::optim can be saved; this "
      "optimizer is of another class. Save its tensors by StateParts::tensors");
}

}  // namespace reprise::runtime::internal::saved
