#include "fuzz/targets.h"

#include <string>
#include <variant>

#include "fuzz/small_problem.h"
#include "reprise/check/explain.h"
#include "reprise/check/pipeline.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/io/tensors.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/pack/pages.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/pipeline.h"
#include "reprise/plan/registry.h"
#include "reprise/run/bookkeeping.h"

namespace reprise::fuzz {
namespace {

const std::string kFile = "file.json";

void promise(bool kept, const std::string& what) {
  if (!kept) throw BrokenPromise(what);
}

// A refusal must say where.
void require_place(const InputError& error) {
  promise(error.where().file == kFile, "the refusal names no file: " + std::string(error.what()));
  promise(error.where().line > 0, "the refusal names no line: " + std::string(error.what()));
}

// A value that is read is written and read back equal.
template <auto kParse>
void load(std::string_view bytes) {
  try {
    const auto value = kParse(bytes, kFile);
    promise(kParse(to_json(value), kFile) == value, "written and read back, it differs");
  } catch (const InputError& error) {
    require_place(error);
  }
}

// Nobody promised anything about this plan. Every judge says something of it, and they agree.
void judge(const Graph& graph, const Plan& plan) {
  static const Machine machine = parse_offload("host=1GB/s,2GB/s");
  const std::vector<Violation> violations = verify(graph, plan, plan.budget, machine);
  std::string refusal;
  try {
    const Timeline timeline = simulate(graph, plan, machine);
    const Explanation explanation = explain(graph, plan, machine);
    promise(explanation.timeline == timeline, "explain and simulate differ");
    Bytes held;
    for (const Holder& holder : explanation.holders) held += holder.bytes;
    promise(held == timeline.peak, "the holders do not sum to the peak");
    const std::vector<Block> blocks = plan_blocks(graph, plan.actions, machine);
    promise(live_bytes(blocks, Bytes(1)) + graph.fixed == timeline.peak, "the blocks differ");
    const Graph placed = as_placed(graph, plan.actions).value_or(graph);
    BookkeepingBackend backend(placed, &machine);
    execute(Program(graph, plan.actions, machine), backend);
    promise(backend.peak() == timeline.peak && backend.time() == timeline.time,
            "the interpreter's account differs");
    if (!violations.empty()) return;
    promise(timeline.peak == plan.peak && timeline.peak <= plan.budget,
            "over budget, called valid");
    promise(timeline.time == plan.time, "another time, called valid");
  } catch (const InputError& error) {
    promise(!violations.empty(), "refused, but called valid: " + std::string(error.what()));
  }
}

// Returns a small graph that uses all that a graph file can say.
const Graph& fixed_graph() {
  static const Graph graph =
      parse_graph(R"({"format": "reprise.graph", "version": 2, "name": "small",
    "fixed_bytes": 3, "values": [{"id": "x", "bytes": 8, "kind": "input"}, {"id": "y", "bytes": 8},
    {"id": "z", "bytes": 8, "kind": "gradient"}, {"id": "w", "bytes": 4}],
    "ops": [{"id": "f", "random": true, "variants": [{"ns": 1, "reads": ["x"], "writes": ["y"]},
     {"name": "again", "role": "replay", "ns": 1, "reads": ["x"], "writes": ["y"]}]},
    {"id": "c1", "variants": [{"ns": 2, "workspace_bytes": 5, "reads": ["y"], "writes": ["w"]}]},
    {"id": "c2", "variants": [{"ns": 3, "reads": ["y"], "writes": ["w"]}]},
    {"id": "b", "phase": "backward", "variants": [{"ns": 2, "reads": ["y", "w"], "writes": ["z"],
     "reuses": [["z", "y"]], "consumes": ["w"]}]}],
    "choices": [{"id": "c", "realizations": [{"ops": ["c1"]}, {"name": "n", "ops": ["c2"]}]}],
    "results": ["z"]})");
  return graph;
}

void check(std::string_view bytes) {
  try {
    judge(fixed_graph(), parse_plan(bytes, kFile));
  } catch (const InputError& error) {
    require_place(error);
  }
}

void require_kept(const PlanResult& result, const Graph& graph) {
  if (!result.plan) return;
  promise(verify(graph, *result.plan, result.budget).empty(), "an invalid plan was returned");
  promise(result.plan->peak <= result.budget, "a plan over its budget was returned");
  promise(result.plan->lower_bound <= result.plan->time, "faster than the bound");
  judge(graph, *result.plan);
}

void plan_problem(std::string_view bytes) {
  Problem problem;
  try {
    problem = parse_problem(bytes, kFile);
  } catch (const InputError& error) {
    return require_place(error);
  }
  try {
    for (const Budget& budget : {Budget(), Budget("50%")}) {
      const PlanOptions options{.budget = budget, .planner = "keep_all"};
      const PlanResult result =
          std::visit([&](const auto& model) { return plan(model, options); }, problem.model);
      require_kept(result, result.plan ? problem.graph(*result.plan) : problem.graph());
    }
  } catch (const InputError&) {
    // The problem is valid, but it has no plain training, or a sum of several runs exceeds 64 bits.
  }
}

// A pipeline that is read and small is planned by every row.
void plan_small_pipeline(std::string_view bytes) {
  load<parse_pipeline>(bytes);
  try {
    const Pipeline pipeline = parse_pipeline(bytes, kFile);
    if (pipeline.micro_batches > 20 || pipeline.devices.size() > 20) return;
    for (const PlannerInfo& planner : planners()) {
      if (planner.plan_pipeline == nullptr) continue;
      try {
        const PipelineResult result = plan(
            pipeline, {.budget = "80%", .planner = planner.name, .time_limit = Nanos(20'000'000)});
        if (!result.plan) continue;
        promise(verify(pipeline, *result.plan, problem_id(pipeline)).empty(), "an invalid plan");
        promise(result.lower_bound <= result.plan->time, "faster than the bound");
      } catch (const InputError&) {
        // It lacks links or weight parts.
      }
    }
  } catch (const InputError& error) {
    require_place(error);
  }
}

// Returns a pipeline of two devices for which plans are read.
const Pipeline& fixed_pipeline() {
  static const Pipeline pipeline = parse_pipeline(R"({"format": "reprise.pipeline", "version": 1,
    "name": "two", "micro_batches": 2, "chain": {"format": "reprise.chain", "version": 1,
    "name": "c", "input": {"bytes": 2}, "stages": [
    {"name": "a", "output_bytes": 3, "forward": {"ns": 4}, "options": [{"name": "k",
     "saved_bytes": 5, "forward": {"ns": 4}, "backward": {"ns": 9}}]},
    {"name": "b", "output_bytes": 1, "forward": {"ns": 3}, "options": [{"name": "k",
     "saved_bytes": 2, "forward": {"ns": 3}, "backward": {"ns": 6}}]}]},
    "stages": [{"weight_part": {"ns": 2, "kept_bytes": 3}}, {}],
    "devices": [{"name": "p"}, {"name": "q"}],
    "links": [{"from": "p", "to": "q", "bytes_per_second": 1000000000},
              {"from": "q", "to": "p", "bytes_per_second": 1000000000}]})");
  return pipeline;
}

