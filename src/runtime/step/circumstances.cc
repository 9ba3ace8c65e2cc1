#include "runtime/step/circumstances.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reprise/model/errors.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::step {

using device::kBlockAlignment;
using device::require_plain;

namespace {

std::string text_of_geometry(const Geometry& geometry) {
  return fmt::format("{}[{}] with strides [{}]", c10::toString(geometry.dtype),
                     fmt::join(geometry.sizes, ", "), fmt::join(geometry.strides, ", "));
}

// Returns by how many bytes the data has moved. Kernels may take another path where data begins
// elsewhere in a cache line, so callers compare the shift with the alignment of blocks.
int64_t shift(const Geometry& from, const Geometry& to) {
  return (to.offset - from.offset) * static_cast<int64_t>(c10::elementSize(from.dtype));
}

}  // namespace

Circumstances::Circumstances(const Tensors& inputs, const CaptureOptions& options)
    : autocast_(inputs.empty() || !inputs[0].defined() ? c10::Device(c10::kCPU)
                                                       : inputs[0].device()),
      grad_mode_(at::GradMode::is_enabled()),
      settings_(settings_now()) {
  for (const WatchedValue& value : options.watched) watched_.push_back({value.name, value.read()});
  for (const at::Tensor& tensor : inputs) {
    Input& input = inputs_.emplace_back();
    if (!tensor.defined()) continue;
    require_plain(tensor, fmt::format("input {} of the step", inputs_.size() - 1));
    if (tensor.requires_grad() && !tensor.is_leaf()) {
      throw InputError(fmt::format(
          "input {} has a history, which a captured step does not continue: detach() it, or take "
          "what made it into the step",
          inputs_.size() - 1));
    }
    input = {geometry_of(tensor), tensor.device().str(), true, tensor.requires_grad()};
    const auto same = [&](const at::Tensor& other) {
      return other.defined() && other.storage().is_alias_of(tensor.storage());
    };
    input.owner =
        static_cast<size_t>(std::find_if(inputs.begin(), inputs.end(), same) - inputs.begin());
  }
  for (const auto& root : options.modules) {
    require_plain(*root, "");
    for (const auto& module : root->modules()) {
      ModuleState& state = modules_.emplace_back();
      state.training = module->is_training();
      for (const at::Tensor& tensor : module->parameters(false)) {
        state.tensors.push_back(tensor.unsafeGetTensorImpl());
      }
      for (const at::Tensor& tensor : module->buffers(false)) {
        state.tensors.push_back(tensor.storage().unsafeGetStorageImpl());
      }
    }
  }
}

std::vector<std::string> Circumstances::names() const {
  std::vector<std::string> names;
  for (const Setting& setting : settings_) names.push_back(setting.name);
  for (const Value& value : watched_) names.push_back(value.name);
  return names;
}

std::string Circumstances::text_of(const Input& input) {
  if (!input.defined) return "an undefined tensor";
  return fmt::format("{} at offset {} on {}{}", text_of_geometry(input.geometry),
                     input.geometry.offset, input.device,
                     input.requires_grad ? ", which wants a gradient" : "");
}

std::string Circumstances::difference_of_input(size_t i, const Circumstances& now) const {
  const Input &then = inputs_[i], &given = now.inputs_[i];
  Input moved = given;
  moved.geometry.offset = then.geometry.offset;
  moved.owner = then.owner;
  if (then.any_flag) moved.requires_grad = then.requires_grad;
  moved.any_flag = then.any_flag;
  if (!(then == moved) || shift(then.geometry, given.geometry) % kBlockAlignment != 0) {
    return fmt::format("input {} is {} instead of {}", i, text_of(given), text_of(then));
  }
  const size_t owner = then.owner;
  const bool apart = owner != i && (given.owner != owner || shift(then.geometry, given.geometry) !=
                                                                shift(inputs_[owner].geometry,
                                                                      now.inputs_[owner].geometry));
  if (apart) {
    return fmt::format("inputs {} and {} shared memory in the sample, and lie apart now", owner, i);
  }
  if (given.owner != owner && (given.requires_grad || now.inputs_[given.owner].requires_grad)) {
    return fmt::format("inputs {} and {} lay apart in the sample, and share memory now",
                       given.owner, i);
  }
  return {};
}

