// These are element-wise calls of a recording, in the form in which tiles run them: with ATen's own
// kernel, into memory that the caller gives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::rewrite {

// An ElementCall computes each element of its result from the elements of its operands at the same
// place.
//
// Its iteration space is the memory of the result, which is dense: elements 0 .. elements - 1 in
// the order in which they lie. Where an operand is broadcast, or has gaps, the space is a block of
// `inner` dimensions, again and again: element e belongs to block e / unit. Without such operands
// `inner` is empty and the unit is one element.
struct ElementCall {
  int32_t call = -1;  // the position in the recording
  // The operator takes `arguments` and then the result, or else the result first.
  std::optional<c10::OperatorHandle> op = {};
  bool result_first = false;
  std::vector<step::Argument> arguments = {};
  step::TensorRef result = {};
  int64_t elements = 0;
  std::vector<int64_t> inner = {};
  int64_t unit = 1;  // the product of `inner`
  // The strides of each argument that is a tensor of more than one element: from block to block,
  // then of the inner dimensions. They are 0 where it is broadcast.
  std::vector<std::vector<int64_t>> strides = {};
  // The type of the operands. Tensors of one element become numbers of this type, unless it is a
  // type of 16 bits: kernels then compute with the number as it was given.
  at::ScalarType type = at::kFloat;
  // If true, the result is an exact number rounded once, or a selection. Then its bits do not
  // depend on how a loop goes over the elements.
  bool rounds_once = false;

  // The operator's name, without its overload: "mul".
  std::string name() const;
  // Returns whether the argument is a tensor of one element, or of more.
  bool is_number(size_t argument) const;
  bool is_tensor(size_t argument) const { return !strides[argument].empty(); }
  // Returns whether the argument is a tensor that has the order of elements that the result has.
  bool is_whole(size_t argument) const;
};

// Says which calls of a recording are element-wise calls that tiles can run.
class ElementCalls {
 public:
  explicit ElementCalls(const step::Recording& recording) : recording_(recording) {}

  // Returns nothing if the operator is not known to be element-wise, has no kernel that writes into
  // memory of the caller, has other results than one tensor that fills fresh memory (or that it
  // wrote over), or looks at an operand in a way that tiles do not follow. It returns nothing, too,
  // if the trial of tile_trial.h fails.
  std::optional<ElementCall> at(int32_t call);

 private:
  const std::vector<std::string>& overloads(const std::string& name);
  std::optional<c10::OperatorHandle> writing_overload(const c10::FunctionSchema& schema);
  // Sets operator and arguments.
  bool find_operator(const step::Call& call, ElementCall& found);
  // Sets the iteration space.
  bool find_space(ElementCall& found) const;

  const step::Recording& recording_;
  std::map<std::string, std::vector<std::string>> overloads_;  // by name
  std::map<std::string, bool> passed_;                         // the trials, by kind of call
};

// Returns the operator of which an operator that writes over its first operand is a form: "add" of
// "add_". An operator without such an operand is its own.
std::optional<c10::OperatorHandle> functional(const c10::OperatorHandle& op);
// Returns whether the call computes each element of its result from the elements of its operands at
// the same place. `op` is its functional operator.
bool is_element_wise(const step::Call& call, const c10::OperatorHandle& op);
// Returns the single result of a call, if it is a tensor of real numbers that fills memory which
// the call makes, or its first operand, over which it writes. Returns nothing for other calls, for
// those that draw random numbers, and for those that write to something else.
std::optional<step::TensorRef> single_result(const step::Recording& recording, int32_t call);

// Returns the product of a gradient and a derivative of the same geometry, as a call of no
// recording.
ElementCall product_of(const step::TensorRef& a, const step::TensorRef& b,
                       const step::TensorRef& result);

}  // namespace reprise::runtime::internal::rewrite
