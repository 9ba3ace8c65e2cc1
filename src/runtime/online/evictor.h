// Chooses values and takes their memory away.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/online/follower.h"
#include "runtime/online/heuristics.h"
#include "runtime/online/remaker.h"
#include "runtime/online/values.h"

namespace reprise::runtime::internal::online {

class Evictor {
 public:
  Evictor(Values& values, Scorer& scorer, Remaker& remaker, const Clock& clock, int64_t smallest,
          c10::Device device)
      : values_(values),
        scorer_(scorer),
        remaker_(remaker),
        clock_(clock),
        smallest_(smallest),
        device_(device) {}

  // From now on, what the plan of a follower releases is evicted before all else.
  void follow(PlanFollower* follower) { follower_ = follower; }

  // Evicts the values with the least scores until so many bytes are free. If that is not enough, the
  // plan is given up with all that it holds, and then calls that wait lose operands that they have.
  // Returns an empty text, or what holds the memory that is left.
  std::string make_room(int64_t bytes);

  int64_t evictions() const { return evictions_; }
  int64_t evicted_bytes() const { return evicted_bytes_; }

 private:
  struct Candidate {
    Value* value;
    double base;
  };

  int64_t evict(Value& value);
  int64_t evict_by_score(int64_t bytes);
  int64_t sweep();
  bool may_be_evicted(const Value& value) const;
  void find_candidates();
  size_t best_candidate();
  std::string what_is_held();

  Values& values_;
  Scorer& scorer_;
  Remaker& remaker_;
  const Clock& clock_;
  const int64_t smallest_;
  const c10::Device device_;
  PlanFollower* follower_ = nullptr;
  std::vector<Candidate> candidates_;
  int64_t evictions_ = 0, evicted_bytes_ = 0;
};

}  // namespace reprise::runtime::internal::online
