// These are the buckets in which the gradients of a captured step are averaged over several
// processes, as values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// A Filling is one gradient of a bucket.
struct Filling {
  size_t leaf = 0;     // position of the gradient in Recording::gradients
  int64_t offset = 0;  // in elements: where it lies in the bucket
  int64_t elements = 0;
  int32_t value = -1;      // the gradient as the backward leaves it, in Recording::values
  int32_t work = -1;       // position in Works::all of the work that copies it there
  int32_t back = -1;       // the work that copies its average back, if calls read that
  std::string name = {};   // of the parameter
  Geometry geometry = {};  // of the gradient in the bucket
  // If the optimizer's state is sharded: the rank that updates the parameter, the position of its
  // update in Updates::each, and where the updated parameter lies in the bucket, in elements.
  int owner = -1;
  size_t update = 0;
  int64_t place = 0;
};

// A Share is the part of a bucket with the updated parameters of one rank.
struct Share {
  int64_t offset = 0, elements = 0;
};

// A Bucket is memory that is filled with gradients, and then summed over all processes at once.
struct Bucket {
  std::vector<Filling> fillings = {};  // in the order of their places, which is that of their works
  int64_t elements = 0;
  at::ScalarType dtype = at::kFloat;
  // Positions in Works::all: the work that starts the sum, and the one that waits for its end.
  int32_t start = -1, wait = -1;
  // If the optimizer's state is sharded: the share of each rank, and the works that update the
  // parameters of this rank, start the exchange of shares, and wait for it.
  std::vector<Share> shares = {};
  int32_t update = -1, gather = -1, gathered = -1;
};

// Buckets are all buckets of a step, in the order in which their sums start. There are none unless
// the step is captured for a process group.
struct Buckets {
  std::vector<Bucket> all = {};
  std::vector<int32_t> of_leaf = {};     // by leaf: its bucket; -1: none
  std::vector<TensorRef> averages = {};  // by leaf: its gradient in the bucket, after the wait
  bool sharded = false;                  // whether each rank updates a shard of the parameters
  // The first call behind the backward that uses a gradient, as clipping does; -1: there is none. Such
  // calls use averages: these are copied back into the memory of the gradients before the call.
  int32_t reader = -1;
  std::map<int32_t, int32_t> average_of = {};  // by value of a gradient: that of its average

  bool has(size_t leaf) const { return leaf < of_leaf.size() && of_leaf[leaf] >= 0; }
  // Returns the gradient of a leaf as the step leaves it: averaged if it lies in a bucket.
  TensorRef gradient(const Recording& recording, size_t leaf) const {
    return has(leaf) && !averages.empty() ? averages[leaf]
                                          : averaged(recording.gradients[leaf].gradient);
  }
  // Returns what stands for a tensor of the recording behind its backward.
  TensorRef averaged(TensorRef ref) const {
    const auto found = average_of.find(ref.memory == Memory::kValue ? ref.index : -1);
    if (found != average_of.end()) ref.index = found->second;
    return ref;
  }
};

}  // namespace reprise::runtime::internal::step
