#include "runtime/rewrite/regions/region_trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "runtime/rewrite/words.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr std::array kSpecial = {0.0,
                                 -0.0,
                                 1.0,
                                 -1.0,
                                 3.0,
                                 -3.0,
                                 6.0,
                                 20.0,
                                 -20.0,
                                 88.0,
                                 -104.0,
                                 1e-40,
                                 -1e-40,
                                 1e-3,
                                 -1e4,
                                 3e38,
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
// The standard deviations of random operands.
constexpr std::array kScales = {1.0, 0.02, 30.0};
// So many patterns has a number of 16 bits; an operand has at most so many rounds for them.
constexpr int64_t kPatterns = 65536;
constexpr int64_t kMostRounds = 16;
// Numbers of the host that are tried beside the recorded ones.
constexpr std::array kNumbers = {0.3, -1.7, 0.0};

struct Round {
  double scale = 1;
  bool special = false;
  int64_t patterns = -1;  // the first pattern of 16 bits; -1: none
  std::optional<double> number = {};
};

// A Bench holds the memory of one run of the calls.
class Bench {
 public:
  Bench(const RegionText& region, const Recording& recording)
      : region_(region), recording_(recording), generator_(at::detail::createCPUGenerator(1)) {}

  // Makes operands for a round.
  void fill(const Round& round) {
    storages_.clear();
    numbers_.clear();
    std::map<Key, std::pair<int64_t, at::ScalarType>> extents;  // bytes
    for (const RegionText::Input& input : region_.inputs) {
      if (input.number) {
        numbers_[input.ref.index] = number_of(input.ref, round);
        continue;
      }
      auto& [bytes, type] = extents[key_of(input.ref)];
      bytes = std::max(bytes, extent_bytes(input.ref.geometry));
      type = input.ref.geometry.dtype;
    }
    int64_t position = 0;
    for (const auto& [key, extent] : extents) {
      const auto& [bytes, type] = extent;
      const auto count = bytes / static_cast<int64_t>(c10::elementSize(type));
      storages_[key] = operand(count, type, round, position++).storage();
    }
  }

  // Returns the operands of the kernel, in memory of their own.
  std::vector<at::Tensor> inputs() const {
    std::map<Key, c10::Storage> copies;
    for (const auto& [key, storage] : storages_) copies[key] = copy_of(storage);
    std::vector<at::Tensor> all;
    for (const RegionText::Input& input : region_.inputs) {
      all.push_back(input.number ? numbers_.at(input.ref.index)
                                 : tensor_on(copies.at(key_of(input.ref)), input.ref.geometry));
    }
    return all;
  }

  // Runs the calls one by one and returns the outputs, as they are when they are made.
  std::vector<c10::Storage> one_by_one() {
    std::map<int32_t, c10::Storage> outputs;
    for (const ElementCall& one : region_.calls) {
      const Call& call = recording_.calls[one.call];
      std::vector<c10::IValue> stack;
      for (size_t a = 0; a < call.arguments.size(); ++a) stack.push_back(argument(call, a));
      call.op.callBoxed(stack);
      const at::Tensor result = stack.at(0).toTensor();
      storages_[{Memory::kValue, one.result.index}] = result.storage();
      for (const TensorRef& output : region_.outputs) {
        if (output.index == one.result.index) outputs[output.index] = copy_of(result.storage());
      }
    }
    std::vector<c10::Storage> all;
    for (const TensorRef& output : region_.outputs) all.push_back(outputs.at(output.index));
    return all;
  }

 private:
  using Key = std::pair<Memory, int32_t>;
  static Key key_of(const TensorRef& ref) { return {ref.memory, ref.index}; }

  static c10::Storage copy_of(const c10::Storage& storage) {
    const at::Tensor copy =
        at::empty({static_cast<int64_t>(storage.nbytes())}, at::TensorOptions(at::kByte));
    std::memcpy(copy.mutable_data_ptr(), storage.data(), storage.nbytes());
    return copy.storage();
  }

  at::Tensor number_of(const TensorRef& ref, const Round& round) const {
    const at::Tensor& recorded = recording_.externals[ref.index].tensor;
    if (!round.number || !at::isFloatingType(ref.geometry.dtype)) {
      return tensor_on(recorded.storage(), ref.geometry);
    }
    at::Tensor number = at::scalar_tensor(*round.number, at::TensorOptions(ref.geometry.dtype));
    if (ref.geometry.wrapped_number) number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }

  at::Tensor operand(int64_t count, at::ScalarType type, const Round& round, int64_t position) {
    if (type == at::kBool || at::isIntegralType(type, false)) {
      return at::empty({count}, at::TensorOptions(type)).random_(0, 2, generator_);
    }
    const at::Tensor all = at::empty({count}, at::TensorOptions(type));
    all.normal_(0, round.scale, generator_);
    if (round.special) {
      // Each operand has its special numbers at other places, and some at the same ones.
      const at::Tensor some = all.slice(0, position % 5, count, 7 + position % 3);
      const at::Tensor numbers = at::empty(some.sizes(), at::TensorOptions(at::kDouble));
      auto* to = numbers.mutable_data_ptr<double>();
      for (int64_t e = 0; e < numbers.numel(); ++e) {
        to[e] = kSpecial[static_cast<size_t>((e + position * 5) % std::ssize(kSpecial))];
      }
      some.copy_(numbers);
    }
    if (round.patterns >= 0 && c10::isReducedFloatingType(type)) {
      auto* bits = static_cast<uint16_t*>(all.mutable_data_ptr());
      for (int64_t e = 0; e < count; ++e) {
        bits[e] = static_cast<uint16_t>((round.patterns + e) * (2 * position + 1) + position * 977);
      }
    }
    return all;
  }

