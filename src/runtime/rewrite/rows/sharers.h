// The processes that share out the work of a step, as an alternative sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace reprise::runtime::internal::rewrite {

// All ranks call gather() and sum() in the same order. They return when the other ranks are there,
// and throw PeerError if one of them has failed. `what` says in a message what is waited for.
class Sharers {
 public:
  virtual ~Sharers() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // The tensor has one dimension and consists of one part for each rank, by rank, all of one size.
  // Each rank has made its own part. Fills in the others.
  virtual void gather(const at::Tensor& all, const std::string& what) const = 0;
  // Makes the tensor, which is dense, the sum of those of all ranks, with the same bits on all of
  // them.
  virtual void sum(const at::Tensor& tensor, const std::string& what) const = 0;
};

}  // namespace reprise::runtime::internal::rewrite
