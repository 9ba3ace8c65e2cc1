#include "captured_step.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../errors.h"
#include "../options.h"
#include "arguments.h"
#include "mirror.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/random_mark.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using rt::Tensors;
using Text = std::string;

const OptionTable<rt::StepPlanOptions>& plan_table() {
  using O = rt::StepPlanOptions;
  static const OptionTable<O> table = {
      {"budget", &O::budget},
      {"planner", &O::planner},
      {"time_limit_ns", &O::time_limit},
      {"threads", &O::threads},
      {"enforce", &O::enforce},
      {"arena", &O::arena},
      {"device_graph", &O::device_graph},
      {"offload", [](O& o, const Text& to) { o.offload.to = to; }},
      {"machine",
       [](O& o, const Text& text) { o.offload.machine = parse_machine(text, "machine"); }},
      {"offload_optimizer", &O::offload_optimizer},
      {"offload_parameters", &O::offload_parameters},
      {"observer",
       [](O& o, const ObserverArgument& observer) { o.observer = observer_of(observer); }},
      {"share_of",
       [](O& o, const std::pair<int64_t, int64_t>& peak) {
         o.share_of = {Bytes(peak.first), Bytes(peak.second)};
       }},
  };
  return table;
}

rt::StepPlanOptions plan_options(const py::dict& arguments) {
  return plan_table().read(arguments, {.observer = observer_of({})});
}

rt::Lockstep lockstep_of(const Text& name) {
  if (name == "always") return rt::Lockstep::kAlways;
  return name == "never" ? rt::Lockstep::kNever : rt::Lockstep::kSparse;
}

// Calls a reprise._capture.optimizer.ParameterSteps. Every member takes the GIL.
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
  Tensors state_of(size_t parameter) const override { return call<Tensors>("state_of", parameter); }
  bool keep_state_of(const std::vector<size_t>& parameters) override {
    const py::gil_scoped_acquire gil;
    steps_.attr("keep_state_of")(parameters);
    return true;
  }

 private:
  template <class Result, class... Arguments>
  Result call(const char* method, Arguments... arguments) const {
    const py::gil_scoped_acquire gil;
    return steps_.attr(method)(arguments...).template cast<Result>();
  }

  py::object steps_;
};

struct CaptureArguments : rt::CaptureOptions {
  std::vector<py::object> python_modules = {};
};

const OptionTable<CaptureArguments>& capture_table() {
  using O = CaptureArguments;
  static const OptionTable<O> table = {
      {"modules", &O::python_modules},
      {"recapture",
       [](O& o, bool yes) {
         if (yes) o.on_miss = rt::OnMiss::kRecapture;
       }},
      {"outcomes", &O::outcomes},
      {"alternatives",
       [](O& o, const std::vector<Text>& names) { o.alternatives = alternatives_of(names); }},
      {"optimizer",
       [](O& o, const py::object& steps) {
         o.optimizer = std::make_shared<PythonOptimizer>(steps);
       }},
      {"lockstep", [](O& o, const Text& name) { o.lockstep = lockstep_of(name); }},
      {"follow",
       [](O& o, bool yes) {
         o.follow = o.tells_gradients = yes;  // reprise._capture.host_copies tells them.
       }},
      {"budget", &O::budget},
      {"name", [](O& o, const Text& name) { o.measure.name = name; }},
      {"observer",
       [](O& o, const ObserverArgument& observer) { o.measure.observer = observer_of(observer); }},
      {"cache", &O::cache},
      {"group", &O::group},
      {"bucket_cap", &O::bucket_cap},
      {"shard_optimizer", &O::shard_optimizer},
      {"other_devices",
       [](O& o, const std::vector<Text>& names) {
         for (const Text& name : names) o.other_devices.emplace_back(name);
       }},
      {"foreseen",
       [](O& o, const ForeseenArgument& foreseen) { o.foreseen = foreseen_of(foreseen); }},
      {"share_work", &O::share_work},
  };
  return table;
}

class CapturedStep {
 public:
  CapturedStep(rt::StepFunction step, Tensors sample, const py::kwargs& arguments) {
    rt::CaptureOptions options = capture_options(arguments);
    py::gil_scoped_release no_gil;
    step_ =
        std::make_unique<rt::CapturedStep>(std::move(step), std::move(sample), std::move(options));
  }

