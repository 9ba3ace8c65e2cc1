#include "runtime/graph/no_plan.h"

#include <fmt/format.h>

#include "reprise/report/text.h"

namespace reprise::runtime::internal::graph {
namespace {

// A smaller share of the smallest peak is not worth a change of the program.
constexpr double kLargeShare = 0.2;

}  // namespace

Bytes gradients_held(const Graph& graph) {
  Bytes sum;
  for (const ValueIndex result : graph.results) {
    const Value& value = graph.values[result];
    if (value.kind == ValueKind::kGradient) sum += value.bytes;
  }
  return sum;
}

std::string why_no_plan(const Graph& graph, const PlanResult& result, bool with_optimizer) {
  std::string text = explain_no_plan(result);
  if (with_optimizer || !result.smallest_budget || *result.smallest_budget <= Bytes(0)) return text;
  const Bytes gradients = gradients_held(graph);
  const double share =
      static_cast<double>(gradients.count()) / static_cast<double>(result.smallest_budget->count());
  if (share < kLargeShare) return text;
  return text +
         fmt::format(
             "\nThe gradients are {:.0f} % of that smallest peak ({}), because all of them wait "
             "for "
             "the optimizer. Give the optimizer to the capture (optimizer=): each gradient is "
             "then used up and freed as soon as it is complete.",
             100 * share, format_bytes(gradients));
}

}  // namespace reprise::runtime::internal::graph
