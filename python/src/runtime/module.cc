// The extension reprise._runtime: captured steps and planned chains of stages. It is built for one version
// of PyTorch, and Python compares versions before it loads the extension (_torch.py). The runtime works
// without the GIL. The functions that pybind11 makes of Python functions take the GIL themselves.
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../errors.h"
#include "../results.h"
#include "estimates.h"
#include "few_bit.h"
#include "in_place_abn.h"
#include "mirror.h"
#include "online.h"
#include "pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/miss.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/remat.h"
#include "reprise/runtime/remat_join.h"
#include "reversible.h"
#include "saved.h"
#include "stage_arguments.h"
#include "tiled.h"
#include "watched.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using rt::Tensors;
using Text = std::string;

// --- Refused requests -------------------------------------------------------------------------------

// The class reprise.BudgetError. The reference is held until the process ends.
PyObject* budget_error_class = nullptr;

// The exception of a refused request for memory. PyTorch's bindings hand it on as a reprise.BudgetError,
// from wherever in a step it comes. Only its message survives that, so refuse() keeps the numbers.
struct Refused final : torch::PyTorchError {
  explicit Refused(const BudgetError& e) : torch::PyTorchError(e.what()), error(e) {}
  PyObject* python_type() override { return budget_error_class; }
  BudgetError error;
};

std::mutex refusal_mutex;
std::optional<BudgetError> last_refused;

void refuse(const BudgetError& error) {
  {
    std::lock_guard<std::mutex> lock(refusal_mutex);
    last_refused = error;
  }
  throw Refused(error);
}

std::optional<std::tuple<Text, int64_t, int64_t, int64_t>> last_refusal() {
  std::lock_guard<std::mutex> lock(refusal_mutex);
  if (!last_refused) return std::nullopt;
  return std::tuple(Text(last_refused->what()), last_refused->budget(), last_refused->live(),
                    last_refused->requested());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const rt::StepMiss& miss) {
    set_error("StepMiss", miss.what(), miss.of_reads(), miss.of_function(), miss.of_gradients());
  } catch (const rt::PeerError& error) {
    set_error("PeerError", error.what());
  } catch (const Refused& refused) {
    translate_error(std::make_exception_ptr(refused.error));
  } catch (...) {
    translate_error(pointer);
  }
}

// --- Places in the user's program -------------------------------------------------------------------

// Returns "file:line" of the innermost frame that is neither PyTorch's nor Reprise's own. `inside` are
// the folders of these packages. Steps run without the GIL, so it is taken here.
Text place_in_python(const std::vector<Text>& inside) {
  const py::gil_scoped_acquire gil;
  py::object frame =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const Text file = py::str(frame.attr("f_code").attr("co_filename"));
    const bool ours = std::any_of(inside.begin(), inside.end(),
                                  [&](const Text& folder) { return file.starts_with(folder); });
    if (!ours) {
      const Text line = py::str(frame.attr("f_lineno"));
      return file.substr(file.find_last_of('/') + 1) + ":" + line;
    }
    frame = frame.attr("f_back");
  }
  return {};
}

void name_places(const std::vector<Text>& inside) {
  rt::find_sources_with([inside] { return place_in_python(inside); });
}

// --- Captured steps ---------------------------------------------------------------------------------

rt::StepPlanOptions plan_options(const BudgetArgument& budget, const Text& planner,
                                 int64_t time_limit_ns, int threads, bool enforce, bool arena,
                                 bool device_graph, const ObserverArgument& observer) {
  return {.budget = budget_of(budget),
          .planner = planner,
          .time_limit = Nanos(time_limit_ns),
          .threads = threads,
          .enforce = enforce,
          .arena = arena,
          .device_graph = device_graph,
          .observer = observer_of(observer)};
}

std::optional<int64_t> limit_or_none(Bytes budget) {
  if (budget == Budget().resolve(Bytes(0))) return std::nullopt;
  return budget.count();
}

