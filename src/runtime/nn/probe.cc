#include "runtime/nn/probe.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::nn {
namespace {

constexpr int64_t kNumbers = 64;
// The ends of uneven pieces: a function that looks at neighbours or at the whole differs in one.
constexpr std::array<int64_t, 5> kPieces = {0, 5, 13, 40, kNumbers};
// Differences of so many units in the last place count as rounding. Long chains of operations
// magnify differences between vectors and their tails; a function that looks at other places
// differs by far more.
constexpr double kUnits = 4096, kUnitsOfFewBits = 16;
constexpr const char* kPlainly = ". Call the function plainly, without tiles";

[[noreturn]] void refuse(const std::string& problem) { throw InputError(problem + kPlainly); }

// Results and derivatives of one call.
struct Tried {
  at::Tensor result;
  Tensors derivatives;  // undefined ones are zero
};

// Throws InputError if the graph of the result leads to a tensor that requires a gradient and is
// none of the wanted leaves. Such a tensor would get no gradient. Without gradient mode there is
// nothing to check.
void check_leaves(const Differentiated& called) {
  if (!at::GradMode::is_enabled()) return;
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open;
  if (called.result.grad_fn()) open.push_back(called.result.grad_fn().get());
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      const bool known =
          std::any_of(called.leaves.begin(), called.leaves.end(), [&](const auto& leaf) {
            return leaf.unsafeGetTensorImpl() == end->variable.unsafeGetTensorImpl();
          });
      if (!known) {
        throw InputError(c10::str("the element-wise function uses a tensor of the shape ",
                                  end->variable.sizes(),
                                  " that requires a gradient and is no operand",
                                  ": it would get no gradient. Give it to the call as an operand"));
      }
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function) open.push_back(edge.function.get());
    }
  }
}

[[noreturn]] void refuse_failed(const char* why) {
  throw InputError(
      c10::str("the element-wise function failed when it was tried out on a few numbers ",
               "in one dimension; it sees its operands in tiles of any shape: ", why));
}

// Calls the function with what the user's own errors mean here.
template <class Call>
auto explained(const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    refuse_failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    refuse_failed(error.what());
  }
}

Tried differentiate(const Spec& spec, const Tensors& operands, const std::vector<bool>& wanted,
                    const at::Tensor& by_result) {
  const auto called = call_with_leaves(spec, operands, wanted, operands[0].sizes(), std::nullopt);
  check_leaves(called);
  const at::Tensor by = by_result.to(called.result.scalar_type());
  return {called.result.detach(), gradients(called, wanted, by)};
}

// Returns whether two tensors are equal up to rounding. Numbers that are not finite must be the
// same.
bool close(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    const at::Tensor& other = a.defined() ? a : b;
    return !other.defined() || other.eq(0).all().item<bool>();
  }
  const double unit = a.scalar_type() == at::kDouble     ? 2.3e-16
                      : a.scalar_type() == at::kHalf     ? 9.8e-4
                      : a.scalar_type() == at::kBFloat16 ? 7.9e-3
                                                         : 1.2e-7;
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble), finite = x.isfinite();
  if (!at::equal(finite, y.isfinite())) return false;
  const at::Tensor inner = x.masked_select(finite);
  const at::Tensor apart = (inner - y.masked_select(finite)).abs();
  if (!at::equal(x.masked_select(~finite).nan_to_num(0.5),
                 y.masked_select(~finite).nan_to_num(0.5))) {
    return false;
  }
  if (inner.numel() == 0) return true;
  const double scale = std::max(inner.abs().max().item<double>(), 1e-30);
  return apart.max().item<double>() <= (unit < 1e-6 ? kUnits : kUnitsOfFewBits) * unit * scale;
}

at::Tensor at_places(const at::Tensor& tensor, const at::Tensor& places) {
  return tensor.defined() ? tensor.index_select(0, places) : tensor;
}

void expect_same(const Tried& whole, const Tried& part, const at::Tensor& places) {
  const char* same = "the function is not element-wise: ";
  if (!close(at_places(whole.result, places), part.result)) {
    refuse(c10::str(
        same, "its result at one place depends on other places (as that of a soft-max does)"));
  }
  for (size_t i = 0; i < whole.derivatives.size(); ++i) {
    if (!close(at_places(whole.derivatives[i], places), part.derivatives[i])) {
      refuse(c10::str(same, "its derivative by operand ", i, " depends on other places"));
    }
  }
}

