#include "runtime/graph/agreement.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using distributed::plan_of_first;
using distributed::Ranks;

namespace {

// Calls `visit` for every number of the graph that may differ between ranks.
template <class Visit>
void for_each_number(Graph& graph, Visit&& visit) {
  visit(graph.fixed);
  for (Value& value : graph.values) visit(value.bytes);
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) {
      visit(variant.time);
      visit(variant.workspace);
    }
  }
}

// Returns the parameters and buffers whose bits rank 0 gives to all, each memory once.
std::vector<at::Tensor> common_tensors(const StepProgram& program, const CaptureOptions& options) {
  std::vector<at::Tensor> all;
  std::set<const void*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
  };
  for (const auto& module : options.modules) {
    for (const at::Tensor& parameter : module->parameters()) add(parameter);
    for (const at::Tensor& buffer : module->buffers()) add(buffer);
  }
  for (const LeafGradient& leaf : program.step.recording.gradients) {
    if (leaf.input < 0) add(leaf.target);
  }
  return all;
}

// Says in words what a rank has captured. The hash at the end stands for all that must be equal.
std::string description(const StepProgram& program, const std::vector<at::Tensor>& tensors) {
  Graph structure = program.lowered.graph;
  for_each_number(structure, [](auto& number) { number = {}; });
  std::string all = to_json(structure);
  std::vector<int64_t> elements;
  for (const Bucket& bucket : program.step.buckets.all) {
    elements.push_back(bucket.elements);
    all += fmt::format("\nbucket {} {}", c10::toString(bucket.dtype), bucket.elements);
    for (const step::Filling& filling : bucket.fillings) {
      all += fmt::format(" {} of {}", filling.offset, filling.owner);
    }
  }
  for (const at::Tensor& tensor : tensors) all += '\n' + shape_text(tensor);
  for (const step::HostRead& read : step::host_reads(program.step.recording)) {
    all += fmt::format("\nread {}", read.expected);
  }
  return fmt::format("{} operations, buckets of {} elements, hash {}", structure.ops.size(),
                     fmt::join(elements, ", "), text_sha256(all).substr(0, 16));
}

// Returns the numbers of all ranks, by rank.
std::vector<int64_t> numbers_of_all(Ranks& ranks, int64_t mine, const std::string& what) {
  std::vector<int64_t> numbers;
  for (const std::string& text : ranks.exchange(std::to_string(mine), what)) {
    numbers.push_back(std::stoll(text));
  }
  return numbers;
}

// Returns a number that other bytes change.
uint64_t mixed(uint64_t hash, const void* bytes, size_t count) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (size_t k = 0; k < count; k += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + k, std::min(sizeof word, count - k));
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  return hash;
}

// Returns a number that inputs and the random state of the CPU decide, of 62 bits.
int64_t hash_of_run(const Tensors& inputs) {
  uint64_t hash = inputs.size();
  const auto mix = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Tensor plain = tensor.detach().contiguous();
    hash = mixed(hash, plain.const_data_ptr(), plain.nbytes());
  };
  for (const at::Tensor& input : inputs) mix(input);
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  mix(generator.get_state());
  return static_cast<int64_t>(hash >> 2);
}

}  // namespace

bool agree_on_run(Ranks& ranks, const Tensors& inputs, bool needs) {
  const int64_t hash = hash_of_run(inputs);
  std::vector<int64_t> numbers{needs ? 1 : 0, hash, -hash};
  ranks.maxima(numbers, c10::kCPU, "the begin of its step");
  if (numbers[1] == -numbers[2]) return numbers[0] != 0;
  throw InputError(
      "the ranks that share out the work of a step have different inputs or different random "
      "states: "
      "give all ranks the same batch, and the same seed before the first step");
}

void agree_on_actions(Ranks& ranks, const Plan& plan) {
  std::string actions;
  for (const Action& action : plan.actions) {
    actions += fmt::format("{} {} {}\n", static_cast<int>(action.kind), action.id, action.variant);
  }
  const uint64_t hash = mixed(actions.size(), actions.data(), actions.size());
  ranks.require_equal(
      std::to_string(hash), "the plan that it was given", [](const Ranks::Difference& found) {
        return fmt::format(
            "ranks that share out the work of a step run one plan, and rank {} was given another "
            "plan than rank 0: give all ranks the plan of one of them",
            found.ranks);
      });
}

void agree_on_step(Ranks& ranks, const StepProgram& program, const CaptureOptions& options) {
  ranks.require_equal(
      description(program, common_tensors(program, options)), "the capture of its step",
      [](const Ranks::Difference& found) {
        return fmt::format(
            "the ranks of the process group have captured different steps: rank {} differs from "
            "rank 0. Rank 0 has {}; the first of the others has {}. Give all ranks the same model, "
            "the same options and inputs of the same shapes",
            found.ranks, found.first, found.other);
      });
}

void agree_on_numbers(Ranks& ranks, StepProgram& program, const CaptureOptions& options) {
  Graph& graph = program.lowered.graph;
  std::vector<int64_t> numbers;
  for_each_number(graph, [&](const auto& number) { numbers.push_back(number.count()); });
  ranks.maxima(numbers, program.step.recording.device, "the exchange of bytes and times");
  size_t next = 0;
  for_each_number(graph, [&](auto& number) {
    number = std::remove_reference_t<decltype(number)>(numbers[next++]);
  });
  ranks.copy_from_first(common_tensors(program, options));
}

StepPlan plan_together(Ranks& ranks, Graph& graph, const StepPlanOptions& options,
                       const PlanSearch& search) {
  const std::vector<int64_t> fixed =
      numbers_of_all(ranks, graph.fixed.count(), "its bytes before planning");
  graph.fixed = Bytes(*std::max_element(fixed.begin(), fixed.end()));
  const Bytes mine = telling(&ranks, [&] { return options.budget.resolve(baseline(graph).peak); });
  const std::vector<int64_t> budgets = numbers_of_all(ranks, mine.count(), "its budget");
  const Bytes budget(*std::min_element(budgets.begin(), budgets.end()));
  StepPlanOptions agreed = options;
  agreed.budget = budget == Budget().resolve(Bytes(0)) ? Budget() : Budget(budget);

  StepPlan found;
  found.result = plan_of_first(ranks, graph, options.offload.machine, budget, [&] {
    found = search(graph, agreed);
    return found.result;
  });
  if (!found.result.plan) return found;
  const auto slack = [&] { return std::to_string(found.slack.count()); };
  found.slack = Bytes(std::stoll(ranks.by_first("the slack of its plan", slack)));
  if (ranks.rank() != 0) found.before_placement = found.result.plan->time;
  return found;
}

}  // namespace reprise::runtime::internal::graph