  c10::IValue argument(const Call& call, size_t a) const {
    const Argument& recorded = call.arguments[a];
    if (recorded.kind == ArgumentKind::kConstant) return recorded.constant;
    c10::List<at::Tensor> list;
    for (const TensorRef& ref : recorded.tensors) {
      const auto number = numbers_.find(ref.index);
      const bool is_number = ref.memory == Memory::kExternal && number != numbers_.end();
      list.push_back(is_number ? number->second
                               : tensor_on(storages_.at(key_of(ref)), ref.geometry));
    }
    if (recorded.kind == ArgumentKind::kTensorList) return list;
    return list.get(0);
  }

  const RegionText& region_;
  const Recording& recording_;
  at::Generator generator_;
  std::map<Key, c10::Storage> storages_;
  std::map<int32_t, at::Tensor> numbers_;  // by external
};

std::vector<Round> rounds_of(const RegionText& region) {
  std::vector<Round> rounds;
  for (const double scale : kScales) rounds.push_back({.scale = scale});
  rounds.push_back({.special = true});
  int64_t least = kPatterns;
  bool has_patterns = false, has_numbers = false;
  for (const RegionText::Input& input : region.inputs) {
    has_numbers = has_numbers || input.number.has_value();
    if (input.number || !c10::isReducedFloatingType(input.ref.geometry.dtype)) continue;
    has_patterns = true;
    least = std::min(least, extent_bytes(input.ref.geometry) / 2);
  }
  if (has_patterns) {
    const int64_t wanted =
        (kPatterns + std::max<int64_t>(1, least) - 1) / std::max<int64_t>(1, least);
    for (int64_t k = 0; k < std::min(wanted, kMostRounds); ++k) {
      rounds.push_back({.patterns = k * least});
    }
  }
  if (has_numbers) {
    for (const double number : kNumbers) rounds.push_back({.number = number});
  }
  return rounds;
}

// Returns the first element whose bytes differ and that is not NaN in both; -1 if there is none.
// The sign of a NaN, and which of two NaN a sum yields, depend on how a compiler orders operands.
int64_t first_difference(const at::Tensor& wanted, const at::Tensor& got) {
  const auto bytes = static_cast<int64_t>(wanted.element_size());
  const auto* a = static_cast<const char*>(wanted.const_data_ptr());
  const auto* b = static_cast<const char*>(got.const_data_ptr());
  if (std::memcmp(a, b, wanted.nbytes()) == 0) return -1;
  for (int64_t e = 0; e < wanted.numel(); ++e) {
    if (std::memcmp(a + e * bytes, b + e * bytes, static_cast<size_t>(bytes)) == 0) continue;
    const bool are_nan = at::isFloatingType(wanted.scalar_type()) &&
                         std::isnan(wanted[e].item<double>()) && std::isnan(got[e].item<double>());
    if (!are_nan) return e;
  }
  return -1;
}

std::string difference(const RegionText& region, const std::vector<c10::Storage>& wanted,
                       const std::vector<at::Tensor>& got) {
  for (size_t k = 0; k < wanted.size(); ++k) {
    const at::ScalarType type = region.outputs[k].geometry.dtype;
    const auto count =
        static_cast<int64_t>(wanted[k].nbytes() / static_cast<size_t>(c10::elementSize(type)));
    const Geometry flat{.sizes = {count}, .strides = {1}, .dtype = type};
    const at::Tensor a = tensor_on(wanted[k], flat), b = tensor_on(got[k].storage(), flat);
    const int64_t e = first_difference(a, b);
    if (e < 0) continue;
    return fmt::format("result {} of {} has other bits: {:.9g} in place of {:.9g}", k + 1,
                       region.outputs.size(), b[e].item<double>(), a[e].item<double>());
  }
  return {};
}

}  // namespace

std::string trial_of(const RegionText& region, const RegionKernel& kernel,
                     const std::vector<int64_t>& over, const Recording& recording) {
  const ReplayScope scope;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Bench bench(region, recording);
  const std::vector<int64_t> nowhere(region.outputs.size(), -1);
  try {
    for (const Round& round : rounds_of(region)) {
      bench.fill(round);
      const std::vector<at::Tensor> fresh = run_region(region, kernel, nowhere, bench.inputs());
      std::vector<at::Tensor> written;
      if (over != nowhere) written = run_region(region, kernel, over, bench.inputs());
      const std::vector<c10::Storage> wanted = bench.one_by_one();
      std::string reason = difference(region, wanted, fresh);
      if (reason.empty() && over != nowhere) reason = difference(region, wanted, written);
      if (!reason.empty()) return reason;
    }
  } catch (const c10::Error& error) {
    return fmt::format("the trial fails: {}", error.what_without_backtrace());
  }
  return {};
}

}  // namespace reprise::runtime::internal::rewrite
