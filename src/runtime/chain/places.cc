#include "runtime/chain/places.h"

namespace reprise::runtime::internal::chain {

Places::Places(const PreparedModel& model, const std::vector<reprise::Stage>& stages,
               const Interleaving& order) {
  std::vector<size_t> next;  // by branch: the stage behind the next backward
  for (size_t b = 0; b < model.branches.size(); ++b) {
    const size_t first = model.branches[b].first, end = model.end_of(b);
    next.push_back(end);
    const auto add = [&](Kind kind, size_t position) { places_.push_back({kind, position}); };
    const size_t input = model.input_of(first), last = model.output_of(end - 1);
    for (size_t k = input; k <= last; ++k) {
      if (k > input) outputs_.push_back(static_cast<ValueIndex>(places_.size()));
      add(Kind::kActivation, k);
    }
    for (size_t k = input; k <= last; ++k) add(Kind::kGradient, k);
    for (size_t i = first; i < end; ++i) add(Kind::kWeightGradients, i);
    for (size_t i = first; i < end; ++i) {
      first_saved_.push_back(static_cast<ValueIndex>(places_.size()));
      for (size_t o = 0; o < stages[i].options.size(); ++o) add(Kind::kSaved, i);
    }
  }
  for (const size_t branch : order) backwards_.push_back(--next[branch]);
}

}  // namespace reprise::runtime::internal::chain
