#include "reprise/plan/registry.h"

#include <string>

#include "plan/baselines/baselines.h"
#include "plan/chain/planner.h"
#include "plan/chain_slots/planner.h"
#include "plan/graph/planner.h"
#include "plan/join/planner.h"
#include "plan/literature/planner.h"
#include "plan/pipeline/planner.h"
#include "plan/place/devices/planner.h"
#include "plan/place/graph_levels/planner.h"
#include "plan/place/levels/planner.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

// The rows are in the order of the names. CONTRIBUTING.md has the steps by which a planner is added.
constexpr PlannerInfo kPlanners[] = {
    {.name = "1f1b",
     .summary = "pipelines: a backward and a forward in turn, few micro-batches in flight",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Narayanan et al., PipeDream, SOSP 2019; Memory-efficient pipeline-parallel DNN "
               "training, ICML 2021",
     .plan_pipeline = internal::pipeline::one_f_one_b},
    {.name = "adapipe",
     .summary = "pipelines: 1f1b with a knapsack of stages in each part, and cuts by a formula",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Sun et al., AdaPipe, ASPLOS 2024",
     .plan_pipeline = internal::pipeline::adapipe},
    {.name = "block4",
     .summary = "groups of stages are kept, run again or move, as four integers say",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Yang et al., ProTrain: Efficient LLM training via automatic memory management, "
               "MLSys 2026",
     .plan_chain = internal::literature::block4_chain,
     .moves = true},
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
     .plan_chain = internal::chain_slots::slots_chain,
     .slots = true},
    {.name = "cheapest_stages",
     .summary = "pipelines: 1f1b, recomputing the stages that give most bytes for their time",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Yuan et al., Accelerating the training of large language models, USENIX ATC 2024",
     .plan_pipeline = internal::pipeline::cheapest_stages},
    {.name = "devices",
     .summary = "places each run of a graph on a device, with copies and recomputing",
     .schedule_class = "all+copies",
     .proof = Proof::kAllPlans,
     .source = "Schuler et al., XEngine: Optimal tensor rematerialization for neural networks in "
               "heterogeneous environments, ACM TACO 2022",
     .plan_graph = internal::devices::devices,
     .moves = true,
     .devices = true},
    {.name = "double_checkpoint",
     .summary = "every R-th activation moves, and what lies between them is made again",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Bencheikh et al., Optimal gradient checkpointing for sparse and recurrent "
               "architectures using off-chip memory, arXiv 2412.11810",
     .plan_chain = internal::literature::double_checkpoint_chain,
     .moves = true},
    {.name = "dtr",
     .summary = "plain training with evictions when memory is full, made again when needed",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "Kirisame et al., Dynamic tensor rematerialization, arXiv 2006.09616",
     .plan_graph = internal::baselines::dtr_graph},
    {.name = "floating",
     .summary = "chain's schedules, and those whose checkpoints move, with a proven bound",
     .schedule_class = "floating",
     .proof = Proof::kScheduleClass,
     .source = "Beaumont et al., Optimal checkpointing for heterogeneous chains, arXiv 1911.13214",
     .plan_chain = internal::chain::floating_chain},
    {.name = "gpipe",
     .summary = "pipelines: all forwards, then all backwards",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Huang et al., GPipe, arXiv 1811.06965",
     .plan_pipeline = internal::pipeline::gpipe},
    {.name = "graph",
     .summary = "near-optimal plans of graphs by local search, with a proven bound; also a curve",
     .schedule_class = "all",
     .proof = Proof::kAllPlans,
     .source = "Jain et al., Checkmate, arXiv 1910.02653; bound: docs/planners/graph.md",
     .plan_graph = internal::graph::search_graph,
     .graph_frontier = internal::graph::graph_frontier},
    {.name = "graph_levels",
     .summary = "keeps, makes again or moves each value of a graph, with a proven bound",
     .schedule_class = "all+copies",
     .proof = Proof::kAllPlans,
     .source = "Beaumont et al., Efficient combination of rematerialization and offloading for "
               "training DNNs, NeurIPS 2021; bound: docs/planners/graph_levels.md",
     .plan_graph = internal::graph_levels::graph_levels,
     .moves = true},
    {.name = "interleaved",
     .summary = "pipelines: 1f1b with several parts on each device",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Narayanan et al., Efficient large-scale language model training on GPU clusters "
               "using Megatron-LM, SC 2021",
     .plan_pipeline = internal::pipeline::interleaved},
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
     .source = "Hong et al., GPU memory usage optimization for backward propagation in deep network "
               "training, arXiv 2502.12499",
     .plan_chain = internal::baselines::min_peak_chain,
     .chain_frontier = internal::baselines::min_peak_frontier},
    {.name = "offload_only",
     .summary = "keeps or moves each value of a chain, and makes nothing again",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Beaumont et al., Optimal GPU-CPU offloading strategies for deep neural network "
               "training, Euro-Par 2020",
     .plan_chain = internal::literature::offload_only_chain,
     .moves = true},
    {.name = "periodic",
     .summary = "checkpoints at regular distances, every segment recomputed once",
     .schedule_class = "all",
     .proof = Proof::kTried,
     .source = "Chen et al., Training deep nets with sublinear memory cost, arXiv 1604.06174",
     .plan_chain = internal::baselines::periodic_chain,
     .chain_frontier = internal::baselines::periodic_frontier},
    {.name = "pipeline",
     .summary = "pipelines: cuts and recomputation together, by an exact recurrence for each part",
     .schedule_class = "persistent-parts",
     .proof = Proof::kTried,
     .source = "docs/planners/pipeline.md",
     .plan_pipeline = internal::pipeline::joint},
    {.name = "pofo",
     .summary = "recomputation and offloading together, by dynamic programming over slots",
     .schedule_class = "all+copies",
     .proof = Proof::kTried,
     .source = "Beaumont et al., Efficient combination of rematerialization and offloading for "
               "training DNNs, NeurIPS 2021",
     .plan_chain = internal::literature::pofo_chain,
     .moves = true},
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
     .plan_chain = internal::literature::save_on_cpu_chain,
     .moves = true},
    {.name = "zb_h1",
     .summary = "pipelines: weight gradients fill the gaps that 1f1b has",
     .schedule_class = "cuts",
     .proof = Proof::kTried,
     .source = "Qi et al., Zero bubble pipeline parallelism, ICLR 2024, arXiv 2401.10241",
     .plan_pipeline = internal::pipeline::zero_bubble},
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
