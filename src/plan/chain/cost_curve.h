// A cost curve is a non-increasing step function of memory: the cost of a part of a chain when m
// bytes are at its disposal. A curve is the list of its steps (least memory, cost), memory
// ascending and cost strictly descending. Below its first step it is infeasible.
//
//   cost |      o-----            f = {(3, 9), (5, 4), (8, 1)}
//        |        o-------        f(2) infeasible, f(3) = f(4) = 9, f(5) = 4, f(100) = 1
//        |           o------->
//        +------3-5--8-------- m
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reprise::internal::chain {

struct CurvePoint {
  int64_t memory = 0;
  int64_t cost = 0;

  bool operator==(const CurvePoint&) const = default;
};

using CostCurve = std::vector<CurvePoint>;
using CurveView = std::span<const CurvePoint>;

inline constexpr int64_t kInfeasible = std::numeric_limits<int64_t>::max();

// Returns f(memory), or kInfeasible. O(log steps).
int64_t cost_at(CurveView function, int64_t memory);

// A Shifted is m -> function(m - shift). The shift may be negative.
struct Shifted {
  CurveView function;
  int64_t shift = 0;
};

// Returns the constant 0, which is feasible everywhere.
CurveView zero_function();

// An Envelope is the lower envelope (point-wise minimum) of functions that are added one by one.
class Envelope {
 public:
  // Clears the envelope. From now on it leaves out steps that need more than memory_cap or cost
  // more than cost_cap.
  void reset(int64_t memory_cap, int64_t cost_cap);

  // Takes the minimum with m -> left(m) + right(m) + extra for m >= from. Costs O(steps that change
  // + log): the function never touches the cheap steps of the envelope that the sum cannot beat.
  void add_sum(const Shifted& left, const Shifted& right, int64_t extra, int64_t from);

  int64_t memory_cap() const { return memory_cap_; }
  int64_t cost_cap() const { return cost_cap_; }
  bool empty() const { return steps_.empty(); }
  const CurvePoint& dearest() const { return steps_.back(); }  // also the step of least memory
  CostCurve function() const { return {steps_.rbegin(), steps_.rend()}; }
  // Swaps the steps for those of another envelope: memory descending, cost strictly ascending.
  void exchange(std::vector<CurvePoint>& steps) { steps_.swap(steps); }

 private:
  struct Cursor;

  size_t count_up_to(int64_t cost, size_t count) const;
  bool skip_dominated(Cursor& cursor, size_t& settled) const;
  void push(const CurvePoint& step);

  // Memory descends and cost strictly ascends, so new steps change only the end.
  std::vector<CurvePoint> steps_;
  std::vector<CurvePoint> tail_;  // scratch
  int64_t memory_cap_ = 0;
  int64_t cost_cap_ = 0;
};

}  // namespace reprise::internal::chain
