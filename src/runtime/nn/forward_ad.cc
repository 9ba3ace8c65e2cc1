// This file has nested Forward-AD and its sibling that keeps the operands, as nodes of autograd.
//
// Guo et al., arXiv 2209.10778, section 4. The names of the paper and of this file:
//
//   y = f(x), element-wise      Spec::function, called for each Tile
//   dy/dx, diagonal             `derivative`; one Stored for each operand
//   forward mode inside f       gradients() of the tile with a gradient of ones: as f is diagonal, the
//                               row sums of its Jacobian are the diagonal
//   backward: dL/dx = dL/dy h   DerivativeNode::backward()
//
// Tests: tests/runtime/forward_ad_test.cc, tests/python/test_nn.py.
#include "reprise/runtime/nn/forward_ad.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/nn/probe.h"
#include "runtime/nn/spec.h"
#include "runtime/nn/stored.h"
#include "runtime/nn/tiling.h"
#include "runtime/state/autocast.h"
#include "runtime/state/random_state.h"
#include "runtime/step/record.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

using torch::autograd::AutogradContext;

constexpr int64_t kTileOnCpu = 65'536, kTileElsewhere = 4'194'304, kTileUnit = 4096;

int64_t tile_of(const Spec& spec, c10::Device device) {
  if (spec.tile != 0) return spec.tile;
  return device.is_cpu() ? kTileOnCpu : kTileElsewhere;
}

// The backward pass of a call reads these facts about it.
struct ElementwiseCall final : torch::CustomClassHolder {
  ElementwiseCall(std::shared_ptr<const Spec> given, const Tensors& operands)
      : spec(std::move(given)), autocast(operands[0].device()) {
    for (const at::Tensor& operand : operands) {
      wanted.push_back(at::GradMode::is_enabled() && operand.requires_grad());
      sizes.push_back(operand.sizes().vec());
      types.push_back(operand.scalar_type());
    }
  }
  bool wants_gradients() const {
    return std::find(wanted.begin(), wanted.end(), true) != wanted.end();
  }

  std::shared_ptr<const Spec> spec;
  state::AutocastState autocast;
  std::vector<bool> wanted;  // for each operand
  std::vector<std::vector<int64_t>> sizes;
  std::vector<at::ScalarType> types;
  std::vector<int64_t> begins = {};  // of each tile; only for DerivativeStorage::kScaled8
};
using CallPtr = c10::intrusive_ptr<ElementwiseCall>;

Tensors operands_of(const Tiling& tiling, const Tile& tile, size_t count) {
  Tensors parts;
  for (size_t i = 0; i < count; ++i) parts.push_back(tiling.operand(i, tile));
  return parts;
}

// Returns the results, nothing kept.
at::Tensor run_plainly(const Spec& spec, const Tensors& operands, at::ScalarType type) {
  const at::NoGradGuard no_gradients;
  const Tiling tiling(operands, tile_of(spec, operands[0].device()));
  at::Tensor result = tiling.new_output(type);
  tiling.for_each(Order::kLikeKernels, [&](const Tile& tile) {
    const state::AutocastCacheOff no_cache;
    const at::NoGradGuard here_too;
    const Tensors parts = operands_of(tiling, tile, operands.size());
    tiling.part(result, tile).copy_(nn::call(spec, parts, tile.sizes, type));
  });
  return result;
}

struct Derived {
  at::Tensor result;
  std::vector<Stored> derivatives;  // for each operand; those that are not wanted are empty
  std::vector<int64_t> begins = {};
};

Derived run_with_derivatives(const ElementwiseCall& call, const Tensors& operands,
                             at::ScalarType type) {
  const at::NoGradGuard no_gradients;
  const Spec& spec = *call.spec;
  const Tiling tiling(operands, tile_of(spec, operands[0].device()));
  Derived derived{.result = tiling.new_output(type),
                  .derivatives = std::vector<Stored>(operands.size())};
  for (size_t i = 0; i < operands.size(); ++i) {
    if (call.wanted[i]) derived.derivatives[i] = room_for(tiling, spec.storage, call.types[i]);
  }
  const bool scaled = spec.storage == runtime::nn::DerivativeStorage::kScaled8;
  for (int64_t n = 0; scaled && n < tiling.tiles(); ++n) {
    derived.begins.push_back(tiling.tile(n).begin);
  }
  const at::Tensor one = at::ones({1}, derived.result.options());
  tiling.for_each(scaled ? Order::kNumbered : Order::kLikeKernels, [&](const Tile& tile) {
    const state::AutocastCacheOff no_cache;
    const at::NoGradGuard here_too;
    const Tensors parts = operands_of(tiling, tile, operands.size());
    const auto called = call_with_leaves(spec, parts, call.wanted, tile.sizes, type);
    tiling.part(derived.result, tile).copy_(called.result);
    const Tensors found = gradients(called, call.wanted, one.expand(tile.sizes));
    for (size_t i = 0; i < found.size(); ++i) {
      if (call.wanted[i]) store(tiling, tile, found[i], derived.derivatives[i]);
    }
  });
  return derived;
}

