#include "report/facts.h"

#include "report/markup.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise {

namespace report {

Facts::Facts(const ReportInput& source)
    : input(source),
      graph(source.problem.graph(source.plan)),
      names(op_names(source.problem, graph)),
      plain_graph(has_homes(graph) ? with_all_on_device(graph) : graph),
      plain_actions(with_frees(plain_graph, plain_runs(plain_graph))),
      plan(walk(graph, source.plan.actions, source.machine)),
      plain(walk(plain_graph, plain_actions)),
      explanation(explain(graph, source.plan, source.machine)),
      violations(verify(graph, source.plan, source.plan.budget,
                        source.problem.id_for(source.plan.problem), source.machine)) {
  if (source.run_log) validate(*source.run_log, source.plan);
  if (source.frontier) validate(*source.frontier, source.problem);
}

std::vector<std::string> op_names(const Problem& problem, const Graph& graph) {
  constexpr size_t kLongest = 120;  // characters
  std::vector<std::string> names;
  for (const Op& op : graph.ops) names.push_back(shortened(op.id, kLongest));
  const Chain* chain = problem.chain();
  if (chain == nullptr) return names;
  const ChainIndex index = {chain->stages.size()};
  for (size_t s = 0; s < chain->stages.size(); ++s) {
    for (const OpIndex op : {index.forward(s), index.backward(s)}) {
      std::string& name = names[op];
      name = shortened(chain->stages[s].name, kLongest) + " (" + name + ")";
    }
  }
  return names;
}

}  // namespace report

void validate(const Frontier& frontier, const Problem& problem) {
  if (same_problem(frontier.problem, problem.id_for(frontier.problem))) return;
  throw InputError("the frontier is of another problem: " + frontier.problem.name,
                   {.pointer = "/problem"});
}

}  // namespace reprise