  // Runs micro_batches(). Returns the step, the number of its parts, and each number that was tried with
  // its result.
  static py::tuple in_parts(const rt::PartFunction& part, const rt::BodyFunction& body,
                            const Tensors& sample, std::vector<int64_t> parts, const py::dict& plan,
                            const py::dict& capture) {
    auto step = std::unique_ptr<CapturedStep>(new CapturedStep);
    const rt::MicroBatchOptions options{.body = body,
                                        .parts = std::move(parts),
                                        .capture = step->capture_options(capture),
                                        .plan = plan_options(plan)};
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

  py::dict plan(const py::kwargs& arguments) {
    const rt::StepPlanOptions options = plan_options(arguments);
    without_gil([&] { step_->plan(options); });
    return planned();
  }
  void plan_ahead(const py::kwargs& arguments) { step_->plan_ahead(plan_options(arguments)); }
  bool is_recorded() const { return step_->is_recorded(); }
  // Returns the bytes of a peak, and of the inputs of its step (rt::SharedPeak).
  std::optional<std::pair<int64_t, int64_t>> shared_peak() const {
    const std::optional<rt::SharedPeak> found = step_->shared_peak();
    if (!found) return std::nullopt;
    return std::pair(found->peak.count(), found->inputs.count());
  }
  void use(const Text& plan, const py::kwargs& arguments) {
    const rt::StepPlanOptions options = plan_options(arguments);
    without_gil([&] { step_->use(parse_plan(plan), options); });
  }
  void fetch_optimizer_state() {
    py::gil_scoped_release no_gil;
    step_->fetch_optimizer_state();
  }
  void fetch_parameters() {
    py::gil_scoped_release no_gil;
    step_->fetch_parameters();
  }
  // Returns the memories of the plan as JSON, or nothing if there is the device alone.
  std::optional<Text> machine() const {
    if (step_->machine().channels.empty()) return std::nullopt;
    return to_json(step_->machine());
  }
  std::optional<Tensors> run(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    return step_->run_captured(inputs);
  }
  void capture_outcome(const Tensors& inputs) {
    py::gil_scoped_release no_gil;
    step_->capture_outcome(inputs);
  }
  void forget_outcome() {
    without_gil([&] { step_->forget_outcome(); });
  }
  std::vector<int64_t> outcomes() const { return step_->outcomes(); }
  std::vector<std::string> guards() const { return step_->guards(); }
  std::vector<Text> host_reads() const { return step_->host_reads(); }
  std::vector<Text> refusals() const { return step_->refusals(); }
  int64_t overhead_count() const { return step_->overhead_count(); }
  bool comparing() const { return step_ && step_->comparing(); }
  void synchronize(bool averages) { step_->synchronize(averages); }
  void tell_failure(const Text& reason) { step_->tell_failure(reason); }
  Text first_difference(const Text& mine) {
    return without_gil([&] { return step_->first_difference(mine); });
  }
  bool refresh() { return mirrors_.refresh(); }
  void use_modules(const std::vector<py::object>& modules) {
    mirrors_ = Mirrors();
    std::vector<std::shared_ptr<torch::nn::Module>> all;
    for (const py::object& module : modules) all.push_back(mirrors_.of(module));
    step_->use_modules(std::move(all));
  }
  py::dict planned() const { return dict_of(step_->planned()); }
  py::tuple cache_use() const {
    const rt::CacheUse use = step_->cache_use();
    return py::make_tuple(use.found, use.warning);
  }
  void check_codecs(const Text& check) {
    if (check != "none" && check != "compare" && check != "bypass") {
      throw InputError("codecs are checked by \"compare\" or \"bypass\", or \"none\"; not \"" +
                       check + "\"");
    }
    step_->check_codecs(check == "compare"  ? rt::CodecCheck::kCompare
                        : check == "bypass" ? rt::CodecCheck::kBypass
                                            : rt::CodecCheck::kNone);
  }
  py::list approximate_values() const {
    py::list all;
    for (const rt::ApproximateValue& value : step_->approximate_values()) {
      all.append(py::make_tuple(value.op, value.alternative, value.plain.count(),
                                value.kept.count(), value.bound, value.largest, value.error));
    }
    return all;
  }
  Text graph() const { return to_json(step_->graph()); }
  Text profile() const { return to_json(step_->profile()); }
  void log_steps(int64_t steps) { step_->log_steps(steps); }
  std::optional<Text> run_log() const { return text_of(step_->run_log()); }
  py::dict report() const {
    const rt::CapturedStepReport report = without_gil([&] { return step_->last_step(); });
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
    found["left"] = report.left;
    found["last_difference"] = report.last_difference;
    found["no_device_graph"] = report.no_device_graph;
    found["moved_out_bytes"] = report.moved_out.count();
    found["moved_in_bytes"] = report.moved_in.count();
    found["waited_ns"] = report.waited.count();
    found["offload_choice"] = report.offload_choice;
    py::list others;
    for (const rt::OtherDeviceReport& other : report.other_devices) {
      others.append(py::make_tuple(other.device, other.runs, other.predicted_peak.count(),
                                   other.measured_peak.count()));
    }
    found["other_devices"] = py::tuple(others);
    found["overheads"] = overhead_rows(report.overheads);
    return found;
  }

 private:
  CapturedStep() = default;

  rt::CaptureOptions capture_options(const py::dict& arguments) {
    CaptureArguments start;
    start.runs = 2;  // Guards compare the state of Python before each call.
    start.measure.observer = observer_of({});
    CaptureArguments options = capture_table().read(arguments, std::move(start));
    for (const py::object& module : options.python_modules) {
      options.modules.push_back(mirrors_.of(module));
    }
    return options;
  }

  Mirrors mirrors_;
  std::unique_ptr<rt::CapturedStep> step_;
};

}  // namespace

