// Puts the gradients of a captured step into buckets that are averaged over a process group.
#pragma once

#include "reprise/runtime/capture.h"
#include "runtime/graph/averager.h"
#include "runtime/graph/updater.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/step/buckets.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::graph {

// Lays out the buckets of the step's parameters, as DistributedDataParallel does, and with
// options.shard_optimizer divides the parameters among `ranks` ranks. Gradients of inputs are not
// averaged. Throws InputError, with the reason, for a step whose gradients cannot be averaged:
// a step that makes gradients behind calls that use some.
step::Buckets find_buckets(const step::Recording& recording, const step::Updates& updates,
                           const CaptureOptions& options, int ranks);

// Adds the values and the works of the buckets to the step, and lets updates read averages. The
// works of a bucket copy one gradient after the other there, start the sum, and wait for it. Those
// of a sharded bucket go on: they update the parameters of this rank, and exchange the updated
// ones. All of them use one memory: each overwrites the value that the one before it has made.
void add_buckets(rewrite::RewrittenStep& step, step::Buckets buckets,
                 const std::shared_ptr<Averager>& averager,
                 const std::shared_ptr<Updater>& updater);

}  // namespace reprise::runtime::internal::graph
