#include "runtime/modules/module_paths.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace reprise::runtime::internal::modules {

using step::Argument;
using step::Call;
using step::External;
using step::Memory;
using step::Recording;
using step::TensorRef;

namespace {

using Path = std::string;

// The path of the module that both are in: of "a.b.c" and "a.b.d" it is "a.b".
Path common_module(const Path& a, const Path& b) {
  size_t end = 0;
  for (size_t i = 0;; ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

// Of "ConvolutionBackward0" and "convolution": what they share.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name.substr(0, name.find('.'))) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain.substr(0, plain.find("backward"));
}

class Finder {
 public:
  Finder(Recording& recording, const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
      : recording_(recording), found_(recording.calls.size()) {
    for (size_t m = 0; m < modules.size(); ++m) {
      add_owner(*modules[m], modules.size() > 1 ? std::to_string(m) : Path());
    }
  }

  void run() {
    if (owners_.empty()) return;
    for (size_t c = 0; c < found_.size(); ++c) {
      found_[c] = owner_of(recording_.calls[c]);
      if (recording_.calls[c].phase != Phase::kBackward) remember(c);
    }
    fill_between(Phase::kForward);
    for (size_t c = 0; c < found_.size(); ++c) {
      const Call& call = recording_.calls[c];
      if (!found_[c] && call.phase == Phase::kBackward) found_[c] = forward_module_of(call);
    }
    fill_between(Phase::kBackward);
    for (size_t c = 0; c < found_.size(); ++c) {
      recording_.calls[c].module = found_[c].value_or(Path());
    }
  }

 private:
  void add_owner(const torch::nn::Module& module, const Path& path) {
    auto own = [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.has_storage()) {
        owners_.emplace(tensor.storage().unsafeGetStorageImpl(), path);
      }
    };
    for (const at::Tensor& parameter : module.parameters(false)) own(parameter);
    for (const at::Tensor& buffer : module.buffers(false)) own(buffer);
    for (const auto& child : module.named_children()) {
      add_owner(*child.value(), path.empty() ? child.key() : path + "." + child.key());
    }
  }

  // Those of which only the shape is read, too: they say as much about where the call belongs.
  template <class Visit>
  static void for_each_operand(const Call& call, Visit&& visit) {
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) visit(ref);
    }
  }

  // Of the first parameter or buffer among its operands.
  std::optional<Path> owner_of(const Call& call) const {
    std::optional<Path> owner;
    for_each_operand(call, [&](const TensorRef& ref) {
      if (owner || ref.memory != Memory::kExternal) return;
      const External& external = recording_.externals[static_cast<size_t>(ref.index)];
      if (!external.tensor.defined() || !external.tensor.has_storage()) return;
      const auto known = owners_.find(external.tensor.storage().unsafeGetStorageImpl());
      if (known != owners_.end()) owner = known->second;
    });
    return owner;
  }

  // The forward call c reads and makes these values.
  void remember(size_t c) {
    auto touch = [&](const TensorRef& ref) {
      if (ref.memory == Memory::kValue) touched_[ref.index].push_back(c);
    };
    for_each_operand(recording_.calls[c], touch);
    for (const auto& output : recording_.calls[c].outputs) {
      for (const TensorRef& ref : output) touch(ref);
    }
  }

  // Of the forward call that shares the most values with it; of several that of its name, then the last.
  std::optional<Path> forward_module_of(const Call& call) const {
    std::map<size_t, int> shared;
    for_each_operand(call, [&](const TensorRef& ref) {
      if (ref.memory != Memory::kValue) return;
      const auto calls = touched_.find(ref.index);
      if (calls == touched_.end()) return;
      for (const size_t c : calls->second) ++shared[c];
    });
    const std::string name = plain_name(call.node.empty() ? call.name() : call.node);
    std::optional<Path> best;
    std::pair<int, bool> best_score;
    for (const auto& [c, values] : shared) {
      const std::pair<int, bool> score{values, plain_name(recording_.calls[c].name()) == name};
      if (!found_[c] || (best && score < best_score)) continue;
      best = found_[c];
      best_score = score;
    }
    return best;
  }

  // The calls between two of which the modules are known.
  void fill_between(Phase phase) {
    std::vector<size_t> unknown;
    std::optional<Path> before;
    for (size_t c = 0; c < found_.size(); ++c) {
      if (recording_.calls[c].phase != phase) continue;
      if (!found_[c]) {
        unknown.push_back(c);
        continue;
      }
      for (const size_t u : unknown) {
        if (before) found_[u] = common_module(*before, *found_[c]);
      }
      unknown.clear();
      before = found_[c];
    }
  }

  Recording& recording_;
  std::unordered_map<const void*, Path> owners_;              // by storage
  std::unordered_map<int32_t, std::vector<size_t>> touched_;  // by value: forward calls
  std::vector<std::optional<Path>> found_;                    // by call
};

}  // namespace

void find_modules(Recording& recording,
                  const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  Finder(recording, modules).run();
}

}  // namespace reprise::runtime::internal::modules
