// Says how long a step takes in which several copies of a pipeline add up their gradients.
//
// Problem: replicas of a pipeline train on different micro-batches. Each device adds up the
// gradients of its stages with the devices of the other replicas that have the same stages, by a
// ring. A gradient is complete when the last micro-batch has gone back through its stage, and the
// sum can run beside what the device still computes.
//
// The gradients of a device are summed in buckets: in the order in which they are complete, each
// bucket of at least so many bytes, as DistributedDataParallel does it. A ring over d replicas
// takes 2 (d - 1) (bytes / d / bandwidth + latency) (Patarasu, Yuan, "Bandwidth optimal all-reduce
// algorithms", JPDC 2009, section 4). A device carries one ring after the other, beside the
// messages of its pipeline.
//
// Not handled: rings and messages that share a link, and replicas of different speed.
#pragma once

#include <cstdint>

#include "reprise/model/pipeline.h"
#include "reprise/model/units.h"

namespace reprise {

struct Replicas {
  int64_t count = 1;
  int64_t bytes_per_second = 1;  // between two replicas
  Nanos latency = {};
  Bytes bucket = Bytes(25 << 20);  // of all buckets but the last one of a device

  bool operator==(const Replicas&) const = default;
};

struct ReplicaTimes {
  Nanos pipeline;  // the time of the pipeline alone
  Nanos time;      // of the step, with all rings
  Nanos busy;      // the longest that a device carries rings

  bool operator==(const ReplicaTimes&) const = default;
};

// Returns the times of a step. Throws InputError for replicas, a bandwidth or a bucket below 1, for
// a negative latency, and as simulate() of check/pipeline.h does. The cost is that of simulate().
ReplicaTimes simulate(const Pipeline& pipeline, const PipelinePlan& plan, const Replicas& replicas);

}  // namespace reprise