// Returns the gradient by an operand, which has the shape of the result, summed to its own shape.
at::Tensor to_operand(const ElementwiseCall& call, size_t i, at::Tensor gradient) {
  if (gradient.sizes() != at::IntArrayRef(call.sizes[i])) {
    gradient = at::sum_to(std::move(gradient), call.sizes[i]);
  }
  return gradient.scalar_type() == call.types[i] ? gradient : gradient.to(call.types[i]);
}

at::Tensor times_derivative(const ElementwiseCall& call, size_t i, const at::Tensor& by_result,
                            const Stored& stored) {
  const at::Tensor& values = stored.values;
  if (!stored.scales.defined() && values.scalar_type() == by_result.scalar_type()) {
    return at::mul(by_result, values);
  }
  const auto laid_out = [&](at::ScalarType type) {
    return at::empty_strided(values.sizes(), values.strides(), values.options().dtype(type));
  };
  at::Tensor gradient = by_result;
  if (gradient.strides() != values.strides()) {
    gradient = laid_out(by_result.scalar_type()).copy_(by_result);
  }
  const at::Tensor product = laid_out(call.types[i]);
  const int64_t elements = values.numel();
  const auto flat = [&](const at::Tensor& tensor, int64_t begin, int64_t end) {
    return tensor.as_strided({end - begin}, {1}, tensor.storage_offset() + begin);
  };
  const int64_t tile = tile_of(*call.spec, values.device());
  const int64_t tiles = stored.scales.defined() ? static_cast<int64_t>(call.begins.size())
                                                : (elements + tile - 1) / tile;
  const auto begin_of = [&](int64_t n) {
    if (n == tiles) return elements;
    return stored.scales.defined() ? call.begins[n] : n * tile;
  };
  for_numbers(tiles, values.device(), [&](int64_t n) {
    const int64_t begin = begin_of(n), end = begin_of(n + 1);
    multiply(flat(gradient, begin, end), stored, n, begin, flat(product, begin, end));
  });
  return product;
}

// Gradients are the gradients of a backward pass that runs the function again. `summed` says which
// operands are broadcast: their gradients are sums over tiles.
struct Gradients {
  Tensors all;
  std::vector<bool> summed;
};

Gradients room_for_gradients(const ElementwiseCall& call, const Tensors& operands,
                             const Tiling& tiling) {
  Gradients gradients{.all = Tensors(operands.size()), .summed = {}};
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::TensorOptions options = operands[i].options();
    gradients.summed.push_back(operands[i].sizes() != tiling.sizes());
    if (!call.wanted[i]) continue;
    if (gradients.summed[i]) {  // sums of low precision are made in float32
      const bool low = call.types[i] == at::kHalf || call.types[i] == at::kBFloat16;
      gradients.all[i] = at::zeros(operands[i].sizes(), low ? options.dtype(at::kFloat) : options);
    } else {
      gradients.all[i] = tiling.new_output(call.types[i]);
    }
  }
  return gradients;
}

// Runs the function again and differentiates it, tile by tile. Sums are made one tile after the
// other, so that they do not depend on the threads.
Tensors run_backward(const ElementwiseCall& call, Tensors operands, const at::Tensor& by_result) {
  const c10::Device device = by_result.device();
  bool any_sum = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].sizes() == by_result.sizes()) continue;
    operands[i] = operands[i].contiguous();  // the layout of its gradient
    any_sum |= call.wanted[i];
  }
  Tensors all = operands;
  all.push_back(by_result);
  const Tiling tiling(all, tile_of(*call.spec, device));
  const Gradients found = room_for_gradients(call, operands, tiling);
  tiling.for_each(any_sum ? Order::kOneByOne : Order::kLikeKernels, [&](const Tile& tile) {
    const state::AutocastScope as_before(call.autocast, device);
    const state::AutocastCacheOff no_cache;
    const at::NoGradGuard here_too;
    const Tensors parts = operands_of(tiling, tile, operands.size());
    const auto called =
        call_with_leaves(*call.spec, parts, call.wanted, tile.sizes, by_result.scalar_type());
    const Tensors here = nn::gradients(called, call.wanted, tiling.operand(operands.size(), tile));
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!call.wanted[i]) continue;
      if (found.summed[i]) {
        if (here[i].defined()) tiling.add_to_sum(i, tile, here[i], found.all[i]);
      } else {
        const at::Tensor to = tiling.part(found.all[i], tile);
        here[i].defined() ? to.copy_(here[i]) : to.zero_();
      }
    }
  });
  Tensors gradients = found.all;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (call.wanted[i]) gradients[i] = gradients[i].to(call.types[i]);
  }
  return gradients;
}

// --- Nodes of autograd ------------------------------------------------------------------------------

void refuse_second_derivatives() {
  if (!at::GradMode::is_enabled()) return;
  throw InputError(
      "a function that runs in tiles has no second derivative: it was asked for with "
      "create_graph=True. ElementwiseCall the function plainly, without tiles");
}

const ElementwiseCall& call_of(AutogradContext* context) {
  return static_cast<const ElementwiseCall&>(*context->saved_data.at("call").toCapsule());
}

