#include "runtime/chain/planned_model.h"

#include <algorithm>
#include <utility>

#include "runtime/transfer/offload_carrier.h"

namespace reprise::runtime::internal::chain {

PlannedModel::PlannedModel(PreparedModel prepared) : model(std::move(prepared)), buffers(model) {}

void PlannedModel::set_measured(MeasuredChain measured) {
  chain = std::move(measured.chain);
  inputs = std::move(measured.inputs);
  saved_form = std::move(measured.saved_form);
  noted = std::move(measured.noted);
  copies_gradients = std::move(measured.copies_gradients);
  splits = std::move(measured.splits);
}

const WeightPart* PlannedModel::weight_part(size_t stage, size_t option) const {
  if (stage >= splits.size() || !splits[stage].part) return nullptr;
  const std::vector<std::string>& names = splits[stage].part->options;
  const std::string& name = chain.stages[stage].options[option].name;
  const bool split = std::find(names.begin(), names.end(), name) != names.end();
  return split ? &*splits[stage].part : nullptr;
}

void PlannedModel::set_plan(const std::vector<Action>& actions, const Machine& machine) {
  const Problem asked = problem();
  const Interleaving order = order_of(asked, actions);
  const Graph graph = lowered(asked, order);
  program = std::make_shared<const Program>(graph, actions, machine);
  places = Places(model, chain.stages, order);
  value_bytes.clear();
  for (const Value& value : graph.values) value_bytes.push_back(value.bytes);
  moves = transfer::moved_by(*program, graph.values.size());
  if (std::find(moves.begin(), moves.end(), true) == moves.end()) moves.clear();
  passes = std::make_shared<const Passes>(model, places, *program, chain.stages, copies_gradients);
}

}  // namespace reprise::runtime::internal::chain
