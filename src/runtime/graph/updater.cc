#include "runtime/graph/updater.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/miss.h"
#include "runtime/graph/with_gradient.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

Updater::Updater(std::shared_ptr<ParameterOptimizer> optimizer, Updates updates, c10::Device device)
    : optimizer_(std::move(optimizer)),
      updates_(std::move(updates)),
      device_(device),
      state_bytes_(updates_.each.size(), 0),
      movable_bytes_(updates_.each.size(), 0),
      reserved_(updates_.each.size()),
      own_(updates_.each.size(), true) {
  if (!optimizer_) return;
  parameters_ = optimizer_->parameters();
  memory_keys_ = memory_keys();
}

void Updater::keep_room(std::vector<int64_t> state_bytes) {
  state_bytes_ = std::move(state_bytes);
  reserve();
}

void Updater::use_homes(std::shared_ptr<HomeStore> homes,
                        const std::vector<int64_t>& movable_bytes) {
  std::vector<int64_t> bytes =
      homes ? movable_bytes : std::vector<int64_t>(updates_.each.size(), 0);
  if (homes == homes_ && bytes == movable_bytes_) return;
  homes_ = std::move(homes);
  movable_bytes_ = std::move(bytes);
  for (at::Tensor& room : reserved_) room = at::Tensor();
  reserve();
}

void Updater::shard(std::vector<size_t> own) {
  sharded_ = true;
  own_.assign(updates_.each.size(), false);
  for (const size_t k : own) own_[k] = true;
}

void Updater::keep_shard() {
  if (!sharded_) return;
  std::vector<bool> kept(parameters_.size(), true);
  for (size_t k = 0; k < own_.size(); ++k) kept[updates_.each[k].parameter] = own_[k];
  std::vector<size_t> numbers;
  for (size_t p = 0; p < kept.size(); ++p) {
    if (kept[p]) numbers.push_back(p);
  }
  if (optimizer_->keep_state_of(numbers)) return;
  throw InputError(fmt::format(
      "the state of the optimizer {} cannot be sharded: its class does not say how to drop "
      "the state of parameters that other ranks update (keep_state_of()). Leave "
      "shard_optimizer off, or use SGD, Adam, AdamW, Adagrad or RMSprop",
      optimizer_->name()));
}

void Updater::take(size_t k, const at::Tensor& values) {
  done_.push_back(k);  // A copy that fails half-way counts, too.
  const at::NoGradGuard no_grad;
  parameter(k).detach().copy_(values);
  parameter(k).unsafeGetTensorImpl()->bump_version();
}

void Updater::update(size_t k, const at::Tensor& gradient) {
  const size_t number = updates_.each[k].parameter;
  const at::Tensor& parameter = parameters_[number];
  const WithGradient with(parameter, gradient);
  std::optional<BlockSourceScope> heap;
  if (homes_) homes_->before_update(number);
  if (reserved_[k].defined() || (movable_bytes_[k] > 0 && !optimizer_->has_state(number))) {
    // State outlives the step, so it must not lie in the step's arena. Its room on the heap was
    // kept.
    heap.emplace(nullptr, device_);
    reserved_[k] = at::Tensor();
    made_state_ = true;
  }
  done_.push_back(k);  // An update that fails half-way counts, too.
  optimizer_->step(number);
  if (homes_) homes_->after_update(number);
  parameter.unsafeGetTensorImpl()->bump_version();
}

bool Updater::makes_state() const {
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    if (own_[k] && state_bytes_[k] > 0 && !optimizer_->has_state(updates_.each[k].parameter)) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> Updater::memory_keys() const {
  std::vector<std::string> keys;
  for (const Update& update : updates_.each) {
    keys.push_back(optimizer_->memory_key(update.parameter));
  }
  return keys;
}

void Updater::begin() {
  if (!optimizer_) return;
  done_.clear();
  made_state_ = false;
  const std::vector<at::Tensor> now = optimizer_->parameters();
  const bool same =
      std::equal(now.begin(), now.end(), parameters_.begin(), parameters_.end(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  if (!same) {
    throw InputError("the optimizer has other parameters than when the step was captured");
  }
  for (size_t p = 0; p < now.size(); ++p) {
    if (!now[p].grad().defined()) continue;
    throw StepMiss(
        fmt::format("parameter {} of the optimizer ({}) has a gradient already, and this step uses "
                    "gradients up one by one: it adds to none. Call zero_grad() before, or capture "
                    "without the optimizer and call its step() behind the captured one",
                    p, shape_text(now[p])),
        StepMiss::Kind::kGradients);
  }
  if (memory_keys() != memory_keys_) {
    throw InputError(
        "options of the optimizer were switched on or off that decide what its step does "
        "(momentum, weight decay, maximize); capture the step again");
  }
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    if (own_[k] || !optimizer_->has_state(updates_.each[k].parameter)) continue;
    keep_shard();  // The state of other shards was loaded since the last step.
    break;
  }
  reserve();
}

void Updater::reserve() {
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    if (!own_[k] || optimizer_->has_state(updates_.each[k].parameter)) {
      reserved_[k] = at::Tensor();
    } else if (const int64_t bytes = state_bytes_[k] - movable_bytes_[k];
               bytes > 0 && !reserved_[k].defined()) {
      reserved_[k] = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
    }
  }
}

std::vector<size_t> Updater::parameters_done() const {
  std::vector<size_t> parameters;
  for (const size_t k : done_) parameters.push_back(updates_.each[k].parameter);
  return parameters;
}

std::string Updater::updated() const {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t d = 0; d < std::min(done_.size(), kNamed); ++d) {
    text += (d == 0 ? "" : ", ") + updates_.each[done_[d]].name;
  }
  if (done_.size() > kNamed) text += fmt::format(" and {} others", done_.size() - kNamed);
  return text;
}

Works with_updates(Works works, const Recording& recording,
                   const std::shared_ptr<Updater>& updater) {
  const Updates& updates = updater->updates();
  if (updates.each.empty()) return works;
  const auto add = [&](int32_t position, Work work) {
    if (position != static_cast<int32_t>(works.all.size())) {
      throw InternalError("the works of updates are not where the updates expect them");
    }
    work.apart = true;
    works.all.push_back(std::move(work));
  };
  add(updates.before,
      {.name = "parameters", .kernel = [](std::vector<c10::IValue>&) {}, .arguments = {}});
  std::vector<Argument> gradients;
  for (size_t k = 0; k < updates.each.size(); ++k) {
    const Update& update = updates.each[k];
    const Argument gradient{.kind = ArgumentKind::kTensor,
                            .tensors = {recording.gradients[update.leaf].gradient}};
    gradients.push_back(gradient);
    const auto kernel = [updater, k](std::vector<c10::IValue>& stack) {
      const at::Tensor one = stack[0].toTensor();
      stack.clear();
      updater->update(k, one);
    };
    add(update.work, {.name = "update", .kernel = kernel, .arguments = {gradient}});
  }
  const auto whole = [updater](std::vector<c10::IValue>& stack) {
    for (size_t k = 0; k < stack.size(); ++k) updater->update(k, stack[k].toTensor());
    stack.clear();
  };
  add(updates.whole,
      {.name = updates.optimizer, .kernel = whole, .arguments = std::move(gradients)});
  return works;
}

}  // namespace reprise::runtime::internal::graph
