#include "runtime/step/compare_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "runtime/step/host_reads.h"
#include "runtime/step/places.h"
#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::step {

namespace {

std::string text_of(const c10::IValue& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

bool plain_number(const c10::IValue& value) {
  return value.isScalar() || value.isNone() || value.isIntList() || value.isDoubleList() ||
         value.isBoolList() || value.isString();
}

std::string at_place(const Call& call) {
  return call.place.empty() ? "" : fmt::format(" ({})", call.place);
}

// A RunPair is two recordings that are compared, with what was found of them so far.
struct RunPair {
  Recording& a;
  const Recording& b;
  std::map<int32_t, int32_t> twins = {};  // values of `a`, and the same values of `b`
};

const External* host_data(const Recording& recording, const TensorRef& ref) {
  if (ref.memory != Memory::kExternal) return nullptr;
  const External& external = recording.externals[ref.index];
  return external.input >= 0 || !external.tensor.defined() ? nullptr : &external;
}

bool is_literal(const Recording& recording, const TensorRef& ref) {
  const External* external = host_data(recording, ref);
  return external != nullptr && external->is_constant;
}

// The host writes literals into tensors of its own, such as the numbers of Python in arithmetic
// with tensors. It may also make memory without PyTorch's allocator, as torch.from_numpy() of a new
// array does.
bool same_host_data(RunPair& runs, const TensorRef& x, const TensorRef& y) {
  const External* before = host_data(runs.a, x);
  const External* after = host_data(runs.b, y);
  if (before != nullptr && after != nullptr && is_followed()) return true;
  if (before == nullptr || after == nullptr) {
    // A literal in one run that the other run computes is another step.
    return !(is_literal(runs.a, x) && y.memory == Memory::kValue) &&
           !(is_literal(runs.b, y) && x.memory == Memory::kValue);
  }
  const c10::Storage &then = before->tensor.storage(), &now = after->tensor.storage();
  if (then.data() == now.data()) return true;  // Both runs read the same memory.
  if (copy_to_host(then) != copy_to_host(now)) return false;
  if (before->is_constant) return true;
  if (then.nbytes() > kLargestLiteral) return false;
  runs.a.externals[x.index] = literal_of(before->tensor);
  return true;
}

// Says whether both runs read the same value, as far as both have made it by the same operation.
bool same_value(const RunPair& runs, const TensorRef& x, const TensorRef& y) {
  if (x.memory != Memory::kValue || y.memory != Memory::kValue) return true;
  const auto twin = runs.twins.find(x.index);
  return twin == runs.twins.end() || twin->second == y.index;
}

std::string difference_of_guards(const Call& x, const Call& y) {
  if (!expects_number(x)) return {};
  const HostRead before = host_read(x), now = host_read(y);
  if (before.expected == now.expected) return {};
  return fmt::format(
      "the step cannot be captured: {}, although the inputs and the random state are the same. It "
      "depends on something that the step itself changes, or that changes from run to run",
      difference_of(before, now.expected));
}

std::string changes(const Call& call, size_t c, size_t argument, const std::string& change) {
  return fmt::format(
      "the argument {} of operation {} ({}) {}: a captured step would keep the first one{}",
      call.op.schema().arguments()[argument].name(), c, call.name(), change, at_place(call));
}

std::string difference_of_arguments(RunPair& runs, const Call& x, const Call& y, size_t c) {
  for (size_t i = 0; i < std::min(x.arguments.size(), y.arguments.size()); ++i) {
    const std::vector<TensorRef>&p = x.arguments[i].tensors, &q = y.arguments[i].tensors;
    for (size_t k = 0; k < std::min(p.size(), q.size()); ++k) {
      if (!same_host_data(runs, p[k], q[k])) {
        return changes(y, c, i,
                       "is a number that changes from run to run. Make it an input of the step");
      }
      if (!same_value(runs, p[k], q[k])) {
        return changes(y, c, i, "is another tensor from run to run");
      }
    }
    const c10::IValue &before = x.arguments[i].constant, &now = y.arguments[i].constant;
    if (!plain_number(before) || text_of(before) == text_of(now)) continue;
    if (is_followed() && before.isDouble() && now.isDouble()) continue;
    return changes(
        y, c, i,
        fmt::format("changes from run to run, from {} to {}", text_of(before), text_of(now)));
  }
  return {};
}

void note_twins(RunPair& runs, const Call& x, const Call& y) {
  for (size_t r = 0; r < std::min(x.outputs.size(), y.outputs.size()); ++r) {
    const auto &p = x.outputs[r], &q = y.outputs[r];
    for (size_t k = 0; k < std::min(p.size(), q.size()); ++k) {
      if (p[k].memory == Memory::kValue && q[k].memory == Memory::kValue) {
        runs.twins.emplace(p[k].index, q[k].index);
      }
    }
  }
}

bool is_of_accumulation(const Call& call) {
  return call.phase == Phase::kBackward && call.node.find("AccumulateGrad") != std::string::npos;
}

// Says whether the call sets memory from before the step to zero, as zero_grad() does.
bool zeroes_external(const Call& call) {
  const std::string& name = call.op.operator_name().name;
  return (name == "aten::zero_" || name == "aten::_foreach_zero_") && !call.effects.empty();
}

std::vector<size_t> compared_calls(const Recording& recording, bool without_gradients) {
  std::vector<size_t> all;
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    if (without_gradients && (is_of_accumulation(call) || zeroes_external(call))) continue;
    all.push_back(c);
  }
  return all;
}

}  // namespace

std::string difference_of_runs(Recording& a, const Recording& b, bool with_gradients) {
  RunPair runs{a, b};
  const std::vector<size_t> of_a = compared_calls(a, with_gradients);
  const std::vector<size_t> of_b = compared_calls(b, with_gradients);
  const size_t common = std::min(of_a.size(), of_b.size());
  for (size_t k = 0; k < common; ++k) {
    const size_t c = of_a[k];
    const Call &x = a.calls[c], &y = b.calls[of_b[k]];
    if (x.op.operator_name() != y.op.operator_name()) {
      return fmt::format(
          "the step does not do the same work twice: operation {} was {}{} and then "
          "{}{}; a captured step must not depend on what changes from step to step",
          c, x.name(), at_place(x), y.name(), at_place(y));
    }
    std::string text = is_guard(x) ? difference_of_guards(x, y) : std::string();
    if (text.empty()) text = difference_of_arguments(runs, x, y, c);
    if (!text.empty()) return text;
    note_twins(runs, x, y);
  }
  if (of_a.size() == of_b.size()) return {};
  const Call& more = of_a.size() > common ? a.calls[of_a[common]] : b.calls[of_b[common]];
  return fmt::format("the step does not do the same work twice: {} operations, then {}{}",
                     of_a.size(), of_b.size(), at_place(more));
}

}  // namespace reprise::runtime::internal::step