// Returns the options for a list of names: these kinds and no others, however exact they are. Without a
// list, all kinds that leave the same bits are allowed.
rt::AlternativeOptions alternatives_of(const std::optional<std::vector<Text>>& names) {
  rt::AlternativeOptions options;
  if (!names) return options;
  options.only = *names;
  for (const rt::AlternativeInfo& kind : rt::alternatives()) {
    if (names->empty()) options.without.push_back(kind.name);
    const bool named = std::find(names->begin(), names->end(), kind.name) != names->end();
    if (named) options.allow = std::max(options.allow, kind.exactness);
  }
  return options;
}

rt::Lockstep lockstep_of(const Text& name) {
  if (name == "always") return rt::Lockstep::kAlways;
  return name == "never" ? rt::Lockstep::kNever : rt::Lockstep::kSparse;
}

std::vector<std::tuple<Text, Text, Text, bool, bool>> list_alternatives() {
  std::vector<std::tuple<Text, Text, Text, bool, bool>> rows;
  for (const rt::AlternativeInfo& kind : rt::alternatives()) {
    rows.emplace_back(kind.name, kind.description, to_string(kind.exactness), kind.in_graph,
                      kind.in_chain);
  }
  return rows;
}

// Returns the run log as JSON, or nothing if no step was measured.
std::optional<Text> text_of(const std::optional<RunLog>& log) {
  if (!log) return std::nullopt;
  return to_json(*log);
}

// Calls a reprise._optimizer.ParameterSteps. Every member takes the GIL.
class PythonOptimizer final : public rt::ParameterOptimizer {
 public:
  explicit PythonOptimizer(py::object steps) : steps_(std::move(steps)) {}
  ~PythonOptimizer() override {
    const py::gil_scoped_acquire gil;
    steps_ = py::object();
  }

  Text name() const override { return call<Text>("name"); }
  Tensors parameters() const override { return call<Tensors>("parameters"); }
  void step(size_t parameter) override {
    const py::gil_scoped_acquire gil;
    steps_.attr("step")(parameter);
  }
  bool has_state(size_t parameter) const override { return call<bool>("has_state", parameter); }
  Text memory_key(size_t parameter) const override { return call<Text>("memory_key", parameter); }
  std::unique_ptr<rt::ParameterOptimizer> twin(size_t parameter,
                                               const at::Tensor& stand_in) const override {
    const py::gil_scoped_acquire gil;
    return std::make_unique<PythonOptimizer>(steps_.attr("twin")(parameter, stand_in));
  }

 private:
  template <class Result, class... Arguments>
  Result call(const char* method, Arguments... arguments) const {
    const py::gil_scoped_acquire gil;
    return steps_.attr(method)(arguments...).template cast<Result>();
  }

  py::object steps_;
};

class CapturedStep {
 public:
  CapturedStep(rt::StepFunction step, Tensors sample, const std::vector<py::object>& modules,
               bool recapture, int outcomes, const std::optional<std::vector<Text>>& alternatives,
               const py::object& optimizer, const Text& lockstep, const BudgetArgument& budget,
               const Text& name, const ObserverArgument& observer, const Text& cache,
               const Text& group, int64_t bucket_cap) {
    rt::CaptureOptions options =
        capture_options(modules, recapture, outcomes, alternatives, optimizer, lockstep, budget,
                        name, observer, cache, group, bucket_cap);
    py::gil_scoped_release no_gil;
    step_ =
        std::make_unique<rt::CapturedStep>(std::move(step), std::move(sample), std::move(options));
  }

  // Runs micro_batches(). Returns the step, the number of its parts, and each number that was tried with
  // its result.
  static py::tuple in_parts(const rt::PartFunction& part, const rt::BodyFunction& body,
                            const Tensors& sample, std::vector<int64_t> parts, const py::dict& plan,
                            const std::vector<py::object>& modules, bool recapture, int outcomes,
                            const std::optional<std::vector<Text>>& alternatives,
                            const py::object& optimizer, const Text& lockstep,
                            const BudgetArgument& budget, const Text& name,
                            const ObserverArgument& observer, const Text& cache, const Text& group,
                            int64_t bucket_cap) {
    auto step = std::unique_ptr<CapturedStep>(new CapturedStep);
    const rt::MicroBatchOptions options{
        .body = body,
        .parts = std::move(parts),
        .capture =
            step->capture_options(modules, recapture, outcomes, alternatives, optimizer, lockstep,
                                  budget, name, observer, cache, group, bucket_cap),
        .plan = plan_options(plan["budget"].cast<BudgetArgument>(), plan["planner"].cast<Text>(),
                             plan["time_limit_ns"].cast<int64_t>(), plan["threads"].cast<int>(),
                             plan["enforce"].cast<bool>(), plan["arena"].cast<bool>(),
                             plan["device_graph"].cast<bool>(),
                             plan["observer"].cast<ObserverArgument>())};
    std::optional<rt::MicroBatches> found;
    {
      py::gil_scoped_release no_gil;
      found.emplace(rt::micro_batches(part, sample, options));
      step->step_ = std::make_unique<rt::CapturedStep>(std::move(found->step));
    }
    py::list tried;
    for (const rt::PartsTried& one : found->tried) {
      tried.append(py::make_tuple(one.parts, dict_of(one.result)));
    }
    return py::make_tuple(std::move(step), found->chosen.parts, tried);
  }

