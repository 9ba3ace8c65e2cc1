// This is the extension reprise._core. It plans and checks on JSON texts, which Python turns into
// values. Every function that does work of some length releases the GIL meanwhile.
#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "errors.h"
#include "options.h"
#include "reprise/check/explain.h"
#include "reprise/check/pipeline.h"
#include "reprise/check/replicas.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"
#include "reprise/plan/pipeline.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"
#include "reprise/report/json.h"
#include "reprise/report/pipeline.h"
#include "reprise/report/report.h"
#include "reprise/report/svg.h"
#include "reprise/report/text.h"
#include "results.h"

namespace reprise::python {
namespace {

using Text = std::string;
using NoGil = py::call_guard<py::gil_scoped_release>;

// Checks the text of a document and returns it with all defaults filled in.
Text normalize(const Text& format, const Text& text, const Text& name) {
  if (format == "reprise.plan") return to_json(parse_plan(text, name));
  if (format == "reprise.frontier") return to_json(parse_frontier(text, name));
  if (format == "reprise.profile") return to_json(parse_profile(text, name));
  if (format == "reprise.runlog") return to_json(parse_run_log(text, name));
  if (format == "reprise.graph") return to_json(parse_graph(text, name));
  return to_json(parse_chain(text, name));
}

Exactness exactness_of(const Text& name) {
  for (const Exactness e : {Exactness::kBitwise, Exactness::kRounding, Exactness::kApproximate}) {
    if (name == to_string(e)) return e;
  }
  throw InputError("allow is \"bitwise\", \"rounding\" or \"approximate\", not \"" + name + "\"");
}

Machine machine_of(const std::optional<Text>& machine) {
  return machine ? parse_machine(*machine, "machine") : Machine();
}

const OptionTable<PlanOptions>& plan_table() {
  using O = PlanOptions;
  static const OptionTable<O> table = {
      {"budget", &O::budget},
      {"planner", &O::planner},
      {"schedule_class", &O::schedule_class},
      {"time_limit_ns", &O::time_limit},
      {"slots", &O::slots},
      {"threads", &O::threads},
      {"allow", [](O& o, const Text& name) { o.allow = exactness_of(name); }},
      {"machine", [](O& o, const Text& text) { o.machine = machine_of(text); }},
      {"observer",
       [](O& o, const ObserverArgument& observer) { o.observer = observer_of(observer); }},
  };
  return table;
}

PlanOptions options_of(const py::dict& arguments) {
  return plan_table().read(arguments, {.observer = observer_of({})});
}

py::dict plan_problem(const Text& text, const Text& name, const py::kwargs& arguments) {
  const PlanOptions options = options_of(arguments);
  PlanResult result;
  {
    py::gil_scoped_release no_gil;
    const Problem problem = parse_problem(text, name);
    result = std::visit([&](const auto& model) { return plan(model, options); }, problem.model);
    // The plan names the text that was read, as the command `reprise plan` does.
    if (result.plan) result.plan->problem = problem.id;
  }
  return dict_of(result);
}

std::pair<Text, std::pair<int64_t, int64_t>> find_frontier(const Text& text, const Text& name,
                                                           const py::kwargs& arguments) {
  const PlanOptions options = options_of(arguments);
  const py::gil_scoped_release no_gil;
  const Problem problem = parse_problem(text, name);
  Frontier curve =
      std::visit([&](const auto& model) { return frontier(model, options); }, problem.model);
  curve.problem = problem.id;
  return {to_json(curve), pair_of(baseline(problem.graph()))};
}

// Returns the plan of a pipeline as JSON, or an empty text, why there is none, and the bytes that were
// needed on the device in the way.
std::tuple<Text, Text, int64_t> plan_of_pipeline(const Text& text, const Text& name,
                                                 const BudgetArgument& budget, const Text& planner,
                                                 const std::vector<int64_t>& cuts,
                                                 int64_t parts_per_device, int64_t time_limit_ns) {
  const Pipeline pipeline = parse_pipeline(text, name);
  PipelineResult result = plan(pipeline, PipelineOptions{.budget = budget_of(budget),
                                                         .planner = planner,
                                                         .cuts = cuts,
                                                         .parts_per_device = parts_per_device,
                                                         .time_limit = Nanos(time_limit_ns)});
  if (!result.plan) {
    return {Text(), explain_no_plan(result, pipeline), result.needed.value_or(Bytes(0)).count()};
  }
  result.plan->problem = {"reprise.pipeline", pipeline.name, canonical_sha256(text)};
  return {to_json(*result.plan), Text(), 0};
}

// Returns what is wrong with a plan of a pipeline, one violation a line.
Text verify_pipeline(const Text& problem, const Text& plan_text) {
  const Pipeline pipeline = parse_pipeline(problem, "pipeline");
  const PipelinePlan plan = parse_pipeline_plan(plan_text, "plan");
  const ProblemId id{"reprise.pipeline", pipeline.name, canonical_sha256(problem)};
  Text text;
  for (const Violation& violation : verify(pipeline, plan, id)) text += violation.message + "\n";
  return text;
}

// Returns the time of a plan of a pipeline, and the peak of each device.
std::pair<int64_t, std::vector<int64_t>> simulate_pipeline(const Text& problem,
                                                           const Text& plan_text) {
  const PipelineTimeline line =
      simulate(parse_pipeline(problem, "pipeline"), parse_pipeline_plan(plan_text, "plan"));
  std::vector<int64_t> peaks;
  for (const DeviceTimeline& device : line.devices) peaks.push_back(device.peak.count());
  return {line.time.count(), peaks};
}

// Returns the time of a step of several replicas, and the longest that a device carries rings.
std::pair<int64_t, int64_t> simulate_replicas(const Text& problem, const Text& plan_text,
                                              int64_t count, int64_t bytes_per_second,
                                              int64_t latency_ns, int64_t bucket_bytes) {
  const ReplicaTimes times =
      simulate(parse_pipeline(problem, "pipeline"), parse_pipeline_plan(plan_text, "plan"),
               Replicas{.count = count,
                        .bytes_per_second = bytes_per_second,
                        .latency = Nanos(latency_ns),
                        .bucket = Bytes(bucket_bytes)});
  return {times.time.count(), times.busy.count()};
}

Text draw_frontier(const Text& curve, int64_t plain_peak, int64_t plain_time,
                   const std::vector<int64_t>& marks, const Text& title,
                   const std::vector<std::pair<Text, Text>>& compared) {
  SvgOptions options{.title = title};
  for (const auto& [name, other] : compared) {
    options.compared.push_back({name, parse_frontier(other).points});
  }
  for (const int64_t mark : marks) options.marks.emplace_back(mark);
  return frontier_svg(parse_frontier(curve), {Bytes(plain_peak), Nanos(plain_time)}, {}, options);
}

Text verify_plan(const Text& problem_text, const Text& problem_name, const Text& plan_text,
                 const Text& plan_name, const BudgetArgument& budget,
                 const std::optional<Text>& machine) {
  const Problem problem = parse_problem(problem_text, problem_name);
  const Plan plan = parse_plan(plan_text, plan_name);
  const Graph graph = problem.graph(plan);
  const bool own = std::holds_alternative<std::monostate>(budget);
  const Bytes limit = own ? plan.budget : budget_of(budget).resolve(baseline(problem.graph()).peak);
  return violations_json(verify(graph, plan, limit, problem.id, machine_of(machine)), plan, limit);
}

using Steps = std::vector<std::array<int64_t, 4>>;

std::tuple<Steps, int64_t, int64_t, int64_t, int64_t> simulate_plan(
    const Text& problem_text, const Text& problem_name, const Text& plan_text,
    const Text& plan_name, const std::optional<Text>& machine) {
  const Problem problem = parse_problem(problem_text, problem_name);
  const Plan plan = parse_plan(plan_text, plan_name);
  const Timeline line = simulate(problem.graph(plan), plan, machine_of(machine));
  Steps steps;
  for (const TimelineStep& s : line.steps) {
    steps.push_back({s.during.count(), s.after.count(), s.start.count(), s.time.count()});
  }
  return {std::move(steps), line.initial.count(), line.peak.count(), line.peak_action,
          line.time.count()};
}

std::pair<Text, Text> explain_plan(const Text& problem_text, const Text& problem_name,
                                   const Text& plan_text, const Text& plan_name,
                                   const std::optional<Text>& machine) {
  const Problem problem = parse_problem(problem_text, problem_name);
  const Plan plan = parse_plan(plan_text, plan_name);
  const Explanation found = explain(problem.graph(plan), plan, machine_of(machine));
  return {explanation_json(found), explanation_text(found)};
}

using Notes = std::vector<std::tuple<Text, Text, std::vector<std::pair<Text, Text>>>>;

Text report_page(const Text& problem_text, const Text& problem_name, const Text& plan_text,
                 const Text& plan_name, const std::optional<Text>& run_log,
                 const Text& run_log_name, const std::optional<Text>& machine, Notes notes,
                 int64_t time_limit_ns) {
  ReportInput input{.problem = parse_problem(problem_text, problem_name),
                    .plan = parse_plan(plan_text, plan_name)};
  if (run_log) input.run_log = parse_run_log(*run_log, run_log_name);
  input.machine = machine_of(machine);
  for (auto& [title, about, rows] : notes) {
    input.notes.push_back({std::move(title), std::move(about), std::move(rows)});
  }
  if (time_limit_ns > 0) add_curves(input, {.time_limit = Nanos(time_limit_ns)});
  return report_html(input);
}

int64_t resolve_budget(const BudgetArgument& argument, std::optional<int64_t> baseline_peak) {
  const Budget budget = budget_of(argument);
  if (budget.relative() && !baseline_peak) {
    throw InputError("a share needs the peak of plain training, which is not known here");
  }
  return budget.resolve(Bytes(baseline_peak.value_or(0))).count();
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  py::register_local_exception_translator(&translate_error);
  m.attr("__version__") = REPRISE_VERSION;
  m.def("normalize", &normalize, py::arg("format"), py::arg("text"), py::arg("name"), NoGil());
  m.def(
      "read_file", [](const Text& path) { return read_file(path); }, py::arg("path"), NoGil());
  m.def(
      "write_file", [](const Text& path, const Text& content) { write_file(path, content); },
      py::arg("path"), py::arg("content"), NoGil());
  m.def(
      "lower",
      [](const Text& text, const Text& name) { return to_json(lower(parse_chain(text, name))); },
      py::arg("text"), py::arg("name"), NoGil());
  m.def("plan", &plan_problem, py::arg("text"), py::arg("name"), plan_table().names().c_str());
  m.def("plan_pipeline", &plan_of_pipeline, py::arg("text"), py::arg("name"), py::kw_only(),
        py::arg("budget"), py::arg("planner"), py::arg("cuts"), py::arg("parts_per_device"),
        py::arg("time_limit_ns"), NoGil());
  m.def("verify_pipeline", &verify_pipeline, py::arg("problem"), py::arg("plan"), NoGil());
  m.def("simulate_pipeline", &simulate_pipeline, py::arg("problem"), py::arg("plan"), NoGil());
  m.def("simulate_replicas", &simulate_replicas, py::arg("problem"), py::arg("plan"), py::kw_only(),
        py::arg("count"), py::arg("bytes_per_second"), py::arg("latency_ns"),
        py::arg("bucket_bytes"), NoGil());
  m.def("frontier", &find_frontier, py::arg("text"), py::arg("name"), plan_table().names().c_str());
  m.def("frontier_svg", &draw_frontier, py::arg("curve"), py::arg("plain_peak"),
        py::arg("plain_time"), py::arg("marks"), py::arg("title"), py::arg("compared"), NoGil());
  m.def("verify", &verify_plan, py::arg("problem"), py::arg("problem_name"), py::arg("plan"),
        py::arg("plan_name"), py::arg("budget"), py::arg("machine"), NoGil());
  m.def("simulate", &simulate_plan, py::arg("problem"), py::arg("problem_name"), py::arg("plan"),
        py::arg("plan_name"), py::arg("machine"), NoGil());
  m.def("explain", &explain_plan, py::arg("problem"), py::arg("problem_name"), py::arg("plan"),
        py::arg("plan_name"), py::arg("machine"), NoGil());
  m.def("report_html", &report_page, py::arg("problem"), py::arg("problem_name"), py::arg("plan"),
        py::arg("plan_name"), py::arg("run_log"), py::arg("run_log_name"), py::arg("machine"),
        py::arg("notes"), py::arg("time_limit_ns"), NoGil());
  m.def(
      "parse_offload", [](const Text& text) { return to_json(parse_offload(text)); },
      py::arg("text"));
  m.def("planners", [] { return planners_json(planners()); });
  m.def(
      "parse_bytes", [](const Text& text) { return parse_bytes(text).count(); }, py::arg("text"));
  m.def(
      "parse_duration", [](const Text& text) { return parse_duration(text).count(); },
      py::arg("text"));
  m.def(
      "format_bytes", [](int64_t bytes) { return format_bytes(Bytes(bytes)); }, py::arg("bytes"));
  m.def(
      "format_duration", [](int64_t ns) { return format_duration(Nanos(ns)); }, py::arg("ns"));
  m.def("resolve_budget", &resolve_budget, py::arg("budget"), py::arg("baseline_peak"));
}

}  // namespace reprise::python