void bind_captured_step(py::module_& m) {
  m.def("host_copy", &rt::host_copy, py::arg("tensor"));
  m.def("leave_recording", &rt::leave_recording, py::arg("reason"));
  m.def("touch_gradient", &rt::touch_gradient, py::arg("leaf"));
  m.def("mark_random_state", &rt::mark_random_state);
  m.def("return_to_random_state", &rt::return_to_random_state, py::arg("mark"));
  py::class_<CapturedStep>(m, "CapturedStep")
      .def(py::init<rt::StepFunction, Tensors, const py::kwargs&>(), py::arg("step"),
           py::arg("sample"), capture_table().names().c_str())
      .def_static("in_parts", &CapturedStep::in_parts, py::arg("part"), py::arg("body"),
                  py::arg("sample"), py::kw_only(), py::arg("parts"), py::arg("plan"),
                  py::arg("capture"))
      .def("plan", &CapturedStep::plan, plan_table().names().c_str())
      .def("plan_ahead", &CapturedStep::plan_ahead, plan_table().names().c_str())
      .def("is_recorded", &CapturedStep::is_recorded)
      .def("shared_peak", &CapturedStep::shared_peak)
      .def("use", &CapturedStep::use, py::arg("plan"), plan_table().names().c_str())
      .def("fetch_optimizer_state", &CapturedStep::fetch_optimizer_state)
      .def("fetch_parameters", &CapturedStep::fetch_parameters)
      .def("machine", &CapturedStep::machine)
      .def("check_codecs", &CapturedStep::check_codecs, py::arg("check"))
      .def("approximate_values", &CapturedStep::approximate_values)
      .def("run", &CapturedStep::run, py::arg("inputs"))
      .def("capture_outcome", &CapturedStep::capture_outcome, py::arg("inputs"))
      .def("forget_outcome", &CapturedStep::forget_outcome)
      .def("outcomes", &CapturedStep::outcomes)
      .def("guards", &CapturedStep::guards)
      .def("host_reads", &CapturedStep::host_reads)
      .def("refusals", &CapturedStep::refusals)
      .def("overhead_count", &CapturedStep::overhead_count)
      .def("comparing", &CapturedStep::comparing)
      .def("synchronize", &CapturedStep::synchronize, py::arg("averages"))
      .def("tell_failure", &CapturedStep::tell_failure, py::arg("reason"))
      .def("first_difference", &CapturedStep::first_difference, py::arg("mine"))
      .def("refresh", &CapturedStep::refresh)
      .def("use_modules", &CapturedStep::use_modules, py::arg("modules"))
      .def("planned", &CapturedStep::planned)
      .def("cache_use", &CapturedStep::cache_use)
      .def("graph", &CapturedStep::graph)
      .def("profile", &CapturedStep::profile)
      .def("log_steps", &CapturedStep::log_steps, py::arg("steps"))
      .def("run_log", &CapturedStep::run_log)
      .def("report", &CapturedStep::report);
}

}  // namespace reprise::python
