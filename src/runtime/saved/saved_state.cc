#include "reprise/runtime/saved_state.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/optimizer.h"
#include "runtime/saved/saved_optimizer.h"
#include "runtime/saved/state_text.h"
#include "runtime/saved/tensor_files.h"

namespace reprise::runtime {
namespace internal::saved {
namespace {

constexpr const char* kModelPrefix = "model.";
constexpr const char* kTensorPrefix = "tensor.";
constexpr size_t kNamesShown = 5;

// Returns parameters and buffers, each tensor once, under the names that they have in files.
NamedTensors tensors_of(const StateParts& parts) {
  NamedTensors all;
  std::set<const void*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    all.emplace_back(name, tensor);
  };
  if (parts.model) {
    for (const auto& item : parts.model->named_parameters()) {
      add(kModelPrefix + item.key(), item.value());
    }
    for (const auto& item : parts.model->named_buffers()) {
      add(kModelPrefix + item.key(), item.value());
    }
  }
  for (const auto& [name, tensor] : parts.tensors) add(kTensorPrefix + name, tensor);
  return all;
}

ParameterNames parameter_names(const StateParts& parts) {
  ParameterNames names;
  if (!parts.model) return names;
  for (const auto& item : parts.model->named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

// Returns the devices whose generators belong to the state: the CPU, and those of the model.
std::vector<c10::Device> devices_of(const StateParts& parts) {
  std::vector<c10::Device> all = {c10::Device(c10::kCPU)};
  for (const auto& [name, tensor] : tensors_of(parts)) {
    const c10::Device device = tensor.device();
    if (!device.is_cpu() && std::find(all.begin(), all.end(), device) == all.end()) {
      all.push_back(device);
    }
  }
  return all;
}

at::Tensor generator_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void write_random(io::Writer& writer, const StateParts& parts, NamedTensors& tensors) {
  writer.key("random").open_object();
  for (const c10::Device device : devices_of(parts)) {
    tensors.emplace_back("random." + device.str(), generator_state(device));
    writer.key(device.str());
    write_tensor_name(writer, tensors.back().first);
  }
  writer.close();
}

void plan_random(const StateFile& file, const io::Element& saved, const StateParts& parts,
                 Assignments& todo) {
  io::Object object(saved);
  for (const c10::Device device : devices_of(parts)) {
    const auto element = object.optional(device.str());
    if (!element) continue;  // The state is of a run on another device.
    const at::Tensor state = read_tensor(file.tensors(), file.tensor(*element));
    if (state.sizes() != generator_state(device).sizes()) {
      element->fail("is the random state of another version of PyTorch: its size differs");
    }
    todo.push_back([device, state] {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    });
  }
}

std::string listed(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text =
      fmt::format("\n  {}: {}", what, fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Compares names, shapes and types of the tensors whose names begin with `prefix`.
void plan_tensors(const StateFile& file, const NamedTensors& ours, const std::string& prefix,
                  Assignments& todo) {
  std::vector<std::string> missing, unknown, other;
  std::set<std::string> names;
  for (const auto& [name, tensor] : ours) {
    if (!name.starts_with(prefix)) continue;
    names.insert(name);
    const TensorEntry* entry = file.tensors().table().find(name);
    const std::string short_name = name.substr(prefix.size());
    if (entry == nullptr) {
      missing.push_back(short_name);
    } else if (const std::string text = difference(*entry, tensor); !text.empty()) {
      other.push_back(short_name + " " + text);
    } else {
      todo.push_back([&file, entry, to = tensor] { read_into(file.tensors(), *entry, to); });
    }
  }
  for (const TensorEntry& entry : file.tensors().table().tensors) {
    if (entry.name.starts_with(prefix) && !names.contains(entry.name)) {
      unknown.push_back(entry.name.substr(prefix.size()));
    }
  }
  if (missing.empty() && unknown.empty() && other.empty()) return;
  file.fail("the state is that of another model:" + listed("not in the file", missing) +
            listed("only in the file", unknown) + listed("different", other));
}

}  // namespace
}  // namespace internal::saved

namespace saved = internal::saved;

std::string plan_sha256(const Plan& plan) { return canonical_sha256(to_json(plan)); }

void save_state(const std::filesystem::path& path, const StateParts& parts,
                const Progress& progress) {
  if (parts.optimizer != nullptr && is_sharded(*parts.optimizer)) {
    throw InputError(
        "the state of the optimizer is sharded over several processes (shard_optimizer), and a "
        "file "
        "has the state of one: save the model without it, or save with reprise.save_state() of "
        "Python");
  }
  saved::NamedTensors tensors = saved::tensors_of(parts);
  io::Writer writer;
  writer.open_object();
  saved::write_progress(writer, progress);
  writer.key("optimizers").open_object();
  if (parts.optimizer != nullptr) {
    writer.key("");
    saved::write_optimizer(writer, *parts.optimizer, saved::parameter_names(parts), tensors);
  }
  writer.close();
  saved::write_random(writer, parts, tensors);
  writer.key("others").open_object().close().close();
  std::string text = writer.take();
  tensors.emplace_back(saved::kTextTensor,
                       at::from_blob(text.data(), {static_cast<int64_t>(text.size())},
                                     at::TensorOptions(at::kByte)));
  saved::write_tensors(path, saved::state_metadata(), tensors);
}

Progress load_state(const std::filesystem::path& path, const StateParts& parts) {
  const saved::StateFile file(path);
  io::Object text = file.text();
  const Progress progress = saved::read_progress(text);
  saved::Assignments todo;
  const saved::NamedTensors tensors = saved::tensors_of(parts);
  if (parts.model) saved::plan_tensors(file, tensors, saved::kModelPrefix, todo);
  if (!parts.tensors.empty()) saved::plan_tensors(file, tensors, saved::kTensorPrefix, todo);
  io::Object optimizers(text.required("optimizers"));
  if (parts.optimizer != nullptr) {
    const auto found = optimizers.optional("");
    if (!found) {
      file.fail(optimizers.members().empty()
                    ? "the state has no optimizer"
                    : "the state has several optimizers; reprise.load_state() of Python reads it");
    }
    saved::plan_optimizer(file, *found, *parts.optimizer, saved::parameter_names(parts), todo);
  }
  saved::plan_random(file, text.required("random"), parts, todo);
  text.required("others");
  text.finish();
  for (const auto& assign : todo) assign();
  return progress;
}

Progress read_progress(const std::filesystem::path& path) {
  const saved::StateFile file(path);
  io::Object text = file.text();
  return saved::read_progress(text);
}

}  // namespace reprise::runtime
