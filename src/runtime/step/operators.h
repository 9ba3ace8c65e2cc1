// What the capture has to know of operators beyond their schemas.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Operators that consist of others and have no kernel of their own on this device: what they call is
// recorded in their place.
bool is_transparent(const c10::OperatorHandle& op, c10::Device device);

// Why a call of this operator cannot be replayed; null if it can. The second one
// judges by the arguments.
const char* reason_to_refuse(const c10::OperatorHandle& op);
const char* reason_to_refuse_arguments(const Call& call);

// Whether the operator never reads the memory of this argument of the call: it asks for its shape only
// (the backward of a pooling for that of its input). A table; a test replaces each such memory by
// other bytes and compares the results.
bool reads_shape_only(const Call& call, size_t argument);

// Whether the call writes this argument although its schema does not say so. The audit finds others.
bool is_known_to_write(const Call& call, size_t argument);

// A batch norm in training mode. Without running statistics it computes the same and leaves them alone;
// true if these are the arguments to leave out, by position.
bool is_batch_norm(const Call& call, std::vector<size_t>* statistics);

// Whether autograd is walking a graph on this thread.
bool in_backward();

}  // namespace reprise::runtime::internal::step