// The gradients by the arguments of forward(): a call, a type, and the operands.
Tensors by_arguments(Tensors by_operands) {
  by_operands.insert(by_operands.begin(), 2, at::Tensor());
  return by_operands;
}

// Keeps derivatives.
struct DerivativeNode : torch::autograd::Function<DerivativeNode> {
  static at::Tensor forward(AutogradContext* context, const CallPtr& call, at::ScalarType type,
                            at::TensorList operands) {
    Derived derived = run_with_derivatives(*call, operands.vec(), type);
    Tensors kept;
    for (size_t i = 0; i < operands.size(); ++i) {
      kept.push_back(derived.derivatives[i].values);
      kept.push_back(derived.derivatives[i].scales);
    }
    call->begins = std::move(derived.begins);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(std::move(kept));
    context->set_materialize_grads(false);
    return derived.result;
  }

  static Tensors backward(AutogradContext* context, const Tensors& by_result) {
    refuse_second_derivatives();
    const ElementwiseCall& call = call_of(context);
    const Tensors kept = context->get_saved_variables();
    Tensors found(call.wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if (!call.wanted[i] || !by_result[0].defined()) continue;
      const Stored stored{.values = kept[2 * i], .scales = kept[2 * i + 1]};
      found[i] = to_operand(call, i, times_derivative(call, i, by_result[0], stored));
    }
    return by_arguments(std::move(found));
  }
};

// Keeps operands.
struct OperandsNode : torch::autograd::Function<OperandsNode> {
  static at::Tensor forward(AutogradContext* context, const CallPtr& call, at::ScalarType type,
                            at::TensorList operands) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(operands.vec());
    context->set_materialize_grads(false);
    return run_plainly(*call->spec, operands.vec(), type);
  }

  static Tensors backward(AutogradContext* context, const Tensors& by_result) {
    refuse_second_derivatives();
    const ElementwiseCall& call = call_of(context);
    if (!by_result[0].defined()) return by_arguments(Tensors(call.wanted.size()));
    return by_arguments(run_backward(call, context->get_saved_variables(), by_result[0]));
  }
};

void check_spec(const Spec& spec) {
  if (!spec.function) throw InputError("there is no element-wise function to run in tiles");
  if (spec.tile < 0 || spec.tile % kTileUnit != 0) {
    throw InputError(c10::str("tile: ", spec.tile, " is no multiple of ", kTileUnit));
  }
}

}  // namespace
}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;
namespace {

std::shared_ptr<const in::Spec> spec_of(Elementwise function, in::Keep keep,
                                        DerivativeStorage storage, int64_t tile) {
  auto spec = std::make_shared<in::Spec>();
  spec->function = std::move(function);
  spec->keep = keep;
  spec->storage = storage;
  spec->tile = tile;
  in::check_spec(*spec);
  return spec;
}

Elementwise of_list(ElementwiseOfOne function) {
  if (!function) return {};
  return [function = std::move(function)](const Tensors& operands) {
    if (operands.size() != 1) throw InputError("this element-wise function takes one operand");
    return function(operands[0]);
  };
}

}  // namespace

TiledFunction::TiledFunction(std::shared_ptr<const internal::nn::Spec> spec)
    : spec_(std::move(spec)) {}

at::Tensor TiledFunction::operator()(const at::Tensor& x) const { return (*this)(Tensors{x}); }

at::Tensor TiledFunction::operator()(const Tensors& operands) const {
  in::check_operands(operands);
  if (internal::step::is_recording()) return spec_->function(operands);
  const auto call = c10::make_intrusive<in::ElementwiseCall>(spec_, operands);
  const bool again = call->wants_gradients() && spec_->keep == in::Keep::kOperands;
  std::optional<internal::state::RandomState> random;
  if (again) random.emplace(operands[0].device());
  const at::ScalarType type = in::try_out(*spec_, operands, call->wanted);
  if (!call->wants_gradients()) return in::run_plainly(*spec_, operands, type);
  if (again) {
    at::Tensor result = in::OperandsNode::apply(call, type, at::TensorList(operands));
    if (random->is_now()) return result;
    random->restore();
    throw InputError(
        "the element-wise function draws random numbers now: the backward pass could not run it "
        "again. ElementwiseCall it plainly, without tiles");
  }
  return in::DerivativeNode::apply(call, type, at::TensorList(operands));
}

TiledFunction forward_ad(Elementwise function, ForwardAdOptions options) {
  return TiledFunction(
      spec_of(std::move(function), in::Keep::kDerivative, options.storage, options.tile));
}

TiledFunction forward_ad(ElementwiseOfOne function, ForwardAdOptions options) {
  return forward_ad(of_list(std::move(function)), options);
}

TiledFunction in_tile(Elementwise function, InTileOptions options) {
  return TiledFunction(
      spec_of(std::move(function), in::Keep::kOperands, DerivativeStorage::kFull, options.tile));
}

TiledFunction in_tile(ElementwiseOfOne function, InTileOptions options) {
  return in_tile(of_list(std::move(function)), options);
}

}  // namespace nn
}  // namespace reprise::runtime
