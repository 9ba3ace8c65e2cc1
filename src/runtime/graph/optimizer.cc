#include "reprise/runtime/optimizer.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace {

namespace optim = torch::optim;

std::string key_of(const optim::SGDOptions& options) {
  return fmt::format("momentum {} decay {} nesterov {}", options.momentum() != 0,
                     options.weight_decay() != 0, options.nesterov());
}
std::string key_of(const optim::AdamOptions& options) {
  return fmt::format("decay {} amsgrad {}", options.weight_decay() != 0, options.amsgrad());
}
std::string key_of(const optim::AdamWOptions& options) {
  return fmt::format("decay {} amsgrad {}", options.weight_decay() != 0, options.amsgrad());
}
std::string key_of(const optim::AdagradOptions& options) {
  return fmt::format("decay {}", options.weight_decay() != 0);
}
std::string key_of(const optim::RMSpropOptions& options) {
  return fmt::format("momentum {} decay {} centered {}", options.momentum() > 0,
                     options.weight_decay() != 0, options.centered());
}

// Sharded has the optimizers of which adapters keep a shard only, with the parameters of the shard.
class Sharded {
 public:
  void add(const optim::Optimizer* optimizer, const std::vector<size_t>& kept) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Shard& shard = all_[optimizer];
    if (shard.adapters > 0 && shard.kept != kept) {
      throw InputError(
          "a step that was captured before has sharded the optimizer in another way, and the state "
          "of some parameters would be on no rank: make an optimizer for each of these steps");
    }
    shard.kept = kept;
    ++shard.adapters;
  }
  void remove(const optim::Optimizer* optimizer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto shard = all_.find(optimizer);
    if (--shard->second.adapters == 0) all_.erase(shard);
  }
  bool has(const optim::Optimizer* optimizer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_.contains(optimizer);
  }
  // Says whether the state of the parameter is here.
  bool keeps(const optim::Optimizer* optimizer, size_t parameter) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto shard = all_.find(optimizer);
    if (shard == all_.end()) return true;
    const std::vector<size_t>& kept = shard->second.kept;
    return std::find(kept.begin(), kept.end(), parameter) != kept.end();
  }

 private:
  struct Shard {
    std::vector<size_t> kept;
    int adapters = 0;
  };
  std::mutex mutex_;
  std::map<const optim::Optimizer*, Shard> all_;
};

Sharded& sharded() {
  static auto* const all = new Sharded;  // Adapters may outlive static objects.
  return *all;
}

// While an OnlyOne lives, the groups of an optimizer have one parameter only. Nothing is copied.
class OnlyOne {
 public:
  OnlyOne(optim::Optimizer& optimizer, size_t group, at::Tensor parameter)
      : groups_(optimizer.param_groups()) {
    for (optim::OptimizerParamGroup& each : groups_)
      all_.push_back(std::exchange(each.params(), {}));
    groups_[group].params().push_back(std::move(parameter));
  }
  ~OnlyOne() {
    for (size_t g = 0; g < all_.size(); ++g) groups_[g].params() = std::move(all_[g]);
  }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

 private:
  std::vector<optim::OptimizerParamGroup>& groups_;
  std::vector<std::vector<at::Tensor>> all_;
};

