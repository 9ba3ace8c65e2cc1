// Finds the updates that an optimizer does in a captured step.
#pragma once

#include <cstddef>

#include "reprise/runtime/capture.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::step {

// Finds the updates that options.optimizer does in this step; there are none without an optimizer.
// Their works will stand in Works::all from the position `first_work` on: first `before`, then that
// of each update, then `whole`. Throws InputError, with the reason, when the gradients of the step
// are not those that the optimizer uses.
Updates find_updates(const Recording& recording, const CaptureOptions& options, size_t first_work);

}  // namespace reprise::runtime::internal::step
