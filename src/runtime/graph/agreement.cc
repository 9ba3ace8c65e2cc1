#include "runtime/graph/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::graph {

using device::shape_text;
using distributed::Peers;
using step::Bucket;
using step::LeafGradient;

namespace {

// Calls the function. If it throws, the other ranks hear of it.
template <class Function>
auto telling(Peers& peers, Function&& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    peers.tell(error.what());
    throw;
  }
}

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
  std::string quoted;
  for (const char c : all) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  const std::string hash = canonical_sha256("{\"step\":\"" + quoted + "\"}");
  return fmt::format("{} operations, buckets of {} elements, hash {}", structure.ops.size(),
                     fmt::join(elements, ", "), hash.substr(0, 16));
}

void require_same_step(Peers& peers, const std::string& mine) {
  const std::vector<std::string> all = peers.exchange(mine, "the capture of its step");
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) others.push_back(rank);
  }
  if (others.empty()) return;
  throw InputError(fmt::format(
      "the ranks of the process group have captured different steps: rank {} differs from rank 0. "
      "Rank 0 has {}; rank {} has {}. Give all ranks the same model, the same options and inputs "
      "of "
      "the same shapes",
      fmt::join(others, " and rank "), all[0], others[0], all[others[0]]));
}

// The answer of rank 0, as a text that starts with one of these letters.
constexpr char kPlan = 'p', kNone = 'n', kError = 'e';

std::string text_of(const StepPlan& found) {
  if (found.result.plan) {
    return fmt::format("{}{} {}", kPlan, found.slack.count(), to_json(*found.result.plan));
  }
  const PlanResult& none = found.result;
  return fmt::format("{}{} {} {} {} {}", kNone, static_cast<int>(none.termination),
                     static_cast<int>(none.proof), none.smallest_budget.value_or(Bytes(-1)).count(),
                     none.planner, none.blocking_op);
}

// Returns the answer of rank 0 that there is no plan.
StepPlan none_of(const std::string& text, const Graph& graph, Bytes budget) {
  std::istringstream in(text.substr(1));
  int termination = 0, proof = 0;
  int64_t smallest = -1;
  StepPlan found;
  PlanResult& none = found.result;
  in >> termination >> proof >> smallest >> none.planner >> std::ws;
  std::getline(in, none.blocking_op);
  none.termination = static_cast<Termination>(termination);
  none.proof = static_cast<Proof>(proof);
  if (smallest >= 0) none.smallest_budget = Bytes(smallest);
  none.budget = budget;
  none.baseline = baseline(graph);
  return found;
}

// Returns the numbers of all ranks, by rank.
std::vector<int64_t> numbers_of_all(Peers& peers, int64_t mine, const std::string& what) {
  std::vector<int64_t> numbers;
  for (const std::string& text : peers.exchange(std::to_string(mine), what)) {
    numbers.push_back(std::stoll(text));
  }
  return numbers;
}

StepPlan plan_of(const std::string& text, const Graph& graph, Bytes budget) {
  const size_t end = text.find(' ');
  Plan plan = parse_plan(text.substr(end + 1), "the plan of rank 0");
  const Nanos time = plan.time;
  return {{.termination = plan.termination,
           .plan = plan,
           .planner = plan.planner,
           .schedule_class = plan.schedule_class,
           .budget = budget,
           .lower_bound = plan.lower_bound,
           .baseline = baseline(graph),
           .smallest_budget = {},
           .blocking_op = {},
           .search = {}},
          Bytes(std::stoll(text.substr(1, end - 1))),
          time};
}

}  // namespace

void agree_on_step(Peers& peers, const StepProgram& program, const CaptureOptions& options) {
  require_same_step(peers, description(program, common_tensors(program, options)));
}

void agree_on_numbers(Peers& peers, StepProgram& program, const CaptureOptions& options) {
  Graph& graph = program.lowered.graph;
  std::vector<int64_t> numbers;
  for_each_number(graph, [&](const auto& number) { numbers.push_back(number.count()); });
  peers.maxima(numbers, program.step.recording.device, "the exchange of bytes and times");
  size_t next = 0;
  for_each_number(graph, [&](auto& number) {
    number = std::remove_reference_t<decltype(number)>(numbers[next++]);
  });
  peers.copy_from_first(common_tensors(program, options));
}

void agree_on_plan(Peers& peers, const std::string& objection) {
  const std::vector<std::string> all = peers.exchange(objection, "its word on the plan");
  std::string objections;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) objections += fmt::format("\nrank {}: {}", rank, all[rank]);
  }
  if (!objections.empty()) {
    throw InputError("the plan is not used, because some ranks refuse it:" + objections);
  }
}

StepPlan plan_together(Peers& peers, Graph& graph, const StepPlanOptions& options,
                       const PlanSearch& search) {
  const std::vector<int64_t> fixed =
      numbers_of_all(peers, graph.fixed.count(), "its bytes before planning");
  graph.fixed = Bytes(*std::max_element(fixed.begin(), fixed.end()));
  const Bytes mine = telling(peers, [&] { return options.budget.resolve(baseline(graph).peak); });
  const std::vector<int64_t> budgets = numbers_of_all(peers, mine.count(), "its budget");
  const Bytes budget(*std::min_element(budgets.begin(), budgets.end()));
  StepPlanOptions agreed = options;
  agreed.budget = budget == Budget().resolve(Bytes(0)) ? Budget() : Budget(budget);

  StepPlan found;
  std::exception_ptr raised;
  std::string text;
  if (peers.rank() == 0) {
    try {
      found = search(graph, agreed);
      text = text_of(found);
    } catch (const std::exception& error) {
      raised = std::current_exception();
      text = kError + std::string(error.what());
    }
  }
  text = peers.from_first(text, "its plan");
  if (raised) std::rethrow_exception(raised);
  if (text[0] == kError) throw InputError("rank 0 has found no plan: " + text.substr(1));
  if (text[0] == kNone) return peers.rank() == 0 ? found : none_of(text, graph, budget);
  if (peers.rank() != 0) {
    found = telling(peers, [&] { return plan_of(text, graph, budget); });
  }
  std::string objection;
  for (const Violation& violation : verify(graph, *found.result.plan, budget)) {
    objection += (objection.empty() ? "" : "; ") + violation.message;
  }
  agree_on_plan(peers, objection);
  return found;
}

}  // namespace reprise::runtime::internal::graph