std::string Circumstances::difference_of_values(const Circumstances& now) const {
  for (size_t i = 0; i < settings_.size(); ++i) {
    if (settings_[i] == now.settings_[i]) continue;
    return fmt::format("{}: {} instead of {}", settings_[i].name, now.settings_[i].value,
                       settings_[i].value);
  }
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i] == now.watched_[i]) continue;
    return fmt::format("{}: {} instead of {}", watched_[i].name, now.watched_[i].text,
                       watched_[i].text);
  }
  return {};
}

std::string Circumstances::difference(const Circumstances& now) const {
  if (inputs_.size() != now.inputs_.size()) {
    return fmt::format("{} inputs instead of {}", now.inputs_.size(), inputs_.size());
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    std::string of_input = difference_of_input(i, now);
    if (!of_input.empty()) return of_input;
  }
  if (grad_mode_ != now.grad_mode_) return "gradients are switched off or on";
  if (!(autocast_ == now.autocast_)) return "autocast is in another state";
  std::string difference = difference_of_values(now);
  if (!difference.empty()) return difference;
  if (modules_.size() != now.modules_.size()) return "a module has other children";
  for (size_t m = 0; m < modules_.size(); ++m) {
    if (modules_[m].training != now.modules_[m].training) {
      return fmt::format("a module is in {} mode",
                         now.modules_[m].training ? "training" : "evaluation");
    }
    if (modules_[m].tensors != now.modules_[m].tensors) {
      return "a module has other parameters or buffers";
    }
  }
  return {};
}

bool Circumstances::covers(const Circumstances& now) const {
  if (inputs_.size() != now.inputs_.size()) return false;
  Circumstances larger = now;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto &most = inputs_[i].geometry.sizes, &sizes = now.inputs_[i].geometry.sizes;
    if (!std::equal(most.begin(), most.end(), sizes.begin(), sizes.end(), std::greater_equal())) {
      return false;
    }
    larger.inputs_[i].geometry.sizes = most;
    larger.inputs_[i].geometry.strides = inputs_[i].geometry.strides;
  }
  return difference(larger).empty();
}

Residents::Residents(const Recording& recording) {
  for (const External& external : recording.externals) {
    if (!external.tensor.defined() || external.is_constant) continue;
    add(external.tensor, external.tensor);
  }
  // Several parameters may lie in one storage. The replay knows only one tensor of that storage.
  for (const LeafGradient& leaf : recording.gradients) {
    if (leaf.input >= 0 || leaf.gradient.memory == Memory::kNone) continue;
    for (const External& external : recording.externals) {
      if (!external.tensor.defined() || external.tensor.is_same(leaf.target)) continue;
      if (external.tensor.storage().is_alias_of(leaf.target.storage())) {
        add(leaf.target, external.tensor);
      }
    }
  }
}

void Residents::add(const at::Tensor& tensor, const at::Tensor& owner) {
  all_.push_back({tensor, geometry_of(tensor), tensor.requires_grad(), owner});
}

// Handles the usual case without a copy, because this function runs at every step.
bool Residents::is_as_it_was(const Resident& resident) {
  const at::Tensor& now = resident.tensor;
  const Geometry& then = resident.geometry;
  return now.storage().is_alias_of(resident.owner.storage()) &&
         now.requires_grad() == resident.requires_grad && now.scalar_type() == then.dtype &&
         now.storage_offset() == then.offset && now.sizes() == then.sizes &&
         now.strides() == then.strides && now.is_conj() == then.conjugate &&
         now.is_neg() == then.negative;
}

std::string Residents::difference() const {
  for (const Resident& resident : all_) {
    if (is_as_it_was(resident)) continue;
    const Geometry now = geometry_of(resident.tensor);
    const bool apart = !resident.tensor.storage().is_alias_of(resident.owner.storage()) ||
                       now.offset != resident.geometry.offset;
    if (apart && !resident.tensor.is_same(resident.owner)) {
      return "parameters that shared memory at capture do not lie in it as they did";
    }
    Geometry moved = now;
    moved.offset = resident.geometry.offset;
    if (!(moved == resident.geometry) || shift(resident.geometry, now) % kBlockAlignment != 0) {
      return fmt::format(
          "a parameter, or another tensor that it reads, is {} at offset {} instead of {} at "
          "offset {}",
          text_of_geometry(now), now.offset, text_of_geometry(resident.geometry),
          resident.geometry.offset);
    }
    if (resident.tensor.requires_grad() != resident.requires_grad) {
      return fmt::format("a parameter, {}, {} a gradient", text_of_geometry(now),
                         resident.requires_grad ? "no longer wants" : "wants");
    }
  }
  return {};
}

}  // namespace reprise::runtime::internal::step
