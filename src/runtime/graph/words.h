// The words that most files of graph mode speak: those of a recording, its rewriting and its measurement.
#pragma once

#include "runtime/device/median.h"
#include "runtime/device/stopwatch.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/distributed/ranks.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/state/random_state.h"
#include "runtime/step/buckets.h"
#include "runtime/step/circumstances.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/recording.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/step/tensors.h"
#include "runtime/step/updates.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

using device::median;
using device::ProcessorWatch;
using device::shape_text;
using device::time_run;
using device::TimedRun;
using device::typical_time;
using distributed::telling;
using rewrite::CallRealization;
using rewrite::CallVariant;
using rewrite::RewrittenStep;
using state::RandomScope;
using step::Argument;
using step::ArgumentKind;
using step::Bucket;
using step::Buckets;
using step::Call;
using step::Circumstances;
using step::copy_from_host;
using step::copy_to_host;
using step::External;
using step::Filling;
using step::Geometry;
using step::HostBytes;
using step::is_host_read;
using step::LeafGradient;
using step::Memory;
using step::ReadMiss;
using step::Recording;
using step::ReplayScope;
using step::sizes_by_values;
using step::tensor_on;
using step::TensorRef;
using step::Update;
using step::Updates;
using step::Work;
using step::Works;

}  // namespace reprise::runtime::internal::graph
