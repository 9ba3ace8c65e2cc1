#include "remat.h"

#include <torch/csrc/utils/pybind.h>

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
#include "reprise/runtime/remat.h"
#include "reprise/runtime/remat_join.h"
#include "stage_arguments.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using rt::Tensors;
using Text = std::string;

// The functions in which ranks share out the work of a stage: the group's name, and by stage a
// function, or nothing (StageWay).
using SharedStage = std::optional<std::function<Tensors(const Tensors&)>>;
using SharedArgument = std::optional<std::pair<Text, std::vector<SharedStage>>>;

// The parameters of stages that are sharded over the ranks of a group: the group's name, the
// parameters, what lives of them on this rank, and by stage two functions, or nothing
// (ShardedParameters).
using ShardedStage = std::optional<
    std::pair<std::function<bool(const at::Tensor&)>, std::function<std::function<void()>()>>>;
using ShardedArgument =
    std::optional<std::tuple<Text, Tensors, std::function<Tensors()>, std::vector<ShardedStage>>>;

const OptionTable<rt::RematOptions>& remat_table() {
  using O = rt::RematOptions;
  static const OptionTable<O> table = {
      {"budget", &O::budget},
      {"planner", &O::planner},
      {"time_limit_ns", &O::time_limit},
      {"loss", &O::loss},
      {"alternatives",
       [](O& o, const std::vector<Text>& names) {
         o.measure.alternatives = alternatives_of(names);
       }},
      {"name", [](O& o, const Text& name) { o.measure.name = name; }},
      {"output_held", [](O& o, bool held) { o.measure.output_held = held; }},
      {"enforce", &O::enforce},
      {"offload", [](O& o, const Text& to) { o.offload.to = to; }},
      {"machine",
       [](O& o, const Text& text) { o.offload.machine = parse_machine(text, "machine"); }},
      {"foreseen",
       [](O& o, const ForeseenArgument& foreseen) { o.foreseen = foreseen_of(foreseen); }},
      {"observer",
       [](O& o, const ObserverArgument& observer) {
         o.observer = o.measure.observer = observer_of(observer);
       }},
  };
  return table;
}

rt::RematOptions remat_options(const py::dict& arguments) {
  rt::RematOptions start;
  start.observer = start.measure.observer = observer_of({});
  return remat_table().read(arguments, std::move(start));
}

Text profile_stages(const std::vector<StageArgument>& arguments, const Tensors& sample,
                    const py::kwargs& keywords) {
  Mirrors mirrors;
  const rt::RematOptions options = remat_options(keywords);
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
  found["offload_choice"] = report.offload_choice;
  found["overheads"] = overhead_rows(report.overheads);
  return found;
}

// This is the base of the bindings for models of one chain and of several branches. `Inputs` is the
// type of a call's inputs.
template <class Model, class Inputs>
class PlannedStages {
 public:
  Tensors forward(const Inputs& inputs) {
    py::gil_scoped_release no_gil;
    return model_->forward(inputs);
  }
  void plan_for(const Inputs& inputs) {
    py::gil_scoped_release no_gil;
    model_->plan_for(inputs);
  }
  void set_budget(const BudgetArgument& budget) {
    const Budget now = budget_of(budget);
    without_gil([&] { model_->set_budget(now); });
  }
  bool refresh() { return mirrors_.refresh(); }
  int64_t overhead_count() const { return model_->overhead_count(); }
  py::dict planned() const { return dict_of(model_->plan()); }
  py::dict report() const {
    return fields_of(without_gil([&] { return model_->last_step(); }));
  }

 protected:
  Mirrors mirrors_;
  std::shared_ptr<Model> model_;
};

template <class Bound>
py::class_<Bound> bind_planned(py::module_& m, const char* name) {
  return py::class_<Bound>(m, name)
      .def("forward", &Bound::forward, py::arg("inputs"))
      .def("plan_for", &Bound::plan_for, py::arg("inputs"))
      .def("set_budget", &Bound::set_budget, py::arg("budget"))
      .def("refresh", &Bound::refresh)
      .def("overhead_count", &Bound::overhead_count)
      .def("planned", &Bound::planned)
      .def("report", &Bound::report);
}

class Remat : public PlannedStages<rt::Remat, Tensors> {
 public:
  Remat(const std::vector<StageArgument>& arguments, const ShardedArgument& sharded,
        const SharedArgument& shared, const py::kwargs& keywords) {
    rt::RematOptions options = remat_options(keywords);
    if (sharded) mirrors_.leave_out(std::get<1>(*sharded));
    std::vector<rt::Stage> stages = stages_of(arguments, mirrors_);
    if (sharded) {
      options.group = std::get<0>(*sharded);
      options.resident = std::get<2>(*sharded);
      for (size_t i = 0; i < stages.size(); ++i) {
        const ShardedStage& own = std::get<3>(*sharded).at(i);
        if (!own) continue;
        stages[i].sharded = std::make_shared<const rt::ShardedParameters>(
            rt::ShardedParameters{.has = own->first, .take_gradients = own->second});
      }
    }
    if (shared) {
      options.group = shared->first;
      for (size_t i = 0; i < stages.size(); ++i) {
        if (const SharedStage& way = shared->second.at(i)) {
          stages[i].ways.push_back({"shared", *way});
        }
      }
    }
    model_ = std::make_shared<rt::Remat>(std::move(stages), std::move(options));
  }

  Text chain() const { return to_json(model_->chain()); }
  Text profile() const { return to_json(model_->profile()); }
  void log_steps(int64_t steps) { model_->log_steps(steps); }
  std::optional<Text> run_log() const { return text_of(model_->run_log()); }
  // Returns the memories of the plan as JSON, or nothing if there is the device alone.
  std::optional<Text> machine() const {
    if (model_->machine().channels.empty()) return std::nullopt;
    return to_json(model_->machine());
  }
};

using BranchArgument = std::pair<Text, std::vector<StageArgument>>;

class RematJoin : public PlannedStages<rt::RematJoin, std::vector<Tensors>> {
 public:
  RematJoin(const std::vector<BranchArgument>& branches, const std::vector<StageArgument>& tail,
            const py::kwargs& keywords) {
    rt::RematOptions options = remat_options(keywords);
    std::vector<rt::StageBranch> stages;
    for (const auto& [branch, own] : branches) stages.push_back({branch, stages_of(own, mirrors_)});
    model_ = std::make_shared<rt::RematJoin>(std::move(stages), stages_of(tail, mirrors_),
                                             std::move(options));
  }

  Text join() const { return to_json(model_->join()); }
};

}  // namespace

void bind_remat(py::module_& m) {
  bind_planned<Remat>(m, "Remat")
      .def(py::init<const std::vector<StageArgument>&, const ShardedArgument&,
                    const SharedArgument&, const py::kwargs&>(),
           py::arg("stages"), py::arg("sharded"), py::arg("shared"), remat_table().names().c_str())
      .def("machine", &Remat::machine)
      .def("chain", &Remat::chain)
      .def("profile", &Remat::profile)
      .def("log_steps", &Remat::log_steps, py::arg("steps"))
      .def("run_log", &Remat::run_log);
  bind_planned<RematJoin>(m, "RematJoin")
      .def(py::init<const std::vector<BranchArgument>&, const std::vector<StageArgument>&,
                    const py::kwargs&>(),
           py::arg("branches"), py::arg("tail"), remat_table().names().c_str())
      .def("join", &RematJoin::join);
  m.def("profile", &profile_stages, py::arg("stages"), py::arg("sample"),
        remat_table().names().c_str());
}

}  // namespace reprise::python
