// Ways to run a stage so that its backward can follow, with less memory than autograd takes for it: options of the
// stage (model/chain.h), of the same bits.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <vector>

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

struct Watch;

// While it lives, what autograd saves on this thread is kept in less memory: as soon as the operation that saved it is
// over, so that a stage needs less already while it runs. Of stages within stages, the innermost decides.
class KeepLess {
 public:
  // `random`: the stage draws random numbers.
  KeepLess(const Leaves& leaves, const Keeping& keeping, bool random);
  ~KeepLess();
  KeepLess(const KeepLess&) = delete;
  KeepLess& operator=(const KeepLess&) = delete;

  // The stage has run, and led to these. Outputs are there anyway: they are not made again. A later backward throws
  // InputError if somebody wrote to what a tensor is made from.
  void finish(const torch::autograd::edge_list& roots, const Tensors& outputs);

 private:
  std::unique_ptr<Watch> watch_;  // null if everything is kept as it is
  Watch* outer_;
};

// Whether all that `rebuild` would make again of the graph comes out with the same bits, here and now. Changes nothing.
bool rebuilds_same_bits(const Leaves& leaves, const torch::autograd::edge_list& roots,
                        const Tensors& outputs);

}  // namespace reprise::runtime