void check_pipeline_plan(std::string_view bytes) {
  load<parse_pipeline_plan>(bytes);
  try {
    const PipelinePlan plan = parse_pipeline_plan(bytes, kFile);
    const Pipeline& pipeline = fixed_pipeline();
    const std::vector<Violation> violations = verify(pipeline, plan);
    try {
      const PipelineTimeline timeline = simulate(pipeline, plan);
      if (!violations.empty()) return;
      promise(timeline.time == plan.time, "another time, called valid");
      for (size_t d = 0; d < plan.devices.size(); ++d) {
        promise(timeline.devices[d].peak <= plan.devices[d].budget, "over budget, called valid");
      }
    } catch (const InputError& error) {
      promise(!violations.empty(), "refused, but called valid: " + std::string(error.what()));
    }
  } catch (const InputError& error) {
    require_place(error);
  }
}

PlanOptions some_options(Dice& dice) {
  PlanOptions options;
  options.budget = Budget(std::to_string(dice.below(120)) + "%");
  options.threads = 1 + static_cast<int>(dice.below(2));
  options.time_limit = Nanos(dice.below(16) == 15 ? 0 : 20'000'000);
  options.allow = dice.coin() ? Exactness::kBitwise : Exactness::kRounding;
  return options;
}

void search(std::string_view bytes) {
  Dice dice(bytes);
  PlanOptions options = some_options(dice);
  const bool chains = dice.coin();
  try {
    if (chains) {
      const Chain chain = small_chain(dice);
      for (const PlannerInfo& planner : planners()) {
        if (planner.plan_chain == nullptr) continue;
        options.planner = planner.name;
        require_kept(plan(chain, options), lower(chain));
      }
    } else {
      const Graph graph = small_graph(dice);
      for (const PlannerInfo& planner : planners()) {
        if (planner.plan_graph == nullptr) continue;
        options.planner = planner.name;
        require_kept(plan(graph, options), graph);
      }
    }
  } catch (const InputError&) {
    // Not every such problem is valid.
  }
}