  py::dict plan(const BudgetArgument& budget, const Text& planner, int64_t time_limit_ns,
                int threads, bool enforce, bool arena, bool device_graph,
                const ObserverArgument& observer) {
    {
      py::gil_scoped_release no_gil;
      step_->plan(plan_options(budget, planner, time_limit_ns, threads, enforce, arena,
                               device_graph, observer));
    }
    return planned();
  }
  void use(const Text& plan, const BudgetArgument& budget, bool enforce, bool arena,
           bool device_graph) {
    py::gil_scoped_release no_gil;
    step_->use(parse_plan(plan), plan_options(budget, "", 0, 0, enforce, arena, device_graph, {}));
  }
  std::optional<Tensors> run(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    return step_->run_captured(inputs);
  }
  void capture_outcome(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    step_->capture_outcome(inputs);
  }
  void forget_outcome() { step_->forget_outcome(); }
  std::vector<int64_t> outcomes() const { return step_->outcomes(); }
  std::vector<std::string> guards() const { return step_->guards(); }
  std::vector<Text> host_reads() const { return step_->host_reads(); }
  bool comparing() const { return step_ && step_->comparing(); }
  void synchronize(bool averages) { step_->synchronize(averages); }
  void tell_failure(const Text& reason) { step_->tell_failure(reason); }
  bool refresh() { return mirrors_.refresh(); }
  py::dict planned() const { return dict_of(step_->planned()); }
  py::tuple cache_use() const {
    const rt::CacheUse use = step_->cache_use();
    return py::make_tuple(use.found, use.warning);
  }
  Text graph() const { return to_json(step_->graph()); }
  Text profile() const { return to_json(step_->profile()); }
  void log_steps(int64_t steps) { step_->log_steps(steps); }
  std::optional<Text> run_log() const { return text_of(step_->run_log()); }
  py::dict report() const {
    const rt::CapturedStepReport report = step_->last_step();
    py::dict found;
    found["budget_bytes"] = limit_or_none(report.budget);
    found["predicted_peak_bytes"] = report.predicted_peak.count();
    found["measured_peak_bytes"] = report.measured_peak.count();
    found["arena_height_bytes"] = report.arena_height.count();
    found["arena_live_bytes"] = report.arena_live_bytes.count();
    found["served"] = report.served;
    found["fallbacks"] = report.fallbacks;
    found["steps"] = report.steps;
    found["plans"] = report.plans;
    found["compared"] = report.compared;
    found["graphed"] = report.graphed;
    found["no_device_graph"] = report.no_device_graph;
    return found;
  }

 private:
  CapturedStep() = default;

  rt::CaptureOptions capture_options(const std::vector<py::object>& modules, bool recapture,
                                     int outcomes,
                                     const std::optional<std::vector<Text>>& alternatives,
                                     const py::object& optimizer, const Text& lockstep,
                                     const BudgetArgument& budget, const Text& name,
                                     const ObserverArgument& observer, const Text& cache,
                                     const Text& group, int64_t bucket_cap) {
    rt::CaptureOptions options;
    options.budget = budget_of(budget);
    if (!optimizer.is_none()) options.optimizer = std::make_shared<PythonOptimizer>(optimizer);
    options.alternatives = alternatives_of(alternatives);
    for (const py::object& module : modules) options.modules.push_back(mirrors_.of(module));
    if (recapture) options.on_miss = rt::OnMiss::kRecapture;
    options.outcomes = outcomes;
    options.lockstep = lockstep_of(lockstep);
    options.runs = 2;  // Guards compare the state of Python before each call.
    options.cache = cache;
    options.group = group;
    options.bucket_cap = Bytes(bucket_cap);
    options.measure.name = name;
    options.measure.observer = observer_of(observer);
    return options;
  }

