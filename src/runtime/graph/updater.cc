#include "runtime/graph/updater.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "runtime/arena/block_pool.h"
#include "runtime/graph/meter.h"
#include "runtime/graph/replay.h"
#include "runtime/device/device.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::graph {

using arena::BlockPool;
using device::synchronize;
using step::Argument;
using step::ArgumentKind;
using step::Geometry;
using step::LeafGradient;
using step::Memory;
using step::Recording;
using step::ReplayScope;
using step::Update;
using step::Work;
using step::Works;

namespace {

using Clock = std::chrono::steady_clock;

// A parameter has this gradient for a scope.
class WithGradient {
 public:
  WithGradient(const at::Tensor& parameter, const at::Tensor& gradient) : parameter_(parameter) {
    parameter_.mutable_grad() = gradient;
  }
  ~WithGradient() { parameter_.mutable_grad() = at::Tensor(); }
  WithGradient(const WithGradient&) = delete;
  WithGradient& operator=(const WithGradient&) = delete;

 private:
  const at::Tensor& parameter_;
};

std::vector<std::string> names_of(const std::vector<at::Tensor>& parameters,
                                  const CaptureOptions& options) {
  std::map<const void*, std::string> known;
  for (const auto& module : options.modules) {
    for (const auto& named : module->named_parameters()) {
      known.try_emplace(named.value().unsafeGetTensorImpl(), named.key());
    }
  }
  std::vector<std::string> names;
  std::set<std::string> used;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto found = known.find(parameters[p].unsafeGetTensorImpl());
    // Several modules may use the same name.
    const bool fresh = found != known.end() && used.insert(found->second).second;
    names.push_back(fresh ? found->second : fmt::format("parameter{}", p));
  }
  return names;
}

std::string describe(const at::Tensor& parameter) {
  return fmt::format("{}[{}]", c10::toString(parameter.scalar_type()),
                     fmt::join(parameter.sizes(), ", "));
}

int32_t external_of(const Recording& recording, const at::Tensor& parameter) {
  for (size_t e = 0; e < recording.externals.size(); ++e) {
    const at::Tensor& tensor = recording.externals[e].tensor;
    if (tensor.defined() && tensor.is_alias_of(parameter)) return static_cast<int32_t>(e);
  }
  return -1;
}

}  // namespace

Updater::Updater(const CaptureOptions& options, const Recording& recording, Works& works)
    : optimizer_(options.optimizer), device_(recording.device) {
  if (!optimizer_) return;
  parameters_ = optimizer_->parameters();
  check_coverage(recording, parameters_);
  updates_.optimizer = optimizer_->name();
  const std::vector<std::string> names = names_of(parameters_, options);
  std::map<const void*, size_t> leaves;
  for (size_t l = 0; l < recording.gradients.size(); ++l) {
    leaves.emplace(recording.gradients[l].target.unsafeGetTensorImpl(), l);
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto leaf = leaves.find(parameters_[p].unsafeGetTensorImpl());
    // The optimizer leaves alone what has no gradient.
    if (leaf == leaves.end() ||
        recording.gradients[leaf->second].gradient.memory == Memory::kNone) {
      continue;
    }
    updates_.each.push_back({.parameter = p,
                             .leaf = leaf->second,
                             .external = external_of(recording, parameters_[p]),
                             .name = names[p]});
  }
  if (updates_.each.empty()) {
    throw InputError("no parameter of the optimizer gets a gradient in this step");
  }
  memory_keys_ = memory_keys();
  state_bytes_.assign(updates_.each.size(), 0);
  reserved_.resize(updates_.each.size());
  add_works(recording, works);
}

