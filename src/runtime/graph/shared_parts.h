// Says how the ranks of a process group share out a single call: which operands a rank takes a part
// of, and where its part of the result lies.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/units.h"
#include "runtime/device/stopwatch.h"
#include "runtime/distributed/ranks.h"
#include "runtime/rewrite/rows/sharers.h"
#include "runtime/step/recording.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

// A Slice is a tensor of a call, and a dimension along which it is divided into equal parts.
struct Slice {
  size_t index = 0;  // of an argument, or of a return value
  int64_t dimension = 0;

  bool operator==(const Slice&) const = default;
};

// A PartialRun runs the operator once, on this rank's slices of some arguments. It makes this
// rank's slices of some return values, and the ranks gather the rest.
struct PartialRun {
  std::vector<Slice> arguments, results;
  std::vector<std::pair<size_t, c10::IValue>> constants = {};  // that replace arguments
};

// A SharedWay is one way to share out a call. The placement of the slices is DTensor's Shard(d), on
// a mesh of one dimension.
struct SharedWay {
  std::string name;  // "rows"
  std::vector<PartialRun> runs;
};

// Returns the ways in which so many ranks can share out the call: products of matrices,
// convolutions and attentions, and their backwards. The ranks must divide the dimensions that are
// cut. It depends on the recording alone, so that all ranks have the same ways.
std::vector<SharedWay> shared_ways(const step::Call& call, const step::Recording& recording,
                                   int64_t ranks);

// Returns the work with another kernel, which shares it out. All ranks run it at the same time.
step::Work shared_work(const step::Work& whole, const step::Call& call, const SharedWay& way,
                       const std::shared_ptr<const rewrite::Sharers>& ranks);

// The ranks of a process group. While it measures, the exchanges of a work begin only when all ranks
// are ready, and their times are kept apart from that of the work.
class SharingRanks final : public rewrite::Sharers {
 public:
  explicit SharingRanks(std::shared_ptr<distributed::Ranks> ranks) : ranks_(std::move(ranks)) {}

  int64_t rank() const override { return ranks_->rank(); }
  int64_t size() const override { return ranks_->size(); }
  void gather(const at::Tensor& all, const std::string& what) const override;
  void sum(const at::Tensor& tensor, const std::string& what) const override;

  struct Exchanged {
    Nanos time;            // of the exchanges alone
    device::TimedRun all;  // with the waits for the ranks to be ready
  };
  // Measures the exchanges from here on, up to taken().
  void begin_measuring() const { measured_.emplace(); }
  Exchanged taken() const { return *std::exchange(measured_, std::nullopt); }

 private:
  template <class Exchange>
  void run(Exchange&& exchange) const;

  const std::shared_ptr<distributed::Ranks> ranks_;
  mutable std::optional<Exchanged> measured_;
};

}  // namespace reprise::runtime::internal::graph