// Everything that costs several calls, on one set of numbers.
void try_numbers(const Spec& spec, const Tensors& numbers, const std::vector<bool>& wanted) {
  const at::Tensor shape_like = numbers[0];
  Tensors copies;
  for (const at::Tensor& operand : numbers) copies.push_back(operand.clone());
  at::Tensor first, second;
  {
    const at::NoGradGuard no_gradients;
    first = explained([&] { return call(spec, copies, shape_like.sizes(), std::nullopt); }).clone();
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!state::bitwise_equal(copies[i], numbers[i])) {
        refuse(c10::str("the function changes its operand ", i, " in place"));
      }
    }
    second = call(spec, numbers, shape_like.sizes(), std::nullopt);
  }
  if (!first.is_floating_point()) {
    refuse(c10::str("the function returns the type ", first.scalar_type(), ", not real numbers"));
  }
  if (!state::bitwise_equal(first, second.contiguous())) {
    refuse("two calls of the function with the same operands differ: it must not be random");
  }
  const at::TensorOptions options = first.options();
  const at::Tensor ones = at::ones({kNumbers}, options);
  const Tried whole = explained([&] { return differentiate(spec, numbers, wanted, ones); });
  const at::Tensor all = at::arange(kNumbers, options.dtype(at::kLong));
  for (size_t p = 0; p + 1 < kPieces.size(); ++p) {
    const at::Tensor places = all.slice(0, kPieces[p], kPieces[p + 1]);
    Tensors piece;
    for (const at::Tensor& operand : numbers) piece.push_back(operand.index_select(0, places));
    const at::Tensor by = ones.slice(0, kPieces[p], kPieces[p + 1]);
    expect_same(whole, explained([&] { return differentiate(spec, piece, wanted, by); }), places);
  }
  const at::Tensor order = (all * 27 + 11).remainder(kNumbers);  // 27 and 64 have no common factor
  Tensors permuted;
  for (const at::Tensor& operand : numbers) permuted.push_back(operand.index_select(0, order));
  expect_same(whole, differentiate(spec, permuted, wanted, ones), order);
  const at::Tensor weights = (all * 37).remainder(19).to(first.scalar_type()) / 8 - 1;
  const Tried weighted = differentiate(spec, numbers, wanted, weights);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i] || !whole.derivatives[i].defined()) continue;
    const at::Tensor expected =
        whole.derivatives[i] * weights.to(whole.derivatives[i].scalar_type());
    if (!close(expected, weighted.derivatives[i])) {
      refuse(c10::str("the function is not element-wise: its derivative by operand ", i,
                      " is not diagonal"));
    }
  }
}

// Does the same. Where numbers of 16 bits are too coarse to tell rounding from a function that is
// not element-wise, numbers of 64 bits decide.
void try_some(const Spec& spec, const Tensors& numbers, const std::vector<bool>& wanted) {
  const bool few_bits = std::any_of(numbers.begin(), numbers.end(), [](const at::Tensor& x) {
    return x.is_floating_point() && x.element_size() == 2;
  });
  if (!few_bits) return try_numbers(spec, numbers, wanted);
  try {
    try_numbers(spec, numbers, wanted);
  } catch (const InputError&) {
    Tensors fine;
    for (const at::Tensor& x : numbers)
      fine.push_back(x.is_floating_point() ? x.to(at::kDouble) : x);
    try_numbers(spec, fine, wanted);
  }
}

// Numbers between -4 and 4, other ones for each operand.
Tensors spread_numbers(const Tensors& operands) {
  Tensors numbers;
  const at::Tensor all = at::arange(kNumbers, at::TensorOptions(at::kDouble));
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::Tensor values = 4 * (all * (1.7 + 0.31 * static_cast<double>(i)) + 0.3).sin();
    numbers.push_back(operands[i].scalar_type() == at::kBool ? values.gt(0).to(operands[i].device())
                                                             : values.to(operands[i].options()));
  }
  return numbers;
}

// The first of the operands' own numbers, again and again if there are few.
Tensors first_numbers(const Tensors& operands, int64_t count) {
  Tensors numbers;
  for (const at::Tensor& operand : operands) {
    at::Tensor some = operand.detach();
    while (some.dim() > 1) some = some.select(0, 0);
    some = some.reshape({-1}).slice(0, 0, count);
    const int64_t times = (count + some.numel() - 1) / some.numel();
    numbers.push_back(some.repeat({times}).slice(0, 0, count).contiguous());
  }
  return numbers;
}