void pack_blocks(std::string_view bytes) {
  Dice dice(bytes);
  PackOptions options;
  options.alignment = Bytes(dice.below(70));
  options.steps = 10'000;
  const std::vector<Block> blocks = small_blocks(dice);
  try {
    const Packing packing = pack(blocks, options);
    promise(verify_packing(blocks, packing, options.alignment).empty(), "an invalid packing");
    const PageOptions pages{.alignment = options.alignment,
                            .page = options.alignment * (1 + dice.below(9))};
    const PagedPacking paged = in_pages(blocks, packing, pages);
    promise(verify_pages(blocks, paged, pages).empty(), "invalid extents");
    promise(paged.height <= packing.height, "pages made it higher");
  } catch (const InputError&) {
    // A length is negative, an alignment is 0, or a sum exceeds 64 bits.
  }
}

// Reads the headers of files of tensors. The file is as large as the last tensor says, as far as it
// can be.
void tensor_table(std::string_view bytes) {
  constexpr int64_t kLengthBytes = 8;
  const auto size = static_cast<int64_t>(bytes.size());
  try {
    parse_tensor_table(bytes, Bytes(kLengthBytes + size), kFile);
  } catch (const InputError& error) {
    require_place(error);
  }
  try {
    const TensorTable table = parse_tensor_table(bytes, Bytes(kLengthBytes + size + 16), kFile);
    Bytes end;
    for (const TensorEntry& tensor : table.tensors) {
      promise(tensor.offset == end, "tensors do not lie side by side");
      end += tensor.bytes;
      promise(table.find(tensor.name) == &tensor, "a name comes twice");
    }
    promise(end == Bytes(16), "the tensors do not fill the file");
  } catch (const InputError& error) {
    require_place(error);
  }
}

// These are texts that people write for budgets and durations.
void quantities(std::string_view bytes) {
  const auto refuse = [](const auto& read) {
    try {
      promise(read() >= 0, "negative");
    } catch (const InputError&) {
    }
  };
  refuse([&] { return parse_bytes(bytes).count(); });
  refuse([&] { return parse_duration(bytes).count(); });
  refuse([&] { return parse_watts(bytes).static_mw; });
  refuse([&] { return Budget(bytes).resolve(Bytes(1'000'000)).count(); });
}

}  // namespace

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"chain", load<parse_chain>},
      {"graph", load<parse_graph>},
      {"plan", load<parse_plan>},
      {"machine", load<parse_machine>},
      {"power", load<parse_power>},
      {"frontier", load<parse_frontier>},
      {"pipeline", plan_small_pipeline},
      {"pipeline_plan", check_pipeline_plan},
      {"profile", load<parse_profile>},
      {"run_log", load<parse_run_log>},
      {"tensors", tensor_table},
      {"problem", plan_problem},
      {"check", check},
      {"search", search},
      {"pack", pack_blocks},
      {"quantities", quantities},
  };
  return kTargets;
}

}  // namespace reprise::fuzz
