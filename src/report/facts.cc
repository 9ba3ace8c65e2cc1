#include "report/facts.h"

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::report {

Facts::Facts(const ReportInput& source)
    : input(source),
      graph(source.problem.graph()),
      names(op_names(source.problem, graph)),
      plain_actions(with_frees(graph, plain_runs(graph))),
      plan(walk(graph, source.plan.actions)),
      plain(walk(graph, plain_actions)),
      explanation(explain(graph, source.plan)),
      violations(verify(graph, source.plan, source.plan.budget,
                        source.problem.id_for(source.plan.problem))) {
  if (source.run_log) validate(*source.run_log, source.plan);
  if (!source.frontier) return;
  const ProblemId& claimed = source.frontier->problem;
  if (!same_problem(claimed, source.problem.id_for(claimed))) {
    throw InputError("the frontier is for another problem: " + claimed.name,
                     {.pointer = "/problem"});
  }
}

std::vector<std::string> op_names(const Problem& problem, const Graph& graph) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops) names.push_back(op.id);
  const Chain* chain = problem.chain();
  if (chain == nullptr) return names;
  const ChainIndex index = {chain->stages.size()};
  for (size_t s = 0; s < chain->stages.size(); ++s) {
    for (const OpIndex op : {index.forward(s), index.backward(s)}) {
      std::string& name = names[static_cast<size_t>(op)];
      name = chain->stages[s].name + " (" + name + ")";
    }
  }
  return names;
}

}  // namespace reprise::report
