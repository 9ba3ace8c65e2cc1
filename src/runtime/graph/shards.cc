#include "runtime/graph/shards.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reprise/model/errors.h"
#include "runtime/distributed/shard_layout.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using step::Share;

namespace {

void require_parameter(const Recording& recording, const Filling& filling, const Bucket& bucket) {
  const at::ScalarType type = recording.gradients[filling.leaf].target.scalar_type();
  if (type == bucket.dtype) return;
  throw InputError(
      fmt::format("the optimizer cannot be sharded: the parameter {} has the type {}, and its "
                  "gradient {}. Updated "
                  "parameters travel in the memory of the gradients, so both have one type",
                  filling.name, c10::toString(type), c10::toString(bucket.dtype)));
}

// Gives the parameters of a bucket their places, those of one rank beside each other.
void place(Bucket& bucket, int ranks) {
  int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    Share share{.offset = next};
    for (Filling& filling : bucket.fillings) {
      if (filling.owner != rank) continue;
      filling.place = next;
      next += filling.elements;
    }
    share.elements = next - share.offset;
    bucket.shares.push_back(share);
  }
}

}  // namespace

void divide(Buckets& buckets, const Recording& recording, const Updates& updates, int ranks) {
  std::map<size_t, size_t> update_of;  // by leaf
  for (size_t k = 0; k < updates.each.size(); ++k) update_of[updates.each[k].leaf] = k;
  // The order is that of the optimizer, so that other steps with this optimizer have the same shards.
  std::vector<int64_t> bytes(updates.each.size(), 0);
  for (Bucket& bucket : buckets.all) {
    for (Filling& filling : bucket.fillings) {
      const auto update = update_of.find(filling.leaf);
      if (update == update_of.end()) {
        throw InputError("the optimizer cannot be sharded: the gradient of " + filling.name +
                         " is averaged, and no update of the optimizer uses it");
      }
      require_parameter(recording, filling, bucket);
      filling.update = update->second;
      bytes[filling.update] =
          filling.elements * static_cast<int64_t>(c10::elementSize(bucket.dtype));
    }
  }
  const std::vector<int> owners = distributed::shard_layout(bytes, ranks);
  for (Bucket& bucket : buckets.all) {
    for (Filling& filling : bucket.fillings) filling.owner = owners[filling.update];
    place(bucket, ranks);
  }
  buckets.sharded = true;
}

std::vector<size_t> updates_of(const Buckets& buckets, int rank) {
  std::vector<size_t> all;
  for (const Bucket& bucket : buckets.all) {
    for (const Filling& filling : bucket.fillings) {
      if (filling.owner == rank) all.push_back(filling.update);
    }
  }
  return all;
}

WorkCost cost_of_shards(const Bucket& bucket, const UpdateCosts& costs, int rank) {
  std::vector<WorkCost> of_rank(bucket.shares.size());
  WorkCost most;
  for (const Filling& filling : bucket.fillings) {
    WorkCost& cost = of_rank[filling.owner];
    const WorkCost& one = costs.by_update[filling.update];
    cost.time += one.time;
    cost.workspace = std::max(cost.workspace, one.workspace);
    most.time = std::max(most.time, cost.time);
    most.workspace = std::max(most.workspace, cost.workspace);
  }
  return rank < 0 ? most : of_rank[rank];
}

at::Tensor Sharder::part(const at::Tensor& memory, const Filling& filling, int64_t offset) const {
  Geometry geometry = filling.geometry;
  geometry.offset = offset;
  return tensor_on(memory.storage(), geometry);
}

void Sharder::update(const at::Tensor& memory) const {
  for (const Filling& filling : bucket_.fillings) {
    if (!updater_->owns(filling.update)) continue;
    updater_->update(filling.update, part(memory, filling, filling.offset));
  }
  const at::NoGradGuard no_grad;
  for (const Filling& filling : bucket_.fillings) {
    if (!updater_->owns(filling.update)) continue;
    part(memory, filling, filling.place).copy_(updater_->parameter(filling.update).detach());
  }
}

void Sharder::start(const at::Tensor& memory) const {
  averager_->start_gather(
      number_, memory, bucket_.shares,
      fmt::format("the exchange of the updated parameters of bucket {}", number_ + 1));
}

void Sharder::finish(const at::Tensor& memory) const {
  averager_->wait_gather(number_);
  for (const Filling& filling : bucket_.fillings) {
    if (updater_->owns(filling.update)) continue;
    updater_->take(filling.update, part(memory, filling, filling.place));
  }
}

}  // namespace reprise::runtime::internal::graph
