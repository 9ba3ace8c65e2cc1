#include "plan/chain/cost_curve.h"

#include <algorithm>
#include <iterator>

namespace reprise::internal::chain {

int64_t cost_at(CurveView function, int64_t memory) {
  const auto above =
      std::upper_bound(function.begin(), function.end(), memory,
                       [](int64_t value, const CurvePoint& step) { return value < step.memory; });
  return above == function.begin() ? kInfeasible : std::prev(above)->cost;
}

CurveView zero_function() {
  // The memory is far below every real size, and far enough from the end of int64 to be shifted.
  static constexpr CurvePoint kZero[] = {{std::numeric_limits<int64_t>::min() / 2, 0}};
  return kZero;
}

// A Cursor walks the steps of a sum from large memory to small. `left` and `right` count the steps
// that are still in play; the current step is the last of them.
struct Envelope::Cursor {
  const Shifted& a;
  const Shifted& b;
  int64_t extra;
  int64_t from;
  size_t left;
  size_t right;

  int64_t left_memory() const { return a.function[left - 1].memory + a.shift; }
  int64_t right_memory() const { return b.function[right - 1].memory + b.shift; }
  int64_t memory() const { return std::max({left_memory(), right_memory(), from}); }
  int64_t cost() const { return a.function[left - 1].cost + b.function[right - 1].cost + extra; }

  // Counts how many of the first `count` steps lie below the limit. The search gallops from the
  // end, because the answer is usually near.
  static size_t count_below(const Shifted& f, size_t count, int64_t limit) {
    // memory + shift is a size that some plan needs, whereas limit - shift might not fit 64 bits.
    const auto above = [&](size_t k) { return f.function[k].memory + f.shift >= limit; };
    size_t stride = 1;
    while (count >= stride && above(count - stride)) {
      count -= stride;
      stride *= 2;
    }
    for (; stride > 0; stride /= 2) {
      if (count >= stride && above(count - stride)) count -= stride;
    }
    return count;
  }

  // Moves to the largest memory below `limit`. Returns false if there is none.
  bool drop_to(int64_t limit) {
    left = count_below(a, left, limit);
    right = count_below(b, right, limit);
    return left > 0 && right > 0 && from < limit;
  }

  // Moves to the next smaller memory. Returns false at the end.
  bool advance() {
    const int64_t now = memory();
    if (now == from) return false;
    const bool move_left = left_memory() == now;
    const bool move_right = right_memory() == now;
    if (move_left) --left;
    if (move_right) --right;
    return left > 0 && right > 0;
  }
};

void Envelope::reset(int64_t memory_cap, int64_t cost_cap) {
  steps_.clear();
  memory_cap_ = memory_cap;
  cost_cap_ = cost_cap;
}

// Counts how many steps of the envelope cost at most `cost`, given that the first `count` do.
// Gallops.
size_t Envelope::count_up_to(int64_t cost, size_t count) const {
  size_t stride = 1;
  while (count + stride <= steps_.size() && steps_[count + stride - 1].cost <= cost) {
    count += stride;
    stride *= 2;
  }
  for (; stride > 0; stride /= 2) {
    if (count + stride <= steps_.size() && steps_[count + stride - 1].cost <= cost) count += stride;
  }
  return count;
}

// Moves the cursor to the first step of the sum that improves the envelope, and finds how many of
// the envelope's cheap steps stay as they are. Returns false if nothing improves.
bool Envelope::skip_dominated(Cursor& cursor, size_t& settled) const {
  // memory_cap_ + 1 would overflow for an unlimited budget; no real step is that large.
  int64_t limit = memory_cap_ == kInfeasible ? kInfeasible : memory_cap_ + 1;
  settled = 0;
  while (cursor.drop_to(limit)) {
    const int64_t cost = cursor.cost();
    if (cost > cost_cap_) return false;
    const size_t before = settled;
    settled = count_up_to(cost, settled);
    if (settled == before) return true;
    limit = steps_[settled - 1].memory;
  }
  return false;
}

void Envelope::push(const CurvePoint& step) {
  if (!steps_.empty()) {
    if (step.memory >= steps_.back().memory) return;
    if (step.cost == steps_.back().cost) {
      steps_.back().memory = step.memory;
      return;
    }
  }
  steps_.push_back(step);
}

void Envelope::add_sum(const Shifted& left, const Shifted& right, int64_t extra, int64_t from) {
  if (left.function.empty() || right.function.empty()) return;
  Cursor cursor{left, right, extra, from, left.function.size(), right.function.size()};
  size_t settled = 0;
  if (!skip_dominated(cursor, settled)) return;

  const auto rest = steps_.begin() + static_cast<std::ptrdiff_t>(settled);
  tail_.assign(rest, steps_.end());
  steps_.erase(rest, steps_.end());
  size_t old = 0;
  do {
    const CurvePoint step{cursor.memory(), cursor.cost()};
    if (step.cost > cost_cap_) break;
    while (old < tail_.size() && tail_[old].cost <= step.cost) push(tail_[old++]);
    push(step);
  } while (cursor.advance());
  while (old < tail_.size()) push(tail_[old++]);
}

}  // namespace reprise::internal::chain
