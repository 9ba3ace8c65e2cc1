#include "reprise/plan/registry.h"

#include <string>

#include "plan/baselines/baselines.h"
#include "plan/chain/planner.h"
#include "plan/chain_slots/planner.h"
#include "plan/graph/planner.h"
#include "plan/join/planner.h"
#include "plan/levels/planner.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

// A new planner needs a file with a declaration in its room, a row here, and a row in
// tests/support/planner_matrix.h.
constexpr PlannerInfo kPlanners[] = {
    {.name = "chain",
     .summary = "exact optimum over persistent schedules of a chain; also the whole curve",
     .schedule_class = "persistent",
     .proof = Proof::kScheduleClass,
     .source = "Beaumont et al., Optimal checkpointing for heterogeneous chains, arXiv 1911.13214",
     .plan_chain = internal::chain::exact_chain,
     .chain_frontier = internal::chain::exact_frontier},
    {.name = "chain_slots",
     .summary = "near-optimal persistent schedules of long chains, with a proven bound",
     .schedule_class = "persistent",
     .proof = Proof::kScheduleClass,
     .source = "Beaumont et al., Optimal checkpointing for heterogeneous chains, arXiv 1911.13214",
     .plan_chain = internal::chain_slots::slots_chain},
    {.name = "dtr",
     .summary = "plain training with evictions when memory is full, made again when needed",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "Kirisame et al., Dynamic tensor rematerialization, arXiv 2006.09616",
     .plan_graph = internal::baselines::dtr_graph},
    {.name = "graph",
     .summary = "near-optimal plans of graphs by local search, with a proven bound; also a curve",
     .schedule_class = "all",
     .proof = Proof::kAllPlans,
     .source = "Jain et al., Checkmate, arXiv 1910.02653; bound: docs/planners/graph.md",
     .plan_graph = internal::graph::search_graph,
     .graph_frontier = internal::graph::graph_frontier},
    {.name = "join",
     .summary = "exact optimum over persistent schedules of branches that meet in a loss",
     .schedule_class = "persistent-branches",
     .proof = Proof::kScheduleClass,
     .source = "Beaumont et al., Optimal memory-aware backpropagation of deep join networks, 2020",
     .plan_join = internal::join::plan_branches},
    {.name = "keep_all",
     .summary = "plain training: nothing is computed twice",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "-",
     .plan_chain = internal::baselines::keep_all_chain,
     .plan_graph = internal::baselines::keep_all_graph,
     .chain_frontier = internal::baselines::keep_all_frontier},
    {.name = "levels",
     .summary = "keeps, makes again or moves each value of a chain, with a proven bound",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Beaumont et al., Efficient combination of rematerialization and offloading for "
               "training DNNs, NeurIPS 2021; exact values: docs/planners/levels.md",
     .plan_chain = internal::levels::levels_chain,
     .moves = true},
    {.name = "min_peak",
     .summary = "the best set of checkpoints, every segment recomputed once; also the whole curve",
     .schedule_class = "segments",
     .proof = Proof::kScheduleClass,
     .source = "Hong et al., arXiv 2502.12499",
     .plan_chain = internal::baselines::min_peak_chain,
     .chain_frontier = internal::baselines::min_peak_frontier},
    {.name = "offload_only",
     .summary = "keeps or moves each value of a chain, and makes nothing again",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Beaumont et al., Optimal GPU-CPU offloading strategies for deep neural network "
               "training, Euro-Par 2020",
     .plan_chain = internal::levels::offload_only_chain,
     .moves = true},
    {.name = "periodic",
     .summary = "checkpoints at regular distances, every segment recomputed once",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "Chen et al., Training deep nets with sublinear memory cost, arXiv 1604.06174",
     .plan_chain = internal::baselines::periodic_chain,
     .chain_frontier = internal::baselines::periodic_frontier},
    {.name = "revolve",
     .summary = "binomial checkpointing, optimal for equal stages and one size of slot",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "Griewank, Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000",
     .plan_chain = internal::baselines::revolve_chain,
     .chain_frontier = internal::baselines::revolve_frontier},
    {.name = "save_on_cpu",
     .summary = "moves all that the backward needs, and waits for every copy",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "PyTorch, torch.autograd.graph.save_on_cpu",
     .plan_chain = internal::levels::save_on_cpu_chain,
     .moves = true},
};

}  // namespace

std::span<const PlannerInfo> planners() { return kPlanners; }

const PlannerInfo& find_planner(std::string_view name) {
  std::string known;
  for (const PlannerInfo& planner : kPlanners) {
    if (name == planner.name) return planner;
    known += known.empty() ? "" : ", ";
    known += planner.name;
  }
  throw InputError("there is no planner '" + std::string(name) + "'; there are: " + known);
}

}  // namespace reprise
