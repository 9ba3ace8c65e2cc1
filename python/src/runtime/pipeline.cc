#include "pipeline.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/io/json.h"
#include "runtime/chain/pipeline_part.h"
#include "stage_arguments.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using Text = std::string;
using NoGil = py::call_guard<py::gil_scoped_release>;
using rt::Tensors;
using LossArgument = std::optional<rt::Loss>;

rt::Loss loss_of(const LossArgument& loss) { return loss ? *loss : rt::Loss(); }

MessageKind kind_of(bool activation) {
  return activation ? MessageKind::kActivation : MessageKind::kGradient;
}

class PartForPython {
 public:
  PartForPython(const std::vector<StageArgument>& arguments, const Tensors& sample,
               const LossArgument& loss, const Text& name) {
    rt::MeasureOptions options;
    options.name = name;
    std::vector<rt::Stage> stages = stages_of(arguments, mirrors_);
    const py::gil_scoped_release no_gil;
    part_ = std::make_unique<Part>(std::move(stages), sample, loss_of(loss), options, [] {
      const py::gil_scoped_acquire gil;
      PyErr_Clear();
    });
  }

  bool refresh() { return mirrors_.refresh(); }
  Text alone() const {
    const std::vector<rt::internal::chain::MeasuredSplit>& splits = part_->splits();
    Pipeline pipeline = pipeline_of_equal_devices(part_->chain(), 1, 1, {});
    for (const auto& split : splits) {
      pipeline.stages.push_back({.fixed = Bytes(0),
                                 .weight_part = split.part,
                                 .output_in_workspace = split.output_in_workspace});
    }
    return to_json(pipeline);
  }
  std::vector<std::pair<Text, Text>> not_split() const {
    std::vector<std::pair<Text, Text>> reasons;
    for (size_t i = 0; i < part_->splits().size(); ++i) {
      const Text& why = part_->splits()[i].why_not;
      if (!why.empty()) reasons.emplace_back(part_->chain().stages[i].name, why);
    }
    return reasons;
  }
  Tensors outputs() const { return part_->outputs(); }
  int64_t output_gradient_bytes() const { return part_->output_gradient_bytes().count(); }
  int64_t uncounted() const { return part_->uncounted(); }
  void use(const Text& plan, size_t part) { part_->use(parse_pipeline_plan(plan, "plan"), part); }
  void begin_step(std::optional<int64_t> limit) { part_->begin_step(limit); }
  void end_step() { part_->end_step(); }
  void abort_step() { part_->abort_step(); }
  void give(int64_t micro_batch, const Tensors& input) { part_->give(micro_batch, input); }
  void take_input_from(PartForPython& before, int64_t micro_batch) {
    part_->take_input_from(*before.part_, micro_batch);
  }
  void take_gradient_from(PartForPython& behind, int64_t micro_batch) {
    part_->take_gradient_from(*behind.part_, micro_batch);
  }
  void give_gradient(int64_t micro_batch, const Tensors& gradient) {
    part_->give_gradient(micro_batch, gradient);
  }
  Tensors receive(int64_t micro_batch, bool activation) {
    return part_->receive(micro_batch, kind_of(activation));
  }
  Tensors message(int64_t micro_batch, bool activation) const {
    return part_->message(micro_batch, kind_of(activation));
  }
  void sent(int64_t micro_batch, bool activation) { part_->sent(micro_batch, kind_of(activation)); }
  void forward(int64_t micro_batch) { part_->forward(micro_batch); }
  void backward(int64_t micro_batch, const LossArgument& loss,
                const std::optional<at::Tensor>& value) {
    const rt::Loss own = loss_of(loss);
    const py::gil_scoped_release no_gil;
    part_->backward(micro_batch, own, value.value_or(at::Tensor()));
  }
  void input_gradient(int64_t micro_batch, const LossArgument& loss,
                      const std::optional<at::Tensor>& value) {
    const rt::Loss own = loss_of(loss);
    const py::gil_scoped_release no_gil;
    part_->input_gradient(micro_batch, own, value.value_or(at::Tensor()));
  }
  void weight_gradient(int64_t micro_batch) { part_->weight_gradient(micro_batch); }

 private:
  using Part = rt::internal::chain::PipelinePart;
  Mirrors mirrors_;
  std::unique_ptr<Part> part_;
};

}  // namespace

void bind_pipeline(py::module_& m) {
  py::class_<PartForPython>(m, "PipelinePart")
      .def(py::init<const std::vector<StageArgument>&, const Tensors&, const LossArgument&,
                    const Text&>(),
           py::arg("stages"), py::arg("sample"), py::kw_only(), py::arg("loss"), py::arg("name"))
      .def("refresh", &PartForPython::refresh)
      .def("alone", &PartForPython::alone)
      .def("not_split", &PartForPython::not_split)
      .def("outputs", &PartForPython::outputs)
      .def("output_gradient_bytes", &PartForPython::output_gradient_bytes)
      .def("uncounted", &PartForPython::uncounted)
      .def("use", &PartForPython::use, py::arg("plan"), py::arg("part"))
      .def("begin_step", &PartForPython::begin_step, py::arg("limit"))
      .def("end_step", &PartForPython::end_step)
      .def("abort_step", &PartForPython::abort_step, NoGil())
      .def("give", &PartForPython::give, py::arg("micro_batch"), py::arg("input"))
      .def("take_input_from", &PartForPython::take_input_from, py::arg("before"),
           py::arg("micro_batch"))
      .def("take_gradient_from", &PartForPython::take_gradient_from, py::arg("behind"),
           py::arg("micro_batch"))
      .def("give_gradient", &PartForPython::give_gradient, py::arg("micro_batch"),
           py::arg("gradient"))
      .def("receive", &PartForPython::receive, py::arg("micro_batch"), py::arg("activation"))
      .def("message", &PartForPython::message, py::arg("micro_batch"), py::arg("activation"))
      .def("sent", &PartForPython::sent, py::arg("micro_batch"), py::arg("activation"))
      .def("forward", &PartForPython::forward, py::arg("micro_batch"), NoGil())
      .def("backward", &PartForPython::backward, py::arg("micro_batch"), py::arg("loss"),
           py::arg("value"))
      .def("input_gradient", &PartForPython::input_gradient, py::arg("micro_batch"), py::arg("loss"),
           py::arg("value"))
      .def("weight_gradient", &PartForPython::weight_gradient, py::arg("micro_batch"), NoGil());
}

}  // namespace reprise::python