  Mirrors mirrors_;
  std::unique_ptr<rt::CapturedStep> step_;
};

// --- Chains of stages -------------------------------------------------------------------------------

using LossArgument = std::optional<rt::Loss>;

Text profile_stages(const std::vector<StageArgument>& arguments, const Tensors& sample,
                    const LossArgument& loss, const std::optional<std::vector<Text>>& alternatives,
                    const Text& name, bool output_held, const ObserverArgument& observer) {
  Mirrors mirrors;
  rt::RematOptions options;
  if (loss) options.loss = *loss;
  options.measure.alternatives = alternatives_of(alternatives);
  options.measure.name = name;
  options.measure.output_held = output_held;
  options.measure.observer = observer_of(observer);
  const std::vector<rt::Stage> stages = stages_of(arguments, mirrors);
  py::gil_scoped_release no_gil;
  // Without a limit the model is measured and planned as plain training, and it is never run.
  return to_json(rt::remat(stages, sample, options)->profile());
}

py::dict fields_of(const rt::StepReport& report) {
  py::dict found;
  found["budget_bytes"] = limit_or_none(report.budget);
  found["predicted_peak_bytes"] = report.predicted_peak.count();
  found["measured_peak_bytes"] = report.measured_peak.count();
  found["steps"] = report.steps;
  found["plans"] = report.plans;
  found["moved_out_bytes"] = report.moved_out.count();
  found["moved_in_bytes"] = report.moved_in.count();
  found["waited_ns"] = report.waited.count();
  return found;
}

class Remat {
 public:
  Remat(const std::vector<StageArgument>& arguments, const BudgetArgument& budget,
        const Text& planner, int64_t time_limit_ns, const LossArgument& loss,
        const std::optional<std::vector<Text>>& alternatives, const Text& name, bool output_held,
        bool enforce, const Text& offload, const std::optional<Text>& machine,
        const ObserverArgument& observer) {
    rt::RematOptions options{.budget = budget_of(budget),
                             .planner = planner,
                             .time_limit = Nanos(time_limit_ns),
                             .enforce = enforce,
                             .offload = {.to = offload},
                             .observer = observer_of(observer)};
    if (machine) options.offload.machine = parse_machine(*machine, "machine");
    if (loss) options.loss = *loss;
    options.measure.alternatives = alternatives_of(alternatives);
    options.measure.name = name;
    options.measure.output_held = output_held;
    model_ = std::make_shared<rt::Remat>(stages_of(arguments, mirrors_), std::move(options));
  }

  Tensors forward(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    return model_->forward(inputs);
  }
  void plan_for(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    model_->plan_for(inputs);
  }
  void set_budget(const BudgetArgument& budget) { model_->set_budget(budget_of(budget)); }
  bool refresh() { return mirrors_.refresh(); }
  py::dict planned() const { return dict_of(model_->plan()); }
  Text chain() const { return to_json(model_->chain()); }
  Text profile() const { return to_json(model_->profile()); }
  void log_steps(int64_t steps) { model_->log_steps(steps); }
  std::optional<Text> run_log() const { return text_of(model_->run_log()); }
  py::dict report() const { return fields_of(model_->last_step()); }
  // The memories of the plan as JSON, or nothing if there is the device alone.
  std::optional<Text> machine() const {
    if (model_->machine().channels.empty()) return std::nullopt;
    return to_json(model_->machine());
  }

 private:
  Mirrors mirrors_;
  std::shared_ptr<rt::Remat> model_;
};

using BranchArgument = std::pair<Text, std::vector<StageArgument>>;

