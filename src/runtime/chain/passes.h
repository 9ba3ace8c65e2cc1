// Finds the stages that autograd can walk back through in one pass under a plan. A pass costs a
// call of autograd's engine, and nodes of its own at its ends. With one pass for each stage, these
// costs are most of the time by which planned training is slower than plain training.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/run/interpreter.h"
#include "runtime/chain/places.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

// A pass walks back through the stages begin..end-1 of one branch. The program keeps these stages
// one right after the other, in autograd's own way. It also runs their backwards one right after
// the other; values may be freed in between.
struct Pass {
  size_t begin = 0, end = 0;
  std::vector<size_t> parameters;  // of its stages, each once: positions, ascending
  // The values freed between the backward of stage begin + 1 + k and that of the stage before it.
  std::vector<std::vector<ValueIndex>> freed = {};

  bool operator==(const Pass&) const = default;
};

// The passes of a whole program, in the order of the stages.
class Passes {
 public:
  // Each stage is a pass of its own.
  explicit Passes(const std::vector<PreparedStage>& stages);
  // Makes the passes as long as possible. A stage with sharded parameters is a pass of its own,
  // because it holds its gathered gradients until the end of its pass. `copies_gradients` says for
  // each stage whether the end of its backward took memory for copies of gradients when it was
  // measured. A pass takes this memory at its own end, so only its first stage may need it.
  Passes(const PreparedModel& model, const Places& places, const Program& program,
         const std::vector<reprise::Stage>& measured, const std::vector<bool>& copies_gradients);

  const std::vector<Pass>& all() const { return all_; }
  const Pass& of(size_t stage) const { return all_[of_[stage]]; }

 private:
  void begin(const PreparedStage& stage);
  void go_on(const PreparedStage& stage);

  std::vector<Pass> all_;
  std::vector<size_t> of_;  // by stage: the position of its pass in all_
};

}  // namespace reprise::runtime::internal::chain
