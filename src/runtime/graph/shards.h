// These are the shards of an optimizer's state: each rank of a process group updates its own
// parameters of every bucket, and gets the others from the ranks that have updated them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/graph/averager.h"
#include "runtime/graph/costs.h"
#include "runtime/graph/update_costs.h"
#include "runtime/graph/updater.h"
#include "runtime/step/buckets.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::graph {

// Gives each parameter of the buckets to one of `ranks` ranks, and a place in its bucket beside the
// other parameters of that rank. Throws InputError if a gradient has no update, or another type
// than its parameter.
void divide(step::Buckets& buckets, const step::Recording& recording, const step::Updates& updates,
            int ranks);

// Returns the updates that a rank does.
std::vector<size_t> updates_of(const step::Buckets& buckets, int rank);

// Returns the cost of the updates of a bucket. A rank waits for the slowest one, so the time is
// that of the rank that takes longest, and the memory that of the rank that needs most. With a
// `rank` it is the cost on that rank.
WorkCost cost_of_shards(const step::Bucket& bucket, const UpdateCosts& costs, int rank = -1);

// A Sharder runs the works of one sharded bucket.
class Sharder {
 public:
  Sharder(size_t number, step::Bucket bucket, std::shared_ptr<Averager> averager,
          std::shared_ptr<Updater> updater)
      : number_(number),
        bucket_(std::move(bucket)),
        averager_(std::move(averager)),
        updater_(std::move(updater)) {}

  // Updates the parameters of this rank from the averages in `memory`. Then the averages are used
  // up, and the updated parameters go to their places there.
  void update(const at::Tensor& memory) const;
  // Starts the exchange of shares.
  void start(const at::Tensor& memory) const;
  // Waits for the exchange, and copies the shares of the other ranks into the parameters.
  void finish(const at::Tensor& memory) const;

 private:
  // Returns the part of the bucket with the shape of a parameter at this offset.
  at::Tensor part(const at::Tensor& memory, const step::Filling& filling, int64_t offset) const;

  size_t number_;
  step::Bucket bucket_;
  std::shared_ptr<Averager> averager_;
  std::shared_ptr<Updater> updater_;
};

}  // namespace reprise::runtime::internal::graph
