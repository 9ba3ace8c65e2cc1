// Max pooling keeps the place of each maximum for its backward. A place takes eight bytes, in a
// plane of a few thousand elements. Two or four bytes hold the same number. The backward widens the
// places again for some samples at a time, because planes do not depend on each other. Where a
// kernel of our own does the pooling (float32 in rows), it writes small places from the start.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/rewrite/activation/plane_pooling.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/pattern.h"

namespace reprise::runtime::internal::rewrite {

namespace {

constexpr int64_t kBlocks = 16;

// A Pooling has the name of a backward, whose last argument is `indices`, and the number of
// dimensions of a plane.
struct Pooling {
  const char* backward;
  size_t dimensions;
};

constexpr std::array kPoolings = {
    Pooling{"aten::max_pool2d_with_indices_backward", 2},
    Pooling{"aten::max_pool3d_with_indices_backward", 3},
    Pooling{"aten::adaptive_max_pool2d_backward", 2},
    Pooling{"aten::adaptive_max_pool3d_backward", 3},
};

enum Operand : size_t { kGradOutput, kInput };

const Pooling* pooling_of(const Call& call) {
  const auto found = std::find_if(kPoolings.begin(), kPoolings.end(), [&](const Pooling& pooling) {
    return call.op.operator_name().name == pooling.backward &&
           call.op.operator_name().overload_name.empty();
  });
  return found == kPoolings.end() ? nullptr : found;
}

Kernel narrowing(at::ScalarType type) {
  return [type](std::vector<c10::IValue>& stack) {
    at::Tensor narrow = stack[0].toTensor().to(type);
    stack.clear();
    stack.emplace_back(std::move(narrow));
  };
}

// `backward` is the overload that takes the result's memory as its last argument.
Kernel widening(const c10::OperatorHandle& backward) {
  return [backward](std::vector<c10::IValue>& stack) {
    const at::Tensor gradient = stack[kGradOutput].toTensor(), input = stack[kInput].toTensor();
    const at::Tensor indices = stack.back().toTensor();
    at::Tensor result = at::empty_strided(input.sizes(), input.strides(), gradient.options());
    const int64_t samples = input.size(0), block = (samples + kBlocks - 1) / kBlocks;
    for (int64_t first = 0; first < samples; first += block) {
      const int64_t count = std::min(block, samples - first);
      std::vector<c10::IValue> part = stack;
      part[kGradOutput] = gradient.narrow(0, first, count);
      part[kInput] = input.narrow(0, first, count);
      part.back() = indices.narrow(0, first, count).to(at::kLong);
      part.emplace_back(result.narrow(0, first, count));
      backward.callBoxed(part);
    }
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

template <class Visit>
void with_place(at::ScalarType type, Visit&& visit) {
  if (type == at::kShort) {
    visit(int16_t{});
  } else {
    visit(int32_t{});
  }
}

template <class Visit>
void for_each_plane(const at::Tensor& tensor, Visit&& visit) {
  at::parallel_for(0, tensor.size(0) * tensor.size(1), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) visit(p);
  });
}

// Results: [maxima, places].
Kernel by_planes(const PlanePooling& pooling, at::ScalarType type) {
  return [pooling, type](std::vector<c10::IValue>& stack) {
    const at::Tensor input = stack[0].toTensor();
    const std::array<int64_t, 4> sizes{input.size(0), input.size(1), pooling.rows.output,
                                       pooling.columns.output};
    at::Tensor maxima = at::empty(sizes, input.options());
    at::Tensor places = at::empty(sizes, input.options().dtype(type));
    with_place(type, [&]<class Place>(Place) {
      const auto* const from = input.const_data_ptr<float>();
      auto* const to = maxima.mutable_data_ptr<float>();
      auto* const where = places.mutable_data_ptr<Place>();
      for_each_plane(input, [&](int64_t p) {
        pool_plane(from + p * pooling.elements(), to + p * pooling.windows(),
                   where + p * pooling.windows(), pooling);
      });
    });
    stack.clear();
    stack.emplace_back(std::move(maxima));
    stack.emplace_back(std::move(places));
  };
}

// Results: [grad_input].
Kernel backward_by_planes(const PlanePooling& pooling, at::ScalarType type) {
  return [pooling, type](std::vector<c10::IValue>& stack) {
    const at::Tensor gradient = stack[kGradOutput].toTensor(), places = stack.back().toTensor();
    at::Tensor result = at::empty(stack[kInput].toTensor().sizes(), gradient.options());
    with_place(type, [&]<class Place>(Place) {
      const auto* const from = gradient.const_data_ptr<float>();
      const auto* const where = places.const_data_ptr<Place>();
      auto* const to = result.mutable_data_ptr<float>();
      for_each_plane(gradient, [&](int64_t p) {
        pool_plane_backward(from + p * pooling.windows(), where + p * pooling.windows(),
                            to + p * pooling.elements(), pooling);
      });
    });
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

// Reads an argument that holds one number for both sides, or one for each. Returns `otherwise` if
// it is empty.
std::array<int64_t, 2> sides_of(const Call& call, const char* name,
                                const std::array<int64_t, 2>& otherwise = {}) {
  const std::vector<int64_t> list = argument_of(call, name)->constant.toIntVector();
  if (list.empty()) return otherwise;
  return {list.front(), list.back()};
}

PlanePooling plane_pooling_of(const Call& forward) {
  const std::vector<int64_t>& input = forward.arguments[0].tensors[0].geometry.sizes;
  const std::vector<int64_t>& output = forward.outputs[0][0].geometry.sizes;
  const auto kernel = sides_of(forward, "kernel_size"), padding = sides_of(forward, "padding");
  const auto stride = sides_of(forward, "stride", kernel);
  const auto dilation = sides_of(forward, "dilation");
  const auto side = [&](size_t s) -> PlanePooling::Side {
    return {input[2 + s], output[2 + s], kernel[s], stride[s], padding[s], dilation[s]};
  };
  return {side(0), side(1)};
}

// Returns the pooling whose places only this backward reads, if our kernels can do both calls; else
// -1.
int32_t forward_by_planes(const Rewriter& rewriter, int32_t backward) {
  const Pattern pattern(rewriter);
  const Call& call = pattern.call(backward);
  const TensorRef& places = call.arguments.back().tensors[0];
  const int32_t forward = pattern.maker(places, "aten::max_pool2d_with_indices");
  if (forward < 0 || !rewriter.recording().device.is_cpu()) return -1;
  if (!pattern.only_read_by(places, {backward})) return -1;
  const Call& pooling = pattern.call(forward);
  const auto fits = [](const TensorRef& ref) {
    return ref.geometry.sizes.size() == 4 && ref.geometry.dtype == at::kFloat &&
           is_in_rows(ref.geometry);
  };
  const bool all_fit = fits(pooling.arguments[0].tensors[0]) && fits(pooling.outputs[0][0]) &&
                       fits(call.arguments[kGradOutput].tensors[0]) && fits(call.outputs[0][0]) &&
                       is_in_rows(places.geometry);
  return all_fit && pattern.maker(pooling.outputs[0][0]) == forward ? forward : -1;
}

}  // namespace

at::ScalarType type_of_positions(const Geometry& input, size_t dimensions) {
  int64_t elements = 1;
  for (size_t d = input.sizes.size() - dimensions; d < input.sizes.size(); ++d) {
    elements *= input.sizes[d];
  }
  if (elements - 1 <= std::numeric_limits<int16_t>::max()) return at::kShort;
  if (elements - 1 <= std::numeric_limits<int32_t>::max()) return at::kInt;
  return at::kLong;
}

void small_indices(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    const auto c = static_cast<int32_t>(i);
    const Pooling* pooling = pooling_of(call);
    if (pooling == nullptr || call.phase != Phase::kBackward) continue;
    const TensorRef &indices = call.arguments.back().tensors[0], &result = call.outputs[0][0];
    const Geometry& input = call.arguments[kInput].tensors[0].geometry;
    if (input.sizes.size() != pooling->dimensions + 2 || input != result.geometry) continue;
    if (!covers_storage(indices, recording) || !covers_storage(result, recording)) continue;
    const int32_t behind = rewriter.last_forward_use(indices.index, c);
    const at::ScalarType type = type_of_positions(input, pooling->dimensions);
    if (behind < 0 || type == at::kLong || rewriter.is_result(indices.index)) continue;
    const int64_t before = recording.values[indices.index].bytes;
    const int64_t bytes = before / static_cast<int64_t>(sizeof(int64_t)) *
                          static_cast<int64_t>(c10::elementSize(type));
    const auto op = c10::Dispatcher::singleton().findSchema({pooling->backward, "grad_input"});
    if (!rewriter.is_worthwhile(before - bytes) || !op) continue;

    TensorRef small = indices;
    small.index = rewriter.add_value(bytes);
    small.geometry.dtype = type;
    Work small_backward{.name = call.name() + " of small indices",
                        .kernel = widening(*op),
                        .arguments = call.arguments,
                        .made = {{0, 0, result.index}}};
    small_backward.arguments.back().tensors = {small};
    CallRealization realization{.name = "small-indices", .calls = {c}};
    const int32_t forward = forward_by_planes(rewriter, c);
    if (forward >= 0) {
      const Call& pool = recording.calls[forward];
      const PlanePooling planes = plane_pooling_of(pool);
      small_backward.kernel = backward_by_planes(planes, type);
      Work small_forward{.name = pool.name() + " with small indices",
                         .kernel = by_planes(planes, type),
                         .arguments = pool.arguments,
                         .made = {{0, 0, pool.outputs[0][0].index}, {1, 0, small.index}}};
      realization.calls = {forward, c};
      realization.pieces.push_back(
          {"with-small", forward, {rewriter.add_work(std::move(small_forward))}, {"default"}});
    } else {
      Work narrow{.name = call.name() + " narrows indices",
                  .kernel = narrowing(type),
                  .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {indices}}},
                  .made = {{0, 0, small.index}}};
      realization.pieces.push_back(
          {"narrow", behind, {rewriter.add_work(std::move(narrow))}, {"default"}});
    }
    realization.pieces.push_back(
        {"of-small", c, {rewriter.add_work(std::move(small_backward))}, {"default"}});
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime::internal::rewrite
