// Ways to run a stage so that its backward can follow, with less memory than autograd takes for it: options of the
// stage (model/chain.h), of the same bits.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/stage.h"
#include "saved/nodes.h"

namespace reprise::runtime {

// What is saved in another way than as it is.
struct Keeping {
  bool one_bit_mask = false;   // dropout's factors
  bool small_indices = false;  // max pooling's
  // Results of activations and norms are made again from what is saved anyway, at the first node of the
  // backward that reads them.
  bool rebuild = false;

  bool operator==(const Keeping&) const = default;
};

// The options of a stage in this order, the first as autograd does it; how each of them keeps.
struct NamedKeeping {
  const char* name;  // "keep", "smaller", "rebuild"
  Keeping keeping;
};
// InputError as validate_for_chain().
std::vector<NamedKeeping> keepings(const AlternativeOptions& allowed);

// A stage that has run: the graph that autograd recorded, and what it came from and led to.
struct Recorded {
  const torch::autograd::edge_list& roots;
  const Leaves& leaves;
  const Tensors& outputs;
  bool random = false;  // the stage draws random numbers
};

// Gives back what of the graph's saved tensors need not be kept. InputError during a later backward if
// somebody wrote to what a tensor is made from.
void keep_less(const Recorded& recorded, const Keeping& keeping);

// Whether all that `rebuild` would make again comes out with the same bits, here and now. Changes nothing.
bool rebuilds_same_bits(const Recorded& recorded);

}  // namespace reprise::runtime