Signature signature_of(const Tensors& operands, const std::vector<bool>& wanted) {
  Signature signature;
  const c10::DeviceType device = operands[0].device().type();
  signature.push_back(static_cast<int64_t>(device));
  const bool autocast = at::autocast::is_autocast_enabled(device);
  signature.push_back(autocast ? static_cast<int64_t>(at::autocast::get_autocast_dtype(device))
                               : -1);
  for (size_t i = 0; i < operands.size(); ++i) {
    signature.push_back(static_cast<int64_t>(operands[i].scalar_type()));
    signature.push_back(wanted[i]);
  }
  return signature;
}

void try_new_signature(const Spec& spec, const Tensors& operands, const std::vector<bool>& wanted,
                       bool has_numbers) {
  const Signature signature = signature_of(operands, wanted);
  {
    const std::lock_guard<std::mutex> lock(spec.mutex);
    if (spec.tried.contains(signature)) return;
  }
  const state::RandomState random(operands[0].device());
  try {
    try_some(spec, spread_numbers(operands), wanted);
    if (has_numbers) try_some(spec, first_numbers(operands, kNumbers), wanted);
  } catch (...) {
    const bool drawn = !random.is_now();
    random.restore();
    if (drawn) refuse("the function draws random numbers");
    throw;
  }
  if (!random.is_now()) {
    random.restore();
    refuse("the function draws random numbers");
  }
  const std::lock_guard<std::mutex> lock(spec.mutex);
  spec.tried.insert(signature);
}

}  // namespace

void check_operands(const Tensors& operands) {
  if (operands.empty()) throw InputError("an element-wise function needs an operand");
  const auto& included = c10::impl::tls_local_dispatch_key_set().included_;
  if (included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    refuse("torch.func (vmap, grad, jvp) cannot transform a function that runs in tiles");
  }
  bool any_real = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::Tensor& x = operands[i];
    const std::string operand = c10::str("operand ", i, " of the element-wise function ");
    if (!x.defined()) throw InputError(operand + "is no tensor");
    const bool plain = x.layout() == at::kStrided && !x.is_quantized() && !x.is_nested() &&
                       !x.unsafeGetTensorImpl()->is_python_dispatch();
    if (!plain) refuse(operand + "is no plain dense tensor");
    if (x.device() != operands[0].device()) {
      throw InputError(c10::str(operand, "lies on ", x.device(), " and operand 0 on ",
                                operands[0].device(), ": move one of them"));
    }
    if (!x.is_floating_point() && x.scalar_type() != at::kBool) {
      throw InputError(c10::str(operand, "has the type ", x.scalar_type(),
                                ": give real numbers, or true and false for a mask"));
    }
    any_real |= x.is_floating_point();
    const bool both_scalars = (x.dim() == 0) == (operands[0].dim() == 0);
    if (!both_scalars && x.scalar_type() != operands[0].scalar_type()) {
      throw InputError(c10::str(operand, "and operand 0 have the types ", x.scalar_type(), " and ",
                                operands[0].scalar_type(),
                                ", and one has no dimension: PyTorch would ",
                                "choose the type of the result by that. Give them one type"));
    }
    if (x._fw_grad(0).defined()) {
      refuse(operand + "has a forward-mode derivative, which is not supported");
    }
  }
  if (!any_real) throw InputError("no operand of the element-wise function has real numbers");
}

at::ScalarType try_out(const Spec& spec, const Tensors& operands, const std::vector<bool>& wanted) {
  const bool has_numbers = std::all_of(operands.begin(), operands.end(),
                                       [](const at::Tensor& x) { return x.numel() > 0; });
  try_new_signature(spec, operands, wanted, has_numbers);
  // The type of the result, and tensors that the function may use since the last call.
  const Tensors numbers = has_numbers ? first_numbers(operands, 1) : spread_numbers(operands);
  const auto called = call_with_leaves(spec, numbers, wanted, numbers[0].sizes(), std::nullopt);
  check_leaves(called);
  return called.result.scalar_type();
}

}  // namespace reprise::runtime::internal::nn
