// These are the facts about an operator that online mode needs at each call, looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <string>
#include <vector>

namespace reprise::runtime::internal::online {

struct ArgumentFacts {
  bool written = false;
  bool shape_only = false;  // its kernel for the CPU asks for the shape and never reads the bytes
};

struct OperatorFacts {
  OperatorFacts(const c10::OperatorHandle& handle, c10::Device device);

  c10::OperatorHandle op;
  std::string name;  // "aten::add"
  std::vector<ArgumentFacts> arguments;
  bool depends_on_constants = false;  // `arguments` have to be asked for at each call
  size_t results = 0;
  bool transparent = false;  // it consists of other operators, which are recorded in its place
  bool view = false;         // its results look at memory of its arguments, and it writes nothing
  bool gives_blank_memory = false;
  bool draws = false;  // it says that it may draw random numbers
  // It may run again. An operator from outside of PyTorch may have effects or a state that no schema
  // shows, so it must carry the tag pt2_compliant_tag, as torch.library.custom_op() sets it.
  bool repeatable = false;
};

// Returns the facts of the operator that is called in a step on the device, or null if the event is
// none of an operator. The facts live as long as the thread.
const OperatorFacts* facts_of(const at::RecordFunction& event, c10::Device device);

}  // namespace reprise::runtime::internal::online
