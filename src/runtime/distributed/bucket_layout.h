// This is the layout of the buckets in which gradients are averaged over several processes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::distributed {

// A BucketPiece is a gradient that goes into a bucket.
struct BucketPiece {
  int64_t bytes = 0;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::kCPU;
};

// Returns the buckets, each with the positions of its pieces in the order in which they lie there.
//
// This is the layout that DistributedDataParallel has from its second step on. The pieces come in the
// order in which they are ready. A bucket has pieces of one type and one device. It is complete when
// it has at least as many bytes as its limit: the first limit for the first bucket of a type and
// device, the last limit for all that follow the last one. Buckets that are not complete come behind
// those that are, in the order in which they were begun.
std::vector<std::vector<size_t>> bucket_layout(const std::vector<BucketPiece>& pieces,
                                               const std::vector<int64_t>& limits);

}  // namespace reprise::runtime::internal::distributed
