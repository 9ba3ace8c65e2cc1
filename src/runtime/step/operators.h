// This file knows about operators what their schemas do not state.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Says whether the operator consists of others and has no kernel of its own on this device. Then
// the operators that it calls are recorded in its place.
bool is_transparent(const c10::OperatorHandle& op, c10::Device device);

// Returns the reason why a call cannot be replayed, or null if it can be. The first function judges
// by the operator, the second one by the arguments.
const char* reason_to_refuse(const c10::OperatorHandle& op);
const char* reason_to_refuse_arguments(const Call& call);

// Gives the constant argument at a position of a call, or null if it is not known.
using Constants = c10::function_ref<const c10::IValue*(size_t)>;

// Says whether the operator asks only for the shape of this argument and never reads its memory, as
// the backward of a pooling does with its input. This is a table. A test replaces the memory of
// each row by other bytes and compares the results.
bool reads_shape_only(const c10::OperatorHandle& op, Constants constants, size_t argument);
bool reads_shape_only(const Call& call, size_t argument);

// Says whether the call writes this argument although its schema does not say so. The audit finds
// others.
bool is_known_to_write(const c10::OperatorHandle& op, Constants constants, size_t argument);
bool is_known_to_write(const Call& call, size_t argument);

// Says whether the call is a batch norm in training mode, which computes the same without its
// running statistics. Sets `statistics` to the positions of these arguments.
bool is_batch_norm(const c10::OperatorHandle& op, Constants constants,
                   std::vector<size_t>* statistics);
bool is_batch_norm(const Call& call, std::vector<size_t>* statistics);

// Says whether the answers of the functions above depend on constant arguments of the call.
bool depends_on_constants(const c10::OperatorHandle& op);

// Says whether the operator returns memory that it leaves to others to write.
bool gives_unwritten_memory(const c10::OperatorHandle& op);

// Says whether it depends on the numbers of its operands whether the call draws random numbers.
bool draws_by_numbers(const Call& call);

// Says whether autograd is walking a graph on this thread.
bool in_backward();

// Says whether a call with these arguments draws from a generator of the caller's own and reads no
// tensor. In a followed step the program makes such a call itself, and its result is host data.
bool draws_apart(c10::ArrayRef<c10::IValue> arguments);

}  // namespace reprise::runtime::internal::step
