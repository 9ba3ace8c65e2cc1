// These are the checks of stages, which a chain and a branch of a join have in common.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/errors.h"

namespace reprise::internal {

// Sums adds up every size and every time of a problem. It refuses negative numbers and sums above
// 64 bits.
class Sums {
 public:
  void add(Bytes bytes, const std::string& pointer) { bytes_ = sum(bytes_, bytes, pointer); }
  void add(Nanos time, const std::string& pointer) { time_ = sum(time_, time, pointer); }
  void add(const Cost& cost, const std::string& pointer) {
    add(cost.time, pointer + "/ns");
    add(cost.workspace, pointer + "/workspace_bytes");
  }

 private:
  template <class Unit>
  static Quantity<Unit> sum(Quantity<Unit> total, Quantity<Unit> part, const std::string& pointer) {
    if (part.count() < 0) {
      throw InputError(
          fmt::format("{} is negative; sizes and times are integers >= 0", part.count()),
          {.pointer = pointer});
    }
    int64_t result = 0;
    if (__builtin_add_overflow(total.count(), part.count(), &result)) {
      throw InputError(
          "the sum of all sizes or of all times does not fit 64 bits; use smaller numbers",
          {.pointer = pointer});
    }
    return Quantity<Unit>(result);
  }

  Bytes bytes_;
  Nanos time_;
};

// Checks an input and the stages behind it, which a chain or a branch has at `pointer`. `what`
// names that.
void check_stages(const ChainInput& input, const std::vector<Stage>& stages, const char* what,
                  const std::string& pointer, Sums& sums);
// Checks that no option of the stages reads what the loss gives back.
void check_loss(const ChainLoss& loss, const std::vector<Stage>& stages);
// Removes the options that are less exact than `allowed`. Throws InputError if a stage loses all.
void restrict_stages(std::vector<Stage>& stages, Exactness allowed, const std::string& pointer);

}  // namespace reprise::internal
