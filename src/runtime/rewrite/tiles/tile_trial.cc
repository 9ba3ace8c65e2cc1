#include "runtime/rewrite/tiles/tile_trial.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "reprise/runtime/allocator.h"
#include "runtime/rewrite/words.h"
#include "runtime/step/replay_scope.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr std::array<int64_t, 6> kTails = {0, 1, 13, 39, 255, 511};
constexpr std::array<int64_t, 3> kTiles = {1, 2, 3};  // in alignments
constexpr int64_t kAlignedPart = 4 * kTileAlignment;
// A number in a type of 16 bits is converted in memory of its own, one at a time.
constexpr int64_t kNumberBytes = 64;

at::Tensor random_numbers(int64_t count, at::ScalarType type, std::mt19937& random) {
  at::Tensor all = at::empty({count}, at::TensorOptions(at::kDouble));
  auto* to = all.mutable_data_ptr<double>();
  std::normal_distribution<double> normal;
  const double special[] = {0.0,
                            -0.0,
                            1,
                            -1,
                            3,
                            -3,
                            6,
                            20,
                            -20,
                            88,
                            -104,
                            1e-40,
                            1e-3,
                            -1e4,
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  for (int64_t e = 0; e < count; ++e) {
    to[e] = normal(random) * (e % 5 == 0 ? 10 : 1);
    if (e % 11 == 3) to[e] = special[random() % std::size(special)];
    if (type == at::kBool) to[e] = static_cast<double>(random() % 2);
  }
  return all.to(type);
}

at::Tensor number_like(const Geometry& look) {
  const at::Tensor number =
      look.dtype == at::kBool
          ? at::scalar_tensor(true, look.dtype)
          : at::scalar_tensor(at::isFloatingType(look.dtype) ? 0.3 : 2.0, look.dtype);
  if (look.wrapped_number) number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

at::Tensor as_recorded(const ElementCall& call, const Call& original,
                       const std::vector<at::Tensor>& operands) {
  std::vector<c10::IValue> stack;
  for (size_t a = 0; a < original.arguments.size(); ++a) {
    const Argument& argument = original.arguments[a];
    if (argument.kind == ArgumentKind::kConstant) {
      stack.push_back(argument.constant);
    } else if (a == 0 && call.result.memory == step::Memory::kValue &&
               original.op.operator_name().name.back() == '_') {
      stack.emplace_back(operands[a].clone());
    } else {
      stack.emplace_back(operands[a]);
    }
  }
  original.op.callBoxed(stack);
  return stack.at(0).toTensor();
}

// Returns the operands with numbers as the tiles get them.
std::vector<c10::IValue> prepared(const ElementCall& call,
                                  const std::vector<at::Tensor>& operands) {
  std::vector<c10::IValue> all;
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    const Argument& argument = call.arguments[a];
    c10::IValue one = argument.kind == ArgumentKind::kConstant ? argument.constant : operands[a];
    if (call.is_number(a)) one = number_for_tiles(one.toTensor(), call.type);
    all.push_back(std::move(one));
  }
  return all;
}

void in_tiles(const ElementCall& call, const std::vector<c10::IValue>& operands, int64_t tile,
              const at::Tensor& result) {
  const int64_t count = result.numel();
  std::vector<c10::IValue> stack;
  for (int64_t first = 0; first < count; first += tile) {
    const int64_t length = std::min(tile, count - first);
    const at::Tensor out = result.narrow(0, first, length);
    stack.clear();
    if (call.result_first) stack.emplace_back(out);
    for (size_t a = 0; a < operands.size(); ++a) {
      if (call.is_tensor(a)) {
        stack.emplace_back(operands[a].toTensor().narrow(0, first, length));
      } else {
        stack.push_back(operands[a]);
      }
    }
    if (!call.result_first) stack.emplace_back(out);
    call.op->callBoxed(stack);
  }
}

bool agrees(const ElementCall& call, const Call& original, int64_t count, std::mt19937& random) {
  std::vector<at::Tensor> operands;
  bool has_number = false;
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    operands.emplace_back();
    has_number = has_number || call.is_number(a);
    if (call.arguments[a].kind == ArgumentKind::kConstant) continue;
    const Geometry& look = call.arguments[a].tensors[0].geometry;
    operands[a] = call.is_tensor(a) ? random_numbers(count, look.dtype, random) : number_like(look);
  }
  const at::Tensor whole = as_recorded(call, original, operands);
  if (whole.numel() != count || whole.scalar_type() != call.result.geometry.dtype) return false;
  const at::Tensor result = at::empty({count}, whole.options());
  const std::vector<c10::IValue> ready = prepared(call, operands);
  const int64_t allowed = has_number && c10::isReducedFloatingType(call.type) ? kNumberBytes : 0;
  for (const int64_t tile : kTiles) {
    std::memset(result.mutable_data_ptr(), 0x5a, result.nbytes());
    reset_peak(c10::kCPU);
    in_tiles(call, ready, tile * kTileAlignment, result);
    const MemoryCount memory = memory_count(c10::kCPU);
    if (memory.peak - memory.live > allowed) return false;
    if (std::memcmp(whole.const_data_ptr(), result.const_data_ptr(), result.nbytes()) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

at::Tensor number_for_tiles(const at::Tensor& number, at::ScalarType type) {
  const bool wrapped = number.unsafeGetTensorImpl()->is_wrapped_number();
  at::Tensor one = number.dim() == 0 ? number : number.view(c10::IntArrayRef{});
  if (!c10::isReducedFloatingType(type)) one = one.to(type);
  if (wrapped && !one.unsafeGetTensorImpl()->is_wrapped_number()) {
    one.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return one;
}

bool ends_with_one(int64_t elements) {
  const int64_t grain = at::internal::GRAIN_SIZE;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (elements + grain - 1) / grain);
  const int64_t share = (elements + threads - 1) / threads;  // what a thread gets, but for the last
  const int64_t last = elements - (threads - 1) * share;
  return (threads > 1 && share % kTileAlignment == 1) || last % kTileAlignment == 1;
}

bool passes_trial(const ElementCall& call, const Call& original) {
  const ReplayScope scope;
  std::mt19937 random(1);
  try {
    for (const int64_t tail : kTails) {
      if (tail == 1 && !ends_with_one(call.elements)) continue;
      if (!agrees(call, original, kAlignedPart + tail, random)) return false;
    }
    return true;
  } catch (const c10::Error&) {
    return false;  // it refuses operands like these
  }
}

}  // namespace reprise::runtime::internal::rewrite
