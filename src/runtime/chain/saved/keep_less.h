// Ways to run a stage so that its backward can follow, with less memory than autograd takes for it: options of the
// stage (model/chain.h), of the same bits.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/stage.h"
#include "runtime/chain/saved/nodes.h"

namespace reprise::runtime::internal::chain {

// What is saved in another way than as it is.
struct SavedForm {
  bool one_bit_mask = false;   // dropout's factors
  bool small_indices = false;  // max pooling's
  // Results of activations and norms are made again from what is saved anyway, at the first node of the
  // backward that reads them.
  bool rebuild = false;

  bool operator==(const SavedForm&) const = default;
};

// The options of a stage in this order, the first as autograd does it; how each of them keeps.
struct NamedSavedForm {
  const char* name;  // "keep", "smaller", "rebuild"
  SavedForm saved_form;
};
// InputError as validate_for_chain().
std::vector<NamedSavedForm> saved_forms(const AlternativeOptions& allowed);

// What a stage was given, by the node where its graph ends.
using Leaves = std::unordered_map<const torch::autograd::Node*, Unchanged>;

struct Watch;

// While it lives, what autograd saves on this thread is kept in less memory: as soon as the operation that saved it is
// over, so that a stage needs less already while it runs. Of stages within stages, the innermost decides. A later backward
// throws InputError if somebody wrote to what a tensor is made from.
class KeepLess {
 public:
  // `same_bits`, if not null: nothing is replaced; whether all that would be made again has the same bits.
  KeepLess(const Leaves& leaves, const SavedForm& saved_form, bool* same_bits = nullptr);
  ~KeepLess();
  KeepLess(const KeepLess&) = delete;
  KeepLess& operator=(const KeepLess&) = delete;

  // The stage has run. Its outputs are there anyway, and are not made again. Throws what went wrong meanwhile.
  void finish(const Tensors& outputs);

 private:
  std::unique_ptr<Watch> watch_;  // null if everything is kept as it is
  Watch* outer_;
};

}  // namespace reprise::runtime::internal::chain
