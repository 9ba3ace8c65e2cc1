// A gradient of which, from some point on, only a part is read: that of a concatenation, cut into the gradients of
// what was concatenated. The one for the layer just before is used at once, the one for a skip connection
// stays to the end of the backward pass, and with it the memory of both. Copied, the part stays alone.
//
// The copy has the order of rows of the original, closed up. Other rows have other ends, and there ATen
// computes one element at a time where it takes several at once elsewhere: of functions such as erf or exp the
// two differ in the last bit. So only operations may read the copy that round once.
#include <ATen/ops/clone.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

using step::Argument;
using step::ArgumentKind;
using step::Call;
using step::Geometry;
using step::Kernel;
using step::Memory;
using step::Recording;
using step::TensorRef;
using step::Work;

namespace {

constexpr size_t kMostReaders = 3;

// Operations without functions, sums or products of more than two numbers.
constexpr std::array kRoundOnce = {
    "aten::add",
    "aten::sub",
    "aten::mul",
    "aten::div",
    "aten::neg",
    "aten::threshold_backward",
    "aten::where",
    "aten::masked_fill",
    "aten::hardtanh_backward",
    "aten::leaky_relu_backward",
};

bool rounds_once(const Call& call) {
  const std::string& name = call.op.operator_name().name;
  if (std::find(kRoundOnce.begin(), kRoundOnce.end(), name) == kRoundOnce.end()) return false;
  const Argument* alpha = argument_of(call, "alpha");
  if (argument_of(call, "rounding_mode") != nullptr) return false;
  return alpha == nullptr || (alpha->constant.isInt() && alpha->constant.toInt() == 1) ||
         (alpha->constant.isDouble() && alpha->constant.toDouble() == 1);
}

// The readers of a value from one of them on, which look at the same part of it.
struct Part {
  std::vector<int32_t> readers;
  int32_t behind = -1;  // the call from which on nobody else reads the value
  TensorRef look;
};

// Rows behind rows, with room between them perhaps.
bool is_in_order(const Geometry& geometry) {
  int64_t extent = 1;
  for (size_t d = geometry.sizes.size(); d-- > 0;) {
    if (geometry.sizes[d] == 1) continue;
    if (geometry.strides[d] < extent) return false;
    extent = geometry.strides[d] * geometry.sizes[d];
  }
  return !geometry.conjugate && !geometry.negative;
}

int64_t bytes_of(const Geometry& geometry) {
  int64_t elements = 1;
  for (const int64_t size : geometry.sizes) elements *= size;
  return elements * static_cast<int64_t>(c10::elementSize(geometry.dtype));
}

Geometry closed_up(Geometry geometry) {
  int64_t stride = 1;
  for (size_t d = geometry.sizes.size(); d-- > 0;) {
    geometry.strides[d] = stride;
    stride *= std::max<int64_t>(1, geometry.sizes[d]);
  }
  geometry.offset = 0;
  return geometry;
}

// How the call looks at the value; none: in several ways, or it is no such operation of the backward.
std::optional<TensorRef> look_of(const Call& call, const Work& work, int32_t value) {
  const bool suits = call.phase == Phase::kBackward && !call.random && call.effects.empty() &&
                     work.overwrites.empty() && rounds_once(call);
  if (!suits) return std::nullopt;
  std::optional<TensorRef> look;
  for (const Argument& argument : call.arguments) {
    for (const TensorRef& ref : argument.tensors) {
      // A product of complex numbers is a sum of products.
      if (ref.memory != Memory::kNone && c10::isComplexType(ref.geometry.dtype))
        return std::nullopt;
      if (ref.memory != Memory::kValue || ref.index != value) continue;
      if (look && *look != ref) return std::nullopt;
      look = ref;
    }
  }
  return look;
}

Part part_of(const Rewriter& rewriter, int32_t value) {
  const Recording& recording = rewriter.recording();
  const std::vector<int32_t>& readers = rewriter.readers(value);
  Part part;
  part.behind = recording.values[static_cast<size_t>(value)].maker;
  for (size_t k = readers.size(); k-- > 0;) {
    const Call& call = recording.calls[static_cast<size_t>(readers[k])];
    const auto look = look_of(call, rewriter.work(readers[k]), value);
    if (!look || (!part.readers.empty() && *look != part.look)) {
      part.behind = readers[k];
      break;
    }
    part.look = *look;
    part.readers.insert(part.readers.begin(), readers[k]);
  }
  return part;
}

// The same on other memory.
Work with(Work work, const TensorRef& part, const TensorRef& copy) {
  for (Argument& argument : work.arguments) {
    for (TensorRef& ref : argument.tensors) {
      if (ref == part) ref = copy;
    }
  }
  return work;
}

Kernel copying() {
  return [](std::vector<c10::IValue>& stack) {
    at::Tensor copy = at::clone(stack[0].toTensor(), at::MemoryFormat::Contiguous);
    stack.clear();
    stack.emplace_back(std::move(copy));
  };
}

CallRealization::Piece reader_of_copy(Rewriter& rewriter, int32_t c, const TensorRef& part,
                                  const TensorRef& copy) {
  CallRealization::Piece piece{"of-part", c, {}, {}};
  const auto add = [&](int32_t work, VariantName name) {
    piece.works.push_back(rewriter.add_work(with(rewriter.work(work), part, copy)));
    piece.names.push_back(std::move(name));
  };
  add(c, "default");
  for (const CallVariant& variant : rewriter.found().variants) {
    if (variant.call != c || variant.exactness != Exactness::kBitwise) continue;
    const auto& overwrites = rewriter.work(variant.work).overwrites;
    const bool over_part = std::any_of(overwrites.begin(), overwrites.end(),
                                       [&](const auto& pair) { return pair.second == part.index; });
    if (!over_part) add(variant.work, variant.name);
  }
  return piece;
}

}  // namespace

void copied_part(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  const size_t count = recording.values.size();  // more are added
  for (size_t v = 0; v < count; ++v) {
    const auto value = static_cast<int32_t>(v);
    const int32_t maker = recording.values[v].maker;
    if (maker < 0 || rewriter.is_result(value)) continue;
    if (recording.calls[static_cast<size_t>(maker)].phase != Phase::kBackward) continue;
    const Part part = part_of(rewriter, value);
    if (part.readers.empty() || part.readers.size() > kMostReaders) continue;
    if (part.readers.front() - part.behind < 2 || !is_in_order(part.look.geometry)) continue;
    const int64_t bytes = bytes_of(part.look.geometry);
    if (!rewriter.is_worthwhile(recording.values[v].bytes - bytes)) continue;

    const TensorRef copy{Memory::kValue, rewriter.add_value(bytes), closed_up(part.look.geometry)};
    Work copies{.name = "copy of a part",
                .kernel = copying(),
                .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {part.look}}},
                .made = {{0, 0, copy.index}}};
    CallRealization realization{.name = "copied-part", .calls = part.readers};
    realization.pieces.push_back(
        {"part", part.behind, {rewriter.add_work(std::move(copies))}, {"default"}});
    for (const int32_t c : part.readers) {
      realization.pieces.push_back(reader_of_copy(rewriter, c, part.look, copy));
    }
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime::internal::rewrite
