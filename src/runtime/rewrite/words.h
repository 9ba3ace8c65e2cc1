// The words of a recording that all rows of the registry speak: they come from runtime/step.
#pragma once

#include "runtime/step/recording.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/tensors.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::rewrite {

using step::Argument;
using step::ArgumentKind;
using step::Call;
using step::extent_bytes;
using step::Geometry;
using step::Kernel;
using step::Memory;
using step::Recording;
using step::ReplayScope;
using step::StepValue;
using step::tensor_on;
using step::TensorRef;
using step::Work;

}  // namespace reprise::runtime::internal::rewrite