class RematJoin {
 public:
  RematJoin(const std::vector<BranchArgument>& branches, const std::vector<StageArgument>& tail,
            const BudgetArgument& budget, int64_t time_limit_ns, const LossArgument& loss,
            const std::optional<std::vector<Text>>& alternatives, const Text& name,
            bool output_held, bool enforce, const ObserverArgument& observer) {
    rt::RematOptions options{.budget = budget_of(budget),
                             .time_limit = Nanos(time_limit_ns),
                             .enforce = enforce,
                             .observer = observer_of(observer)};
    if (loss) options.loss = *loss;
    options.measure.alternatives = alternatives_of(alternatives);
    options.measure.name = name;
    options.measure.output_held = output_held;
    std::vector<rt::StageBranch> stages;
    for (const auto& [branch, own] : branches) stages.push_back({branch, stages_of(own, mirrors_)});
    model_ = std::make_shared<rt::RematJoin>(std::move(stages), stages_of(tail, mirrors_),
                                             std::move(options));
  }

  Tensors forward(const std::vector<Tensors>& inputs) {
    py::gil_scoped_release no_gil;
    return model_->forward(inputs);
  }
  void plan_for(const std::vector<Tensors>& inputs) {
    py::gil_scoped_release no_gil;
    model_->plan_for(inputs);
  }
  void set_budget(const BudgetArgument& budget) { model_->set_budget(budget_of(budget)); }
  bool refresh() { return mirrors_.refresh(); }
  py::dict planned() const { return dict_of(model_->plan()); }
  Text join() const { return to_json(model_->join()); }
  py::dict report() const { return fields_of(model_->last_step()); }

 private:
  Mirrors mirrors_;
  std::shared_ptr<rt::RematJoin> model_;
};

void bind_captured_step(py::module_& m) {
  py::class_<CapturedStep>(m, "CapturedStep")
      .def(py::init<rt::StepFunction, Tensors, const std::vector<py::object>&, bool, int,
                    const std::optional<std::vector<Text>>&, const py::object&, const Text&,
                    const BudgetArgument&, const Text&, const ObserverArgument&, const Text&,
                    const Text&, int64_t>(),
           py::arg("step"), py::arg("sample"), py::kw_only(), py::arg("modules"),
           py::arg("recapture"), py::arg("outcomes"), py::arg("alternatives"), py::arg("optimizer"),
           py::arg("lockstep"), py::arg("budget"), py::arg("name"), py::arg("observer"),
           py::arg("cache"), py::arg("group"), py::arg("bucket_cap"))
      .def_static("in_parts", &CapturedStep::in_parts, py::arg("part"), py::arg("body"),
                  py::arg("sample"), py::kw_only(), py::arg("parts"), py::arg("plan"),
                  py::arg("modules"), py::arg("recapture"), py::arg("outcomes"),
                  py::arg("alternatives"), py::arg("optimizer"), py::arg("lockstep"),
                  py::arg("budget"), py::arg("name"), py::arg("observer"), py::arg("cache"),
                  py::arg("group"), py::arg("bucket_cap"))
      .def("plan", &CapturedStep::plan, py::kw_only(), py::arg("budget"), py::arg("planner"),
           py::arg("time_limit_ns"), py::arg("threads"), py::arg("enforce"), py::arg("arena"),
           py::arg("device_graph"), py::arg("observer"))
      .def("use", &CapturedStep::use, py::arg("plan"), py::kw_only(), py::arg("budget"),
           py::arg("enforce"), py::arg("arena"), py::arg("device_graph"))
      .def("run", &CapturedStep::run, py::arg("inputs"))
      .def("capture_outcome", &CapturedStep::capture_outcome, py::arg("inputs"))
      .def("forget_outcome", &CapturedStep::forget_outcome)
      .def("outcomes", &CapturedStep::outcomes)
      .def("guards", &CapturedStep::guards)
      .def("host_reads", &CapturedStep::host_reads)
      .def("comparing", &CapturedStep::comparing)
      .def("synchronize", &CapturedStep::synchronize, py::arg("averages"))
      .def("tell_failure", &CapturedStep::tell_failure, py::arg("reason"))
      .def("refresh", &CapturedStep::refresh)
      .def("planned", &CapturedStep::planned)
      .def("cache_use", &CapturedStep::cache_use)
      .def("graph", &CapturedStep::graph)
      .def("profile", &CapturedStep::profile)
      .def("log_steps", &CapturedStep::log_steps, py::arg("steps"))
      .def("run_log", &CapturedStep::run_log)
      .def("report", &CapturedStep::report);
}

