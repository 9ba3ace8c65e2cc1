// Which stages a plan lets autograd walk back through in one pass. A pass costs a call of autograd's engine and nodes
// of its own where it ends: with one for each stage, that is most of what planned training takes more than plain
// training does.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/chain/prepare.h"
#include "reprise/run/interpreter.h"

namespace reprise::runtime::internal::chain {

// Stages begin..end-1. The program keeps them one right after the other as autograd does it, and runs their backwards
// one right after the other; values may be freed in between.
struct Pass {
  size_t begin = 0, end = 0;
  std::vector<size_t> parameters;  // of its stages, each once: positions, ascending
  // Between the backward of stage begin + 1 + k and that of the stage before it.
  std::vector<std::vector<ValueIndex>> freed = {};

  bool operator==(const Pass&) const = default;
};

// Of a whole program: in the order of the stages.
class Passes {
 public:
  // Each stage by itself.
  explicit Passes(const std::vector<PreparedStage>& stages);
  // As long as possible. `copies_gradients`: per stage, whether memory for that was taken at the end of its backward
  // when it was measured. A pass takes it at its own end, so that only its first stage may.
  Passes(const std::vector<PreparedStage>& stages, const Program& program,
         const std::vector<bool>& copies_gradients);

  const std::vector<Pass>& all() const { return all_; }
  const Pass& of(size_t stage) const { return all_[of_[stage]]; }

 private:
  void begin(const PreparedStage& stage);
  void go_on(const PreparedStage& stage);

  std::vector<Pass> all_;
  std::vector<size_t> of_;  // per stage
};

}  // namespace reprise::runtime::internal::chain