void Updater::check_coverage(const Recording& recording,
                             const std::vector<at::Tensor>& parameters) const {
  std::set<const void*> known;
  for (const at::Tensor& parameter : parameters) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) continue;
    throw InputError(fmt::format(
        "the optimizer has a parameter twice ({}): its step would update it twice with the same "
        "gradient. Give it each parameter once",
        describe(parameter)));
  }
  std::map<int32_t, const LeafGradient*> memory;
  for (const LeafGradient& leaf : recording.gradients) {
    const bool is_known = known.contains(leaf.target.unsafeGetTensorImpl());
    const std::string what = describe(leaf.target);
    if (leaf.input >= 0) {
      if (!is_known) continue;
      throw InputError(
          fmt::format("input {} of the step is a parameter of the optimizer: the step cannot "
                      "update it. Let the "
                      "step find it by itself",
                      leaf.input));
    }
    const int32_t external = external_of(recording, leaf.target);
    if (external < 0 || leaf.gradient.memory == Memory::kNone) continue;  // made inside the step
    if (!is_known) {
      throw InputError(fmt::format(
          "the step makes a gradient for a parameter ({}) that is in no group of the optimizer: "
          "nobody would use it up. Add it to the optimizer, or switch requires_grad off",
          what));
    }
    if (leaf.gradient.memory == Memory::kExternal) {
      throw InputError(fmt::format(
          "the gradient of a parameter ({}) is memory from outside the step; give the optimizer a "
          "copy",
          what));
    }
    if (!memory.emplace(external, &leaf).second) {
      throw InputError(fmt::format(
          "two parameters ({}) lie in the same memory: one would be updated while the other is "
          "still needed. Use one tensor in both places",
          what));
    }
  }
}

void Updater::add_works(const Recording& recording, Works& works) {
  const auto add = [&](Work work) {
    work.apart = true;
    works.all.push_back(std::move(work));
    return static_cast<int32_t>(works.all.size()) - 1;
  };
  updates_.before =
      add({.name = "parameters", .kernel = [](std::vector<c10::IValue>&) {}, .arguments = {}});
  std::vector<Argument> gradients;
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    Update& update = updates_.each[k];
    const Argument gradient{.kind = ArgumentKind::kTensor,
                            .tensors = {recording.gradients[update.leaf].gradient}};
    gradients.push_back(gradient);
    const auto kernel = [this, k](std::vector<c10::IValue>& stack) {
      const at::Tensor one = stack[0].toTensor();
      stack.clear();
      this->update(k, one);
    };
    update.work = add({.name = "update", .kernel = kernel, .arguments = {gradient}});
  }
  const auto whole = [this](std::vector<c10::IValue>& stack) {
    for (size_t k = 0; k < stack.size(); ++k) update(k, stack[k].toTensor());
    stack.clear();
  };
  updates_.whole =
      add({.name = updates_.optimizer, .kernel = whole, .arguments = std::move(gradients)});
}

void Updater::update(size_t k, const at::Tensor& gradient) {
  const size_t number = updates_.each[k].parameter;
  const at::Tensor& parameter = parameters_[number];
  const WithGradient with(parameter, gradient);
  std::optional<BlockSourceScope> heap;
  if (reserved_[k].defined()) {
    // State stays when the step is over: it must not lie in the step's block. Its room was kept.
    heap.emplace(nullptr);
    reserved_[k] = at::Tensor();
    made_state_ = true;
  }
  done_.push_back(k);  // even if it fails on the way
  optimizer_->step(number);
  parameter.unsafeGetTensorImpl()->bump_version();
}

std::vector<std::string> Updater::memory_keys() const {
  std::vector<std::string> keys;
  for (const Update& update : updates_.each) {
    keys.push_back(optimizer_->memory_key(update.parameter));
  }
  return keys;
}

