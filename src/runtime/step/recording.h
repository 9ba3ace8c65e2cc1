// A Recording holds a training step: its leaf operations in the order of execution. Every tensor is
// replaced by the memory that it lies in and the way to look at this memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::step {

// A Geometry says how a tensor looks at its storage.
struct Geometry {
  std::vector<int64_t> sizes, strides;  // elements
  int64_t offset = 0;                   // elements
  at::ScalarType dtype = at::kFloat;
  // A wrapped number is a number of the caller's language. It does not decide the types of results.
  bool wrapped_number = false;
  bool conjugate = false, negative = false;

  bool operator==(const Geometry&) const = default;
};

Geometry geometry_of(const at::Tensor& tensor);
// Returns the offset of the tensor in its storage. It is 0 for an undefined tensor.
int64_t offset_bytes(const at::Tensor& tensor);

// Returns the number of bytes from the start of the storage to the end of the last element.
int64_t extent_bytes(const Geometry& geometry);

enum class Memory : uint8_t {
  kNone,      // an undefined tensor
  kValue,     // a value of the step; `index` is its position in Recording::values
  kExternal,  // a storage from before the step; `index` is its position in Recording::externals
};

struct TensorRef {
  Memory memory = Memory::kNone;
  int32_t index = -1;
  Geometry geometry;

  bool operator==(const TensorRef&) const = default;
};

// A StepValue is one version of a storage that the step makes. A write in place makes the next
// version.
struct StepValue {
  int64_t bytes = 0;      // size of the storage, not rounded
  int32_t maker = -1;     // position in Recording::calls
  int32_t previous = -1;  // the version that it was written over; -1 for fresh memory
  c10::Device device = c10::kCPU;
};

// An External is a storage that was there before the step.
struct External {
  // This tensor lies on the storage. It is the caller's own tensor, whose data may be replaced. If
  // that has a history, it is an alias.
  at::Tensor tensor = {};
  int64_t offset = 0;  // in bytes: where `tensor` began in its storage at capture
  // The external may be one of the caller's inputs. Then this is its position among them, and
  // `tensor` is not kept.
  int32_t input = -1;
  // If true, the host made it inside the step, and it keeps its content at capture.
  bool is_constant = false;
  bool requires_grad = false;
};

// Says whether the external is a number of the host, which operations on every device read as it is.
bool is_host_number(const External& external);

enum class ArgumentKind : uint8_t { kConstant, kTensor, kTensorList, kOptionalTensorList };

struct Argument {
  ArgumentKind kind = ArgumentKind::kConstant;
  c10::IValue constant = {};
  std::vector<TensorRef> tensors = {};
  bool shape_only = false;  // whether the operation reads sizes and strides, but never the memory
};

// A Call is one leaf operation: the outermost call of an operator that has a kernel of its own.
struct Call {
  explicit Call(const c10::OperatorHandle& handle) : op(handle) {}

  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  std::vector<std::vector<TensorRef>> outputs;  // by return value of the operator
  std::vector<c10::IValue> results;             // by return value, if some are no tensors
  std::vector<int32_t> effects;                 // positions of the externals that it writes
  Phase phase = Phase::kForward;
  bool random = false;  // whether it draws random numbers
  bool grad_mode = false;
  std::string node;    // the node of autograd, in a backward pass: "ConvolutionBackward0"
  std::string module;  // path of the caller's module that it belongs to; empty if it is not known
  std::string place;   // where the caller's program called it: "train.py:41"; empty if not known

  // Returns a short name, such as "convolution_backward" or "add_.Tensor".
  std::string name() const;
};

// A LeftOut is a call that a replay does not need: it only looks at memory in another way, it gives
// the host a number, it failed, or it makes values again that another call has made, as a checkpoint
// does. A function that runs beside the recording calls it all the same.
struct LeftOut {
  size_t before = 0;  // how many of Recording::calls ended before it
  Call call;
  bool failed = false;   // whether it threw an exception, which the step has caught
  int32_t same_as = -1;  // the one of Recording::calls whose values it makes again; -1 for none
};

// An Arrival says what the step does to a gradient that is there when it begins.
enum class Arrival : uint8_t {
  kAdded,     // The step adds its own gradient, as autograd does.
  kReplaced,  // The step drops the gradient, by zero_grad().
  kZeroed,    // The step sets the gradient to zero first, by zero_grad(set_to_none=False).
  kReads,     // The step works with the gradient, by clipping or hooks on .grad.
};

// A LeafGradient is a leaf tensor that wants a gradient, and the gradient.
struct LeafGradient {
  at::Tensor target;   // the parameter, or the caller's input at capture
  int32_t input = -1;  // position among the caller's inputs; -1 for a parameter
  // kNone if no gradient arrives. An external is memory from before the step that stays the gradient,
  // as behind zero_grad(set_to_none=False) of a followed step.
  TensorRef gradient = {};
  Arrival arrival = Arrival::kAdded;
};

// A GradientFlag is a tensor whose requires_grad is another one after the step than before it.
struct GradientFlag {
  at::Tensor target;      // the parameter, or the caller's input at capture
  int32_t input = -1;     // position among the caller's inputs; -1 for a parameter
  bool wanted = false;    // whether the tensor wants a gradient after the step
  bool at_start = false;  // whether the step does the same if the tensor has the flag already
};

struct Recording {
  c10::Device device = c10::kCPU;
  std::vector<Call> calls;
  std::vector<LeftOut> left_out;  // in order
  std::vector<StepValue> values;
  std::vector<External> externals;
  std::vector<TensorRef> outputs;  // the tensors that the step returned
  // The last so many outputs are not returned: the program keeps them in objects of its own.
  size_t kept = 0;
  std::vector<LeafGradient> gradients;
  std::vector<GradientFlag> flags;
  std::set<int32_t> read_without_gradient;  // inputs that were read while they wanted no gradient
  std::vector<int64_t> input_offsets;       // in bytes: where inputs began in their storages
  // Says whether online mode may have held memory of values. Autograd adds gradients in place only
  // where nobody else holds the memory.
  bool held = false;
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
