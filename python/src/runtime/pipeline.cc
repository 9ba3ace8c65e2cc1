#include "pipeline.h"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../options.h"
#include "arguments.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/pipeline.h"
#include "reprise/runtime/process_group.h"
#include "runtime/chain/pipeline_part.h"
#include "stage_arguments.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using Text = std::string;
using NoGil = py::call_guard<py::gil_scoped_release>;
using rt::Tensors;

// An exception that the runtime has caught is no longer Python's.
void forget_error() {
  const py::gil_scoped_acquire gil;
  PyErr_Clear();
}

// A PartForPython is a part that PyTorch's own schedules run: they carry the messages and the loss.
class PartForPython {
 public:
  PartForPython(const std::vector<StageArgument>& arguments, const Tensors& sample,
                const Text& name) {
    rt::MeasureOptions options;
    options.name = name;
    std::vector<rt::Stage> stages = stages_of(arguments, mirrors_);
    const py::gil_scoped_release no_gil;
    part_ = std::make_unique<Part>(std::move(stages), sample, rt::Loss(), options, forget_error);
  }

  bool refresh() { return mirrors_.refresh(); }
  std::vector<std::pair<Text, Text>> not_split() const {
    std::vector<std::pair<Text, Text>> reasons;
    for (size_t i = 0; i < part_->splits().size(); ++i) {
      const Text& why = part_->splits()[i].why_not;
      if (!why.empty()) reasons.emplace_back(part_->chain().stages[i].name, why);
    }
    return reasons;
  }
  Tensors outputs() const { return part_->outputs(); }
  void keep_everything(int64_t micro_batches) { part_->keep_everything(micro_batches); }
  void begin_step() { part_->begin_step(std::nullopt); }
  void end_step() { part_->end_step(); }
  void abort_step() { part_->abort_step(); }
  Tensors forward(int64_t micro_batch, const Tensors& input) {
    part_->give(micro_batch, input);
    part_->forward(micro_batch);
    return sent(micro_batch, MessageKind::kActivation);
  }
  Tensors input_gradient(int64_t micro_batch, const Tensors& gradient) {
    part_->give_gradient(micro_batch, gradient);
    part_->input_gradient(micro_batch);
    return sent(micro_batch, MessageKind::kGradient);
  }
  void weight_gradient(int64_t micro_batch) { part_->weight_gradient(micro_batch); }

 private:
  using Part = rt::internal::chain::PipelinePart;
  Tensors sent(int64_t micro_batch, MessageKind message) {
    Tensors tensors = part_->message(micro_batch, message);
    part_->sent(micro_batch, message);
    return tensors;
  }
  Mirrors mirrors_;
  std::unique_ptr<Part> part_;
};

using Fields = rt::PipelinedStepOptions;

const OptionTable<Fields>& pipeline_options() {
  static const OptionTable<Fields> table = {
      {"micro_batches", &Fields::micro_batches},
      {"sample", &Fields::sample},
      {"loss", &Fields::loss},
      {"target", &Fields::target},
      {"budget", &Fields::budget},
      {"planner", &Fields::planner},
      {"group", &Fields::group},
      {"timeout", &Fields::timeout},
      {"link_bytes_per_second", &Fields::link_bytes_per_second},
      {"time_limit_ns", &Fields::time_limit},
      {"name", &Fields::name},
      {"output_structure", &Fields::output_structure},
      {"input_structure", &Fields::input_structure},
  };
  return table;
}

class StepForPython {
 public:
  StepForPython(const std::vector<std::vector<StageArgument>>& arguments,
                const py::kwargs& keywords) {
    Fields options;
    std::vector<std::vector<rt::Stage>> parts;
    try {
      options = pipeline_options().read(keywords);
      for (const auto& part : arguments) parts.push_back(stages_of(part, mirrors_));
    } catch (const std::exception& error) {  // The other ranks wait for this one.
      rt::tell_failure(keywords["group"].cast<Text>(), error.what());
      throw;
    }
    options.forget_error = forget_error;
    const py::gil_scoped_release no_gil;
    step_ = std::make_unique<rt::PipelinedStep>(rt::pipeline(std::move(parts), std::move(options)));
  }

  bool refresh() { return mirrors_.refresh(); }
  std::optional<at::Tensor> run(const Tensors& inputs, const Tensors& targets) {
    const py::gil_scoped_release no_gil;
    const at::Tensor losses = step_->run(inputs, targets);
    return losses.defined() ? std::optional(losses) : std::nullopt;
  }
  void use(const Text& plan) {
    without_gil([&] {
      PipelinePlan read;
      try {
        read = parse_pipeline_plan(plan, "plan");
      } catch (const InputError& error) {  // The other ranks wait for this one's word on the plan.
        step_->tell_failure(error.what());
        throw;
      }
      step_->use(std::move(read));
    });
  }
  void tell_failure(const Text& reason) { step_->tell_failure(reason); }
  Text problem() const { return to_json(step_->problem()); }
  Text plan() const { return to_json(step_->plan()); }
  std::vector<Text> not_split() const { return step_->not_split(); }
  py::dict report() const {
    const rt::PipelinedStepReport& last = step_->last_step();
    py::dict found;
    found["budget_bytes"] = last.budget ? py::object(py::int_(last.budget->count())) : py::none();
    found["predicted_peak_bytes"] = last.predicted_peak.count();
    found["measured_peak_bytes"] = last.measured_peak.count();
    found["predicted_time_ns"] = last.predicted_time.count();
    found["measured_time_ns"] = last.measured_time.count();
    found["steps"] = last.steps;
    found["plans"] = last.plans;
    return found;
  }

 private:
  Mirrors mirrors_;
  std::unique_ptr<rt::PipelinedStep> step_;
};

}  // namespace

void bind_pipeline(py::module_& m) {
  py::class_<PartForPython>(m, "PipelinePart")
      .def(py::init<const std::vector<StageArgument>&, const Tensors&, const Text&>(),
           py::arg("stages"), py::arg("sample"), py::kw_only(), py::arg("name"))
      .def("refresh", &PartForPython::refresh)
      .def("not_split", &PartForPython::not_split)
      .def("outputs", &PartForPython::outputs)
      .def("keep_everything", &PartForPython::keep_everything, py::arg("micro_batches"))
      .def("begin_step", &PartForPython::begin_step)
      .def("end_step", &PartForPython::end_step)
      .def("abort_step", &PartForPython::abort_step, NoGil())
      .def("forward", &PartForPython::forward, py::arg("micro_batch"), py::arg("input"), NoGil())
      .def("input_gradient", &PartForPython::input_gradient, py::arg("micro_batch"),
           py::arg("gradient"), NoGil())
      .def("weight_gradient", &PartForPython::weight_gradient, py::arg("micro_batch"), NoGil());
  py::class_<StepForPython>(m, "PipelinedStep")
      .def(py::init<const std::vector<std::vector<StageArgument>>&, const py::kwargs&>(),
           py::arg("parts"), pipeline_options().names().c_str())
      .def("refresh", &StepForPython::refresh)
      .def("run", &StepForPython::run, py::arg("inputs"), py::arg("targets"))
      .def("use", &StepForPython::use, py::arg("plan"))
      .def("tell_failure", &StepForPython::tell_failure, py::arg("reason"))
      .def("problem", &StepForPython::problem)
      .def("plan", &StepForPython::plan)
      .def("not_split", &StepForPython::not_split)
      .def("report", &StepForPython::report);
}

}  // namespace reprise::python
