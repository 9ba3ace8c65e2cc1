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

// Returns the path of the innermost module that both lie in: "a.b" for "a.b.c" and "a.b.d".
Path common_module(const Path& a, const Path& b) {
  size_t end = 0;
  for (size_t i = 0;; ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

// Returns a name that a forward operator and its node of autograd share: "convolution" for both
// "convolution" and "ConvolutionBackward0".
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name.substr(0, name.find('.'))) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain.substr(0, plain.find("backward"));
}

class Finder {
 public:
  Finder(const Recording& recording, const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
      : recording_(recording), found_(recording.calls.size()) {
    for (size_t m = 0; m < modules.size(); ++m) {
      add_owner(*modules[m], modules.size() > 1 ? std::to_string(m) : Path());
    }
  }

  // Returns the path of each call's module, where it is known.
  std::vector<std::optional<Path>> run() {
    if (owners_.empty()) return found_;
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
    return std::move(found_);
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

  // Visits all operands. An operand whose shape alone is read says as much about the call's module
  // as any other.
  template <class Visit>
  static void for_each_operand(const Call& call, Visit&& visit) {
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) visit(ref);
    }
  }

  // Returns the module that owns the first parameter or buffer among the call's operands.
  std::optional<Path> owner_of(const Call& call) const {
    std::optional<Path> owner;
    for_each_operand(call, [&](const TensorRef& ref) {
      if (owner || ref.memory != Memory::kExternal) return;
      const External& external = recording_.externals[ref.index];
      if (!external.tensor.defined() || !external.tensor.has_storage()) return;
      const auto known = owners_.find(external.tensor.storage().unsafeGetStorageImpl());
      if (known != owners_.end()) owner = known->second;
    });
    return owner;
  }

  // Notes the values that the forward call c reads and makes.
  void remember(size_t c) {
    auto touch = [&](const TensorRef& ref) {
      if (ref.memory == Memory::kValue) touched_[ref.index].push_back(c);
    };
    for_each_operand(recording_.calls[c], touch);
    for (const auto& output : recording_.calls[c].outputs) {
      for (const TensorRef& ref : output) touch(ref);
    }
  }

  // Returns the module of the forward call that shares the most values with this backward call. If
  // there are several such calls, the one with the same name comes first, then the last one.
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

  // Gives a module to the calls that lie between two calls whose modules are known.
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

  const Recording& recording_;
  // The module of each storage that is a parameter or a buffer.
  std::unordered_map<const void*, Path> owners_;
  // The forward calls that read or make each value.
  std::unordered_map<int32_t, std::vector<size_t>> touched_;
  // The module of each call, as far as it is known by now.
  std::vector<std::optional<Path>> found_;
};

}  // namespace

Recording with_modules(Recording recording,
                       const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  const std::vector<std::optional<Path>> found = Finder(recording, modules).run();
  for (size_t c = 0; c < found.size(); ++c) {
    recording.calls[c].module = found[c].value_or(Path());
  }
  return recording;
}

}  // namespace reprise::runtime::internal::modules
