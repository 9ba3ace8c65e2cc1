// These are ways to run a stage so that its backward can follow, with less memory than autograd
// takes. They become options of the stage (model/chain.h) and leave the same bits.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/stage.h"
#include "runtime/chain/saved/nodes.h"

namespace reprise::runtime::internal::chain {

// A SavedForm says which tensors are saved in another form than autograd's.
struct SavedForm {
  bool one_bit_mask = false;   // factors of dropout
  bool small_indices = false;  // indices of max pooling
  // Results of activations and norms are made again from tensors that are saved anyway, when the
  // first node of the backward reads them.
  bool rebuild = false;
  size_t way = 0;  // runs Stage::ways[way - 1]; 0 stands for Stage::forward

  bool operator==(const SavedForm&) const = default;
};

// A NamedSavedForm is a named form for an option of a stage.
struct NamedSavedForm {
  const char* name;  // "keep", "smaller", "rebuild"
  SavedForm saved_form;
};
// Returns the forms for the options of each stage, in order. The first is autograd's own. Throws
// InputError like validate_for_chain().
std::vector<NamedSavedForm> saved_forms(const AlternativeOptions& allowed);

// The inputs of a stage, by the nodes where its graph ends.
using Leaves = std::unordered_map<const torch::autograd::Node*, Unchanged>;

struct Watch;

// While a KeepLess lives, the tensors that autograd saves on this thread are kept in less memory.
// They are replaced as soon as the operation that saved them is over, so that a stage needs less
// memory already while it runs. With stages inside stages, the innermost decides. A later backward
// throws InputError if somebody wrote to a tensor from which another one is made again.
class KeepLess {
 public:
  // If `same_bits` is not null, nothing is replaced. It is set to whether all tensors that would
  // be made again have the same bits.
  KeepLess(const Leaves& leaves, const SavedForm& saved_form, bool* same_bits = nullptr);
  ~KeepLess();
  KeepLess(const KeepLess&) = delete;
  KeepLess& operator=(const KeepLess&) = delete;

  // To be called when the stage has run. Its outputs are there anyway, so they are not made again.
  // Rethrows an error that a callback met.
  void finish(const Tensors& outputs);
  // The same for a stage that threw, where that error may have come first.
  void rethrow() const;

 private:
  std::unique_ptr<Watch> watch_;  // null if everything is kept as it is
  Watch* outer_;
};

}  // namespace reprise::runtime::internal::chain