Updater::UpdateSample Updater::measure_one(const Update& update, const Geometry& gradient,
                                   const MeasureOptions& options) const {
  const at::Tensor& parameter = parameters_[update.parameter];
  at::Tensor stand_in = at::empty_strided(parameter.sizes(), parameter.strides(),
                                          parameter.options().requires_grad(false));
  stand_in.copy_(parameter);
  const auto twin = optimizer_->twin(update.parameter, stand_in);
  const WithGradient with(stand_in, at::empty_strided(gradient.sizes, gradient.strides,
                                                      parameter.options().dtype(gradient.dtype))
                                        .fill_(1e-3));
  UpdateSample cost;
  int64_t total = 0;
  const auto repeats = static_cast<size_t>(options.min_repeats);
  const auto most = static_cast<size_t>(options.max_repeats);
  for (bool first = true; first || cost.times.size() < repeats ||
                          (total < options.min_time.count() && cost.times.size() < most);
       first = false) {
    reset_peak(device_);
    const int64_t before = memory_count(device_).live;
    synchronize(device_);
    const auto start = Clock::now();
    twin->step(0);
    synchronize(device_);
    const auto time =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    const MemoryCount count = memory_count(device_);
    if (first) cost.state = count.live - before;  // the first step makes it
    cost.workspace = std::max(cost.workspace, count.peak - std::max(before, count.live));
    if (first) continue;
    cost.times.push_back(time);
    total += time;
  }
  std::sort(cost.times.begin(), cost.times.end());
  return cost;
}

void Updater::measure(const Recording& recording, const MeasureOptions& options, WorkCosts& costs) {
  if (!optimizer_) return;
  measure_all(recording, options, costs);
  reserve();
}

void Updater::measure_all(const Recording& recording, const MeasureOptions& options,
                          WorkCosts& costs) {
  const ReplayScope scope;
  const at::NoGradGuard no_grad;
  const BlockSourceScope pool(std::make_shared<BlockPool>());
  std::map<std::string, UpdateSample> known;
  WorkCost sum;
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    const Update& update = updates_.each[k];
    const at::Tensor& parameter = parameters_[update.parameter];
    const Geometry& gradient = recording.gradients[update.leaf].gradient.geometry;
    const auto [found, fresh] = known.try_emplace(fmt::format(
        "{} {} {} {} {}", describe(parameter), fmt::join(parameter.strides(), ","),
        c10::toString(gradient.dtype), fmt::join(gradient.strides, ","), memory_keys_[k]));
    UpdateSample& cost = found->second;
    if (fresh) {
      cost = measure_one(update, gradient, options);
      costs.spread.push_back({.op = "update." + update.name,
                              .variant = "default",
                              .repeats = static_cast<int64_t>(cost.times.size()),
                              .min = Nanos(cost.times.front()),
                              .median = Nanos(cost.times[cost.times.size() / 2]),
                              .max = Nanos(cost.times.back())});
    }
    state_bytes_[k] = cost.state;
    WorkCost& of_update = costs.by_work[static_cast<size_t>(update.work)];
    of_update = {Nanos(cost.times[cost.times.size() / 2]), Bytes(cost.workspace)};
    sum.time += of_update.time;
    sum.workspace = std::max(sum.workspace, of_update.workspace);
  }
  costs.by_work[static_cast<size_t>(updates_.whole)] = sum;
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
    throw InputError(fmt::format(
        "parameter {} of the optimizer ({}) has a gradient already, and this step uses gradients "
        "up "
        "one by one: accumulation and clipping need them all. Call zero_grad() before, or capture "
        "without the optimizer",
        p, describe(now[p])));
  }
  if (memory_keys() != memory_keys_) {
    throw InputError(
        "options of the optimizer were switched on or off that decide what its step does "
        "(momentum, weight decay, maximize); capture the step again");
  }
  reserve();
}

void Updater::reserve() {
  for (size_t k = 0; k < updates_.each.size(); ++k) {
    if (optimizer_->has_state(updates_.each[k].parameter)) {
      reserved_[k] = at::Tensor();
    } else if (state_bytes_[k] > 0 && !reserved_[k].defined()) {
      reserved_[k] = at::empty({state_bytes_[k]}, at::TensorOptions(at::kByte).device(device_));
    }
  }
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

}  // namespace reprise::runtime::internal::graph
