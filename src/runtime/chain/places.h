// Says where the ops and the values of a lowered problem stand among the stages and the boundaries
// of a model.
#pragma once

#include <cstddef>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/join.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

class Places {
 public:
  enum class Kind { kActivation, kGradient, kWeightGradients, kSaved };
  struct Place {
    Kind kind = Kind::kActivation;
    size_t position = 0;  // a boundary; of weight gradients and saved values, a stage

    bool operator==(const Place&) const = default;
  };

  Places() = default;
  // The problem has these stages, one branch after the other. Its backwards run in this order. A
  // chain has the order of a single branch.
  Places(const PreparedModel& model, const std::vector<reprise::Stage>& stages,
         const Interleaving& order);

  size_t stages() const { return backwards_.size(); }
  // Ops below stages() are the forwards of the stages. Then come the loss and the backwards.
  bool is_forward(OpIndex op) const { return static_cast<size_t>(op) < stages(); }
  size_t stage_of_backward(OpIndex op) const {
    return backwards_[static_cast<size_t>(op) - stages() - 1];
  }

  const Place& of(ValueIndex value) const { return places_[value]; }
  // These functions return the value that a stage writes, and the one that it saves with an option.
  ValueIndex output(size_t stage) const { return outputs_[stage]; }
  ValueIndex saved(size_t stage, size_t option) const {
    return first_saved_[stage] + static_cast<ValueIndex>(option);
  }

 private:
  std::vector<size_t> backwards_;  // stages
  std::vector<Place> places_;      // by value
  std::vector<ValueIndex> outputs_, first_saved_;
};

}  // namespace reprise::runtime::internal::chain
