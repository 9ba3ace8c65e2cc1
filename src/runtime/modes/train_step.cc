#include "reprise/runtime/train_step.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <new>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/online.h"
#include "runtime/device/overheads.h"

namespace reprise::runtime {

namespace {

bool is_graph(StepMode mode) { return mode == StepMode::kGraph || mode == StepMode::kGuardedGraph; }

// A ModeRefusal is the reason why a mode does not work.
struct ModeRefusal {
  std::string reason;
  bool of_budget = false;
  int64_t budget = 0, live = 0, requested = 0;  // of a BudgetError
};

// Calls a function. Returns the refusal if it throws what speaks against a mode. An exception of the
// step itself passes.
template <class Function>
std::optional<ModeRefusal> refusal_of(const Function& function) {
  try {
    function();
    return std::nullopt;
  } catch (const BudgetError& error) {
    return ModeRefusal{error.what(), true, error.budget(), error.live(), error.requested()};
  } catch (const InputError& error) {
    return ModeRefusal{error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return ModeRefusal{error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return ModeRefusal{"there is no memory to try it"};
  }
}

c10::Device device_of(const Tensors& sample) {
  for (const at::Tensor& tensor : sample) {
    if (tensor.defined()) return tensor.device();
  }
  return c10::kCPU;
}

Tensors without_history(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  return tensors;
}

std::string lines_of(const std::vector<ModeTried>& tried) {
  std::string text;
  for (const ModeTried& one : tried) {
    text +=
        fmt::format("\n- {}: {}: {}", to_string(one.mode), one.works ? "works" : "no", one.reason);
  }
  return text;
}

}  // namespace

const char* to_string(StepMode mode) {
  switch (mode) {
    case StepMode::kFollow:
      return "follow";
    case StepMode::kGraph:
      return "graph";
    case StepMode::kGuardedGraph:
      return "guarded graph";
    case StepMode::kOnline:
      return "online";
  }
  throw InternalError("a step runs in a mode that does not exist");
}

struct TrainStep::State {
  State(StepFunction function, TrainStepOptions given)
      : step(std::move(function)), options(std::move(given)) {
    modes_left = options.mode ? std::vector{*options.mode}
                              : std::vector{StepMode::kFollow, StepMode::kGraph, StepMode::kOnline};
  }

  Tensors run_whole(const Tensors& inputs) const {
    Tensors result = step(inputs);
    if (options.capture.optimizer) {
      const Tensors parameters = options.capture.optimizer->parameters();
      for (size_t k = 0; k < parameters.size(); ++k) {
        if (!parameters[k].grad().defined()) continue;
        options.capture.optimizer->step(k);
        parameters[k].mutable_grad() = at::Tensor();
      }
    }
    return without_history(std::move(result));
  }

  // Runs the step in online mode and undoes it. Returns its peak. The optimizer's step is left out,
  // because its counters cannot be undone.
  Bytes try_online(const Tensors& sample, const Budget& budget) const {
    const c10::Device device = device_of(sample);
    Online trial({.budget = budget, .heuristic = options.heuristic, .device = device});
    trial.begin();
    try {
      step(sample);
    } catch (...) {
      trial.fail(std::current_exception());
    }
    const Bytes peak(memory_count(device).peak);
    trial.undo();
    return peak;
  }

  // Makes online mode ready for a budget in bytes or a share. Throws if it does not work here.
  void prepare_online(const Tensors& sample) {
    Budget budget = options.plan.budget;
    if (budget.relative()) budget = Budget(budget.resolve(try_online(sample, Budget())));
    online.emplace(OnlineOptions{.budget = budget,
                                 .heuristic = options.heuristic,
                                 .device = device_of(sample)});
    online_budget = budget;
  }

  // Begins to follow the step. Nothing runs before the first call.
  void follow(const Tensors& sample) {
    CaptureOptions capture = options.capture;
    capture.follow = true;
    const auto watched = [this](const Tensors& inputs) {
      begun = true;
      return step(inputs);
    };
    captured.emplace(watched, sample, std::move(capture));
    captured->plan_ahead(options.plan);
  }

  // Records and plans the step for these inputs.
  void record(const Tensors& inputs) {
    CaptureOptions capture = options.capture;
    capture.follow = false;
    capture.on_miss = OnMiss::kRecapture;
    captured.emplace(step, inputs, std::move(capture));
    captured->plan(options.plan);
  }

  std::string reason_for_graph() const {
    std::string reason = "the step was recorded, and a plan fits: " +
                         internal::device::found_text(captured->planned()) + " by the plan";
    if (const size_t reads = captured->host_reads().size(); reads > 0) {
      reason += fmt::format(
          "; {} number(s) that the step reads out of tensors are compared at each call", reads);
    }
    return reason;
  }

  // Makes the step ready to run in a mode. Returns why it is taken; throws if it does not work.
  std::string make(StepMode wanted, const Tensors& sample) {
    captured.reset();
    online.reset();
    mode = wanted;
    if (mode == StepMode::kFollow) {
      follow(sample);
      return "the function runs at every call, and a plan does its work";
    }
    if (is_graph(mode)) {
      record(sample);
      mode = captured->host_reads().empty() ? StepMode::kGraph : StepMode::kGuardedGraph;
      return reason_for_graph();
    }
    prepare_online(sample);
    try_online(sample, online_budget);
    return "the step ran inside the budget as it is written";
  }

  // Takes the next mode that works.
  void choose(const Tensors& sample) {
    while (!modes_left.empty()) {
      const StepMode next = modes_left.front();
      modes_left.erase(modes_left.begin());
      std::string why;
      auto refusal = refusal_of([&] { why = make(next, sample); });
      if (!refusal) {
        tried.push_back({mode, true, why});
        return;
      }
      captured.reset();
      online.reset();
      tried.push_back({next, false, refusal->reason});
      refusals.push_back(*std::move(refusal));
    }
    refuse();
  }

  [[noreturn]] void refuse() const {
    const std::string message =
        refusals.size() == 1 ? refusals[0].reason
                             : "the step cannot be trained in this budget:" + lines_of(tried);
    const ModeRefusal* of_budget = nullptr;
    for (const ModeRefusal& refusal : refusals) {
      if (refusal.of_budget) of_budget = &refusal;
    }
    if (of_budget == nullptr) throw InputError(message);
    throw BudgetError(message, of_budget->budget, of_budget->live, of_budget->requested);
  }

  Tensors run_online(const Tensors& inputs) {
    Tensors result = online->run([&] { return run_whole(inputs); });
    const OnlineReport report = online->last_step();
    ++last.online_steps;
    note(report.budget, std::nullopt, report.measured_peak);
    return result;
  }

  Tensors run_captured(const Tensors& inputs) {
    Tensors result = captured->run_all(inputs);
    const CapturedStepReport report = captured->last_step();
    ++(mode == StepMode::kFollow ? last.follow_steps : last.graph_steps);
    last.left = report.left;
    const bool planned = report.predicted_peak > Bytes(0);
    note(report.budget, planned ? std::optional(report.predicted_peak) : std::nullopt,
         report.measured_peak);
    return result;
  }

  void note(Bytes budget, std::optional<Bytes> predicted_peak, Bytes measured_peak) {
    last.mode = mode;
    last.budget = budget;
    last.predicted_peak = predicted_peak;
    last.measured_peak = measured_peak;
  }

  Tensors run_all(const Tensors& inputs) {
    if (!captured && !online) refuse();
    if (mode == StepMode::kOnline) return run_online(inputs);
    begun = false;
    if (mode != StepMode::kFollow || modes_left.empty()) return run_captured(inputs);
    Tensors result;
    std::exception_ptr of_step;  // The function has begun, so that no other mode runs the call.
    auto refusal = refusal_of([&] {
      try {
        result = run_captured(inputs);
      } catch (...) {
        if (!begun) throw;
        of_step = std::current_exception();
      }
    });
    if (of_step) std::rethrow_exception(of_step);
    if (!refusal) return result;
    tried.push_back({mode, false, refusal->reason});
    refusals.push_back(*std::move(refusal));
    choose(inputs);
    return run_all(inputs);
  }

  mutable std::recursive_mutex turns;  // calls of several threads
  StepFunction step;
  TrainStepOptions options;
  StepMode mode = StepMode::kFollow;
  std::vector<StepMode> modes_left;  // those that are tried if this one fails
  std::vector<ModeTried> tried;
  std::vector<ModeRefusal> refusals;
  bool begun = false;  // whether the function of the last call of follow mode began
  std::optional<CapturedStep> captured;
  std::optional<Online> online;
  Budget online_budget;
  TrainStepReport last;
};

TrainStep::TrainStep(StepFunction step, Tensors sample, TrainStepOptions options)
    : state_(std::make_unique<State>(std::move(step), std::move(options))) {
  state_->choose(sample);
}

TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;
TrainStep& TrainStep::operator=(TrainStep&&) noexcept = default;

Tensors TrainStep::run_all(const Tensors& inputs) {
  const std::lock_guard turn(state_->turns);
  return state_->run_all(inputs);
}

at::Tensor TrainStep::run(const Tensors& inputs) {
  Tensors all = run_all(inputs);
  return all.empty() ? at::Tensor() : std::move(all.front());
}

StepMode TrainStep::mode() const { return state_->mode; }
const std::vector<ModeTried>& TrainStep::tried() const { return state_->tried; }

std::string TrainStep::last_miss() const {
  return state_->captured ? state_->captured->last_step().last_difference : "";
}

std::string TrainStep::explain() const {
  std::string text = fmt::format("{} mode{}", to_string(state_->mode), lines_of(state_->tried));
  if (const std::string miss = last_miss(); !miss.empty()) {
    text += "\nthe last step that was not what was recorded: " + miss;
  }
  return text;
}

TrainStepReport TrainStep::last_step() const {
  const std::lock_guard turn(state_->turns);
  const TrainStepReport& last = state_->last;
  if (last.follow_steps + last.graph_steps + last.online_steps == 0) {
    throw InputError("the step has not run yet");
  }
  return last;
}

const CapturedStep* TrainStep::captured() const {
  return state_->captured ? &*state_->captured : nullptr;
}

}  // namespace reprise::runtime