std::vector<at::Tensor> tensors_of(const optim::SGDParamState& state) {
  return {state.momentum_buffer()};
}
std::vector<at::Tensor> tensors_of(const optim::AdamParamState& state) {
  return {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
}
std::vector<at::Tensor> tensors_of(const optim::AdamWParamState& state) {
  return {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
}
std::vector<at::Tensor> tensors_of(const optim::AdagradParamState& state) { return {state.sum()}; }
std::vector<at::Tensor> tensors_of(const optim::RMSpropParamState& state) {
  return {state.square_avg(), state.momentum_buffer(), state.grad_avg()};
}

template <class Kind, class Options, class State>
class OfTorch final : public ParameterOptimizer {
 public:
  OfTorch(Kind& optimizer, const char* name) : optimizer_(optimizer), name_(name) {}
  OfTorch(std::unique_ptr<Kind> optimizer, const char* name)
      : owned_(std::move(optimizer)), optimizer_(*owned_), name_(name) {}
  ~OfTorch() override {
    if (is_sharded_) sharded().remove(&optimizer_);
  }
  OfTorch(const OfTorch&) = delete;
  OfTorch& operator=(const OfTorch&) = delete;

  std::string name() const override { return name_; }

  std::vector<at::Tensor> parameters() const override {
    std::vector<at::Tensor> all;
    for (const optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    return all;
  }

  void step(size_t parameter) override {
    if (!sharded().keeps(&optimizer_, parameter)) {
      throw InputError(fmt::format(
          "the state of parameter {} of the optimizer is on another rank, because a step that was "
          "captured before has sharded it: make an optimizer for the step that does not shard",
          parameter));
    }
    const auto [group, at] = place(parameter);
    const OnlyOne only(optimizer_, group, optimizer_.param_groups()[group].params()[at]);
    optimizer_.step();
  }

  bool has_state(size_t parameter) const override {
    const auto [group, at] = place(parameter);
    const at::Tensor& tensor = optimizer_.param_groups()[group].params()[at];
    return optimizer_.state().find(tensor.unsafeGetTensorImpl()) != optimizer_.state().end();
  }

  std::string memory_key(size_t parameter) const override { return key_of(options(parameter)); }

  std::unique_ptr<ParameterOptimizer> twin(size_t parameter,
                                           const at::Tensor& stand_in) const override {
    return std::make_unique<OfTorch>(
        std::make_unique<Kind>(std::vector<at::Tensor>{stand_in}, options(parameter)), name_);
  }

  std::vector<at::Tensor> state_of(size_t parameter) const override {
    const auto [group, at] = place(parameter);
    const at::Tensor& tensor = optimizer_.param_groups()[group].params()[at];
    const auto found = optimizer_.state().find(tensor.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return {};
    return tensors_of(static_cast<const State&>(*found->second));
  }

  bool keep_state_of(const std::vector<size_t>& kept) override {
    const std::vector<at::Tensor> all = parameters();
    if (kept.size() < all.size() && !is_sharded_) {
      sharded().add(&optimizer_, kept);
      is_sharded_ = true;
    }
    for (size_t p = 0; p < all.size(); ++p) {
      if (std::find(kept.begin(), kept.end(), p) != kept.end()) continue;
      optimizer_.state().erase(all[p].unsafeGetTensorImpl());
    }
    return true;
  }

 private:
  // Returns the group of a parameter and its position in the group.
  std::pair<size_t, size_t> place(size_t parameter) const {
    for (size_t g = 0;; ++g) {
      const size_t count = optimizer_.param_groups().at(g).params().size();
      if (parameter < count) return {g, parameter};
      parameter -= count;
    }
  }
  const Options& options(size_t parameter) const {
    const optim::OptimizerParamGroup& group = optimizer_.param_groups()[place(parameter).first];
    return static_cast<const Options&>(group.has_options() ? group.options()
                                                           : optimizer_.defaults());
  }

  std::unique_ptr<Kind> owned_;
  Kind& optimizer_;
  const char* name_;
  bool is_sharded_ = false;
};

template <class Kind, class Options, class State>
std::shared_ptr<ParameterOptimizer> as(optim::Optimizer& optimizer, const char* name) {
  // A class derived from Kind is refused, because it may do anything.
  if (typeid(optimizer) != typeid(Kind)) return nullptr;
  return std::make_shared<OfTorch<Kind, Options, State>>(static_cast<Kind&>(optimizer), name);
}

}  // namespace

std::shared_ptr<ParameterOptimizer> per_parameter(optim::Optimizer& optimizer) {
  if (auto found = as<optim::SGD, optim::SGDOptions, optim::SGDParamState>(optimizer, "SGD"))
    return found;
  if (auto found = as<optim::Adam, optim::AdamOptions, optim::AdamParamState>(optimizer, "Adam"))
    return found;
  if (auto found =
          as<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>(optimizer, "AdamW"))
    return found;
  if (auto found =
          as<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>(optimizer, "Adagrad"))
    return found;
  if (auto found =
          as<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>(optimizer, "RMSprop"))
    return found;
  throw InputError(
      "gradients can be used up one by one by SGD, Adam, AdamW, Adagrad and RMSprop of "
      "torch::optim; "
      "this optimizer is of another class, whose step may look at several parameters at once. Keep "
      "it behind the step, or derive from ParameterOptimizer");
}

bool is_sharded(const optim::Optimizer& optimizer) { return sharded().has(&optimizer); }

}  // namespace reprise::runtime
