#include "runtime/graph/averager.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using step::Arrival;
using step::HostRead;
using step::Share;

namespace {

// Returns the number of a bucket's sum, and of the exchange of its shares, among all that ranks
// have begun.
size_t number_of_sum(size_t bucket) { return 2 * bucket; }
size_t number_of_gather(size_t bucket) { return 2 * bucket + 1; }

}  // namespace

Averager::Averager(std::shared_ptr<distributed::Ranks> ranks) : ranks_(std::move(ranks)) {}

void Averager::begin(bool synchronized) {
  ranks_->require_sound();
  running_ = true;
  synchronized_ = synchronized;
  waited_ = {};
  under_way_.clear();
}

void Averager::wait_for(size_t number) {
  if (under_way_.erase(number) == 0) return;
  const auto begun = std::chrono::steady_clock::now();
  ranks_->wait(number);
  waited_ += Nanos(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count());
}

void Averager::fill(const at::Tensor& place, const at::Tensor& gradient,
                    const LeafGradient& leaf) const {
  if (running_ && !synchronized_) {
    place.copy_(gradient);
    return;
  }
  // DistributedDataParallel multiplies by the same number, in one operation where it can.
  const at::Tensor share = at::native::wrapped_scalar_tensor(1.0 / ranks_->size());
  at::Tensor out = place;
  const at::Tensor& before = leaf.target.grad();
  if (!running_ || !before.defined()) {
    at::mul_out(out, gradient, share);
    return;
  }
  if (leaf.arrival == Arrival::kZeroed) {
    at::add_out(out, gradient, at::native::wrapped_scalar_tensor(0.0));  // -0 becomes 0.
  } else {
    at::add_out(out, before, gradient);
  }
  out.mul_(share);
}

void Averager::start(size_t bucket, const at::Tensor& memory, const std::string& what) {
  if (!synchronizes()) return;
  ranks_->start_sum(number_of_sum(bucket), memory, what);
  under_way_.insert(number_of_sum(bucket));
}

void Averager::wait(size_t bucket) { wait_for(number_of_sum(bucket)); }

void Averager::start_gather(size_t bucket, const at::Tensor& memory,
                            const std::vector<Share>& shares, const std::string& what) {
  if (!synchronizes()) return;
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const Share& share : shares) parts.emplace_back(share.offset, share.elements);
  ranks_->start_gather(number_of_gather(bucket), memory, parts, what);
  under_way_.insert(number_of_gather(bucket));
}

void Averager::agree_on_read(const HostRead& expected, c10::Device device,
                             const std::function<void()>& guard) const {
  std::optional<ReadMiss> miss;
  try {
    guard();
  } catch (const ReadMiss& found) {
    miss = found;
  }
  if (running_) {
    const int64_t found = miss ? miss->found() : expected.expected;
    std::vector<int64_t> numbers{found, -found};
    ranks_->maxima(numbers, device, "a number that the step reads on the host");
    if (numbers[0] != -numbers[1]) {
      throw InputError(fmt::format(
          "the ranks of the process group read different numbers ({} and {}), so they would take "
          "different ways and wait for each other: {}. Average the number over the ranks before "
          "the step reads it, or read it behind the step",
          step::text_of(expected, -numbers[1]), step::text_of(expected, numbers[0]),
          step::describe(expected)));
    }
  }
  if (miss) throw *miss;
}

void Averager::finish() {
  while (!under_way_.empty()) wait_for(*under_way_.begin());
}

void Averager::wait_gather(size_t bucket) { wait_for(number_of_gather(bucket)); }

}  // namespace reprise::runtime::internal::graph
