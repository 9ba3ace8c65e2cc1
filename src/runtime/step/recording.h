// A training step as it was observed: its leaf operations in the order of execution, with every tensor
// replaced by the memory it lies in and the way to look at it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::step {

// How a tensor looks at its storage.
struct Geometry {
  std::vector<int64_t> sizes, strides;  // elements
  int64_t offset = 0;                   // elements
  at::ScalarType dtype = at::kFloat;
  bool wrapped_number = false;  // a number of the caller's language: does not decide result types
  bool conjugate = false, negative = false;

  bool operator==(const Geometry&) const = default;
};

Geometry geometry_of(const at::Tensor& tensor);
int64_t offset_bytes(const at::Tensor& tensor);  // in its storage; 0 of an undefined one

// Bytes from the start of the storage to the end of its last element.
int64_t extent_bytes(const Geometry& geometry);

enum class Memory : uint8_t {
  kNone,      // an undefined tensor
  kValue,     // made in the step; `index` into Recording::values
  kExternal,  // was there before the step; `index` into Recording::externals
};

struct TensorRef {
  Memory memory = Memory::kNone;
  int32_t index = -1;
  Geometry geometry;

  bool operator==(const TensorRef&) const = default;
};

// One version of a storage that the step made. A write in place makes the next version.
struct StepValue {
  int64_t bytes = 0;      // of the storage, not rounded
  int32_t maker = -1;     // position in Recording::calls
  int32_t previous = -1;  // the version that it was written over; -1: fresh memory
};

// A storage that was there before the step.
struct External {
  // Of this storage: the tensor itself, whose data may be replaced; an alias of one that has a history.
  at::Tensor tensor = {};
  int64_t offset = 0;        // bytes, where `tensor` began in its storage
  int32_t input = -1;        // position among the caller's inputs; then `tensor` is not kept
  bool is_constant = false;  // made in the step by the host; the content at capture
  bool requires_grad = false;
};

enum class ArgumentKind : uint8_t { kConstant, kTensor, kTensorList, kOptionalTensorList };

struct Argument {
  ArgumentKind kind = ArgumentKind::kConstant;
  c10::IValue constant = {};
  std::vector<TensorRef> tensors = {};
  bool shape_only = false;  // the operation reads sizes and strides, never the memory
};

// One leaf operation: the outermost call that has a kernel of its own.
struct Call {
  explicit Call(const c10::OperatorHandle& handle) : op(handle) {}

  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  std::vector<std::vector<TensorRef>> outputs;  // by return
  std::vector<int32_t> effects;                 // externals that it writes
  Phase phase = Phase::kForward;
  bool random = false;  // draws random numbers
  bool grad_mode = false;
  std::string node;    // of autograd, in a backward pass: "ConvolutionBackward0"
  std::string module;  // path of the caller's module that it belongs to, as far as it is known

  std::string name() const;  // "convolution_backward", "add_.Tensor"
};

// What the step does to a gradient that is there when it begins.
enum class Arrival : uint8_t {
  kAdded,     // its own is added, as autograd does it
  kReplaced,  // dropped: zero_grad() inside the step
  kZeroed,    // set to zero first: zero_grad(set_to_none=False)
  kReads,     // it works with it (clipping, hooks on .grad)
};

// A leaf tensor that wants a gradient.
struct LeafGradient {
  at::Tensor target;        // the parameter, or the caller's input at capture
  int32_t input = -1;       // position among the caller's inputs
  TensorRef gradient = {};  // kNone: none arrived
  Arrival arrival = Arrival::kAdded;
};

struct Recording {
  c10::Device device = c10::kCPU;
  std::vector<Call> calls;
  std::vector<StepValue> values;
  std::vector<External> externals;
  std::vector<TensorRef> outputs;  // what the step returned
  std::vector<LeafGradient> gradients;
  std::vector<int64_t> input_offsets;  // bytes, where the caller's inputs began in their storages
};

// Calls `visit` for every tensor in an argument or a return, undefined ones included.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef()) {
      visit(item.isTensor() ? item.toTensor() : at::Tensor());
    }
  }
}

}  // namespace reprise::runtime::internal::step
