// Some gradients are read only in part from some point on. An example is the gradient of a
// concatenation, which is cut into the gradients of the concatenated tensors. The part for the
// layer just before is used at once. The part for a skip connection stays until the end of the
// backward pass, and it holds the memory of both parts. After a copy, only the part stays.
//
// The copy has the rows of the original, in the same order and without gaps. Its rows end at other
// places. At the ends ATen computes one element at a time, elsewhere several at once. For functions
// such as erf or exp the two differ in the last bit. So only ops that round once may read the copy.
#include <ATen/ops/clone.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr size_t kMostReaders = 3;

// Ops without functions, and without sums or products of more than two numbers.
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

// A Part has the last readers of a value, which all look at the same part of it.
struct Part {
  std::vector<int32_t> readers;
  int32_t behind = -1;  // after this call only these readers read the value
  TensorRef look;
};

// Returns whether the rows lie in order. There may be gaps between them.
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

// Returns how the call looks at the value, or nothing if it looks at the value in several ways, or
// if the call is not a suitable op of the backward.
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
  part.behind = recording.values[value].maker;
  for (size_t k = readers.size(); k-- > 0;) {
    const Call& call = recording.calls[readers[k]];
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

// Returns the work with `copy` in place of `part`.
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
  const size_t count = recording.values.size();  // the loop adds more values
  for (size_t v = 0; v < count; ++v) {
    const auto value = static_cast<int32_t>(v);
    const int32_t maker = recording.values[v].maker;
    if (maker < 0 || rewriter.is_result(value)) continue;
    if (recording.calls[maker].phase != Phase::kBackward) continue;
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