void bind_remat(py::module_& m) {
  py::class_<Remat>(m, "Remat")
      .def(py::init<const std::vector<StageArgument>&, const BudgetArgument&, const Text&, int64_t,
                    const LossArgument&, const std::optional<std::vector<Text>>&, const Text&, bool,
                    bool, const Text&, const std::optional<Text>&, const ObserverArgument&>(),
           py::arg("stages"), py::kw_only(), py::arg("budget"), py::arg("planner"),
           py::arg("time_limit_ns"), py::arg("loss"), py::arg("alternatives"), py::arg("name"),
           py::arg("output_held"), py::arg("enforce"), py::arg("offload"), py::arg("machine"),
           py::arg("observer"))
      .def("machine", &Remat::machine)
      .def("forward", &Remat::forward, py::arg("inputs"))
      .def("plan_for", &Remat::plan_for, py::arg("inputs"))
      .def("set_budget", &Remat::set_budget, py::arg("budget"))
      .def("refresh", &Remat::refresh)
      .def("planned", &Remat::planned)
      .def("chain", &Remat::chain)
      .def("profile", &Remat::profile)
      .def("log_steps", &Remat::log_steps, py::arg("steps"))
      .def("run_log", &Remat::run_log)
      .def("report", &Remat::report);
  py::class_<RematJoin>(m, "RematJoin")
      .def(py::init<const std::vector<BranchArgument>&, const std::vector<StageArgument>&,
                    const BudgetArgument&, int64_t, const LossArgument&,
                    const std::optional<std::vector<Text>>&, const Text&, bool, bool,
                    const ObserverArgument&>(),
           py::arg("branches"), py::arg("tail"), py::kw_only(), py::arg("budget"),
           py::arg("time_limit_ns"), py::arg("loss"), py::arg("alternatives"), py::arg("name"),
           py::arg("output_held"), py::arg("enforce"), py::arg("observer"))
      .def("forward", &RematJoin::forward, py::arg("inputs"))
      .def("plan_for", &RematJoin::plan_for, py::arg("inputs"))
      .def("set_budget", &RematJoin::set_budget, py::arg("budget"))
      .def("refresh", &RematJoin::refresh)
      .def("planned", &RematJoin::planned)
      .def("join", &RematJoin::join)
      .def("report", &RematJoin::report);
  m.def("profile", &profile_stages, py::arg("stages"), py::arg("sample"), py::kw_only(),
        py::arg("loss"), py::arg("alternatives"), py::arg("name"), py::arg("output_held"),
        py::arg("observer"));
}

}  // namespace

PYBIND11_MODULE(_runtime, m) {
  budget_error_class =
      py::object(py::module_::import("reprise.errors").attr("BudgetError")).release().ptr();
  rt::set_cpu_refusal(&refuse);
  py::register_local_exception_translator(&translate);
  m.def("install_cpu_allocator", &rt::install_cpu_allocator);
  m.def("live_bytes", [] { return rt::memory_count(c10::kCPU).live; });
  m.def("peak_bytes", [] { return rt::memory_count(c10::kCPU).peak; });
  m.def("reset_peak", [] { rt::reset_peak(c10::kCPU); });
  m.def("last_refusal", &last_refusal);
  m.def("no_bytes", &rt::no_bytes_text);
  m.def("name_places", &name_places, py::arg("inside"));
  py::class_<Watched>(m, "Watched")
      .def(py::init<>())
      .def("add", &Watched::add, py::arg("dicts"), py::arg("objects"), py::arg("tensors"))
      .def("changed", &Watched::changed)
      .def("renew", &Watched::renew, py::arg("number"));
  m.def("alternatives", &list_alternatives);
  bind_captured_step(m);
  bind_remat(m);
  bind_pipeline(m);
  bind_online(m);
  bind_tiled_functions(m);
  bind_few_bit(m);
  bind_saved(m);
  bind_reversible(m);
  bind_in_place_abn(m);
  bind_estimates(m);
}

}  // namespace reprise::python
