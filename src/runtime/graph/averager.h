// Runs the works of buckets: copies gradients into them, and sums them over a process group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reprise/model/units.h"
#include "runtime/distributed/ranks.h"
#include "runtime/step/buckets.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::graph {

// An Averager is shared by the works of a captured step and by its state.
class Averager {
 public:
  explicit Averager(std::shared_ptr<distributed::Ranks> ranks);

  // Says that a run of the step begins. It averages if it is `synchronized`; else the buckets hold
  // the gradients of this rank alone. Before the first run and after end(), the works do not touch
  // gradients that are there already, and nothing is sent.
  void begin(bool synchronized);
  // Returns how long the run has waited for sums and exchanges.
  Nanos waited() const { return waited_; }
  void end() { running_ = false; }
  bool synchronizes() const { return running_ && synchronized_; }

  // Writes the gradient of a leaf to its place in a bucket. In a run that averages, a gradient that
  // is there already is added first, and the sum is divided by the number of ranks.
  void fill(const at::Tensor& place, const at::Tensor& gradient,
            const step::LeafGradient& leaf) const;
  void start(size_t bucket, const at::Tensor& memory, const std::string& what);
  // Waits for the sum, unless it has been waited for.
  void wait(size_t bucket);
  // These functions start and end the exchange of shares of a bucket that has been summed.
  void start_gather(size_t bucket, const at::Tensor& memory, const std::vector<step::Share>& shares,
                    const std::string& what);
  void wait_gather(size_t bucket);
  // Runs the guard of a host read. In a run of the step, ranks that read another number than the
  // expected one throw a ReadMiss together, and ranks with different numbers throw InputError.
  void agree_on_read(const step::HostRead& expected, c10::Device device,
                     const std::function<void()>& guard) const;
  // Waits for all sums and exchanges that are under way.
  void finish();

 private:
  std::shared_ptr<distributed::Ranks> ranks_;
  void wait_for(size_t number);

  bool running_ = false, synchronized_ = true;
  std::set<size_t> under_way_;  // numbers of sums and exchanges
  Nanos waited_;
};

}  // namespace reprise::runtime::internal::graph
