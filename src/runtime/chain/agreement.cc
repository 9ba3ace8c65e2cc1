#include "runtime/chain/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "runtime/distributed/shared_plan.h"

namespace reprise::runtime::internal::chain {

using distributed::Ranks;

namespace {

template <class Visit>
void visit_cost(Cost& cost, Visit&& visit) {
  visit(cost.time);
  visit(cost.workspace);
}

// Calls `visit` for every number of the chain that may differ between ranks.
template <class Visit>
void for_each_number(Chain& chain, Visit&& visit) {
  visit(chain.fixed);
  visit(chain.input.bytes);
  visit(chain.input.gradient);
  visit_cost(chain.loss.cost, visit);
  for (reprise::Stage& stage : chain.stages) {
    visit(stage.output);
    if (stage.output_gradient) visit(*stage.output_gradient);
    visit(stage.weight_gradient);
    visit_cost(stage.forward, visit);
    for (StageOption& option : stage.options) {
      visit(option.saved);
      visit_cost(option.forward, visit);
      visit_cost(option.backward, visit);
      if (option.stopped) visit_cost(*option.stopped, visit);
    }
  }
}

void require_same_stages(Ranks& ranks, const Chain& chain) {
  Chain structure = chain;
  for_each_number(structure, [](auto& number) { number = {}; });
  const std::string mine = canonical_sha256(to_json(structure));
  ranks.require_equal(mine, "the stages that it has measured", [](const Ranks::Difference& found) {
    return fmt::format(
        "the ranks of the process group have measured different stages: rank {} differs from rank "
        "0. Give all ranks the same stages, options, and inputs of the same shapes",
        found.ranks);
  });
}

}  // namespace

int64_t largest(Ranks& ranks, int64_t mine, c10::Device device, const std::string& what) {
  std::vector<int64_t> numbers{mine};
  ranks.maxima(numbers, device, what);
  return numbers[0];
}

bool on_any_rank(Ranks* ranks, bool mine, c10::Device device) {
  if (ranks == nullptr) return mine;
  return largest(*ranks, mine ? 1 : 0, device, "what it has found in a stage") != 0;
}

void agree_on_chain(Ranks& ranks, Chain& chain, c10::Device device) {
  require_same_stages(ranks, chain);
  std::vector<int64_t> numbers;
  for_each_number(chain, [&](const auto& number) { numbers.push_back(number.count()); });
  ranks.maxima(numbers, device, "the exchange of bytes and times");
  size_t next = 0;
  for_each_number(chain, [&](auto& number) {
    number = std::remove_reference_t<decltype(number)>(numbers[next++]);
  });
}

bool all_measured(Ranks& ranks, bool mine, c10::Device device) {
  std::vector<int64_t> numbers{mine ? 1 : 0, mine ? 0 : 1};
  ranks.maxima(numbers, device, "the inputs of its step");
  if (numbers[0] != 0 && numbers[1] != 0) {
    throw InputError(
        "some ranks of the process group were given inputs that they know, and others have to "
        "measure theirs: give all ranks inputs of the same shapes, and set train flags on all of "
        "them");
  }
  return numbers[0] != 0;
}

PlanResult plan_together(Ranks& ranks, const Problem& problem, const PlanOptions& options) {
  const Graph graph = lowered(problem, order_of(problem));
  const Bytes budget = options.budget.resolve(baseline(graph).peak);
  return distributed::plan_of_first(ranks, graph, options.machine, budget,
                                    [&] { return plan(problem, options); });
}

}  // namespace reprise::runtime::internal::chain
