#include "reprise/runtime/train_step.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/miss.h"
#include "reprise/runtime/online.h"
#include "runtime/device/overheads.h"

namespace reprise::runtime {

namespace {

// One recording serves two calls if their inputs are of one kind.
struct InputKind {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::ScalarType> types;

  bool operator==(const InputKind&) const = default;
};

InputKind kind_of(const Tensors& inputs) {
  InputKind kind;
  for (const at::Tensor& input : inputs) {
    kind.shapes.push_back(input.sizes().vec());
    kind.types.push_back(input.scalar_type());
  }
  return kind;
}

bool is_graph(StepMode mode) { return mode != StepMode::kOnline; }

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

void require_cpu(const Tensors& sample) {
  for (const at::Tensor& tensor : sample) {
    if (tensor.is_cpu()) continue;
    throw InputError(
        fmt::format("online mode works on the CPU, and the step is on {}", tensor.device().str()));
  }
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
      : step(std::move(function)), options(std::move(given)), recordings_left(options.recordings) {
    if (options.recordings < 0) {
      throw InputError(fmt::format("recordings is a number from 0 on, not {}", options.recordings));
    }
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
    Online trial({.budget = budget, .heuristic = options.heuristic});
    trial.begin();
    try {
      step(sample);
    } catch (...) {
      trial.fail(std::current_exception());
    }
    const Bytes peak(memory_count(c10::kCPU).peak);
    trial.undo();
    return peak;
  }

  // Makes online mode ready for a budget in bytes or a share. Throws if it does not work here.
  void prepare_online(const Tensors& sample) {
    require_cpu(sample);
    Budget budget = options.plan.budget;
    if (captured) {
      budget = Budget(captured->planned().budget);
    } else if (budget.relative()) {
      budget = Budget(budget.resolve(try_online(sample, Budget())));
    }
    online.emplace(OnlineOptions{.budget = budget, .heuristic = options.heuristic});
    online_budget = budget;
  }

  // Records and plans the step for these inputs.
  void record(const Tensors& inputs, bool misses_run_online) {
    captured.reset();
    CaptureOptions capture = options.capture;
    capture.on_miss = misses_run_online ? OnMiss::kRefuse : OnMiss::kRecapture;
    CapturedStep made(step, inputs, std::move(capture));
    made.plan(options.plan);
    captured.emplace(std::move(made));
    kind = kind_of(inputs);
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

  void choose(const Tensors& sample) {
    std::vector<ModeRefusal> refusals;
    if (!options.mode || is_graph(*options.mode)) {
      // Misses are given to online mode where it works, which is known before anything is recorded.
      const bool both = !options.mode && !refusal_of([&] {
        require_cpu(sample);
        const Online trial;  // It throws InputError where LibTorch is too old.
      });
      if (auto refusal = refusal_of([&] { record(sample, both); })) {
        tried.push_back({StepMode::kGraph, false, refusal->reason});
        refusals.push_back(*std::move(refusal));
      } else {
        mode = captured->host_reads().empty() ? StepMode::kGraph : StepMode::kGuardedGraph;
        tried.push_back({mode, true, reason_for_graph()});
        if (both) prepare_online(sample);
        return;
      }
    }
    if (!options.mode || options.mode == StepMode::kOnline) {
      auto refusal = refusal_of([&] {
        prepare_online(sample);
        try_online(sample, online_budget);
      });
      if (!refusal) {
        mode = StepMode::kOnline;
        tried.push_back({mode, true, "the step ran inside the budget as it is written"});
        return;
      }
      tried.push_back({StepMode::kOnline, false, refusal->reason});
      refusals.push_back(*std::move(refusal));
    }
    refuse(refusals);
  }

  [[noreturn]] void refuse(const std::vector<ModeRefusal>& refusals) const {
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
    last = {.mode = StepMode::kOnline,
            .budget = report.budget,
            .measured_peak = report.measured_peak,
            .graph_steps = last.graph_steps,
            .online_steps = last.online_steps};
    return result;
  }

  Tensors run_graph(const Tensors& inputs) {
    Tensors result = captured->run_all(inputs);
    const CapturedStepReport report = captured->last_step();
    ++last.graph_steps;
    last = {.mode = mode,
            .budget = report.budget,
            .predicted_peak = report.predicted_peak,
            .measured_peak = report.measured_peak,
            .graph_steps = last.graph_steps,
            .online_steps = last.online_steps};
    return result;
  }

  // Says whether a call that was not what was recorded is like the one before it. The first other
  // outcome of a guarded step is as likely to come again as any later one, so the second is recorded.
  bool comes_again(const InputKind& of_call, bool of_reads) {
    if (of_reads) return ++missed_reads > 1;
    return std::exchange(missed_before, of_call) == of_call;
  }

  // Records what was missed. Returns whether graph mode can run the call now.
  bool record_again(const Tensors& inputs, bool of_reads) {
    --recordings_left;
    auto refusal = refusal_of([&] {
      if (of_reads) {
        captured->capture_outcome(inputs);
      } else {
        record(inputs, true);
        missed_before.reset();
      }
    });
    if (!refusal) return true;
    recordings_left = 0;
    tried.push_back({mode, false, "for other inputs: " + refusal->reason});
    return false;
  }

  Tensors run_all(const Tensors& inputs) {
    if (!captured) return run_online(inputs);
    bool of_reads = false;
    try {
      Tensors result = run_graph(inputs);
      missed_before.reset();
      return result;
    } catch (const StepMiss& miss) {
      if (!online) throw;
      last_miss = miss.what();
      // A recording of this call would have to be without these gradients, too.
      if (miss.of_gradients()) return run_online(inputs);
      of_reads = miss.of_reads();
    }
    if (!comes_again(kind_of(inputs), of_reads) || recordings_left == 0) {
      try {
        return run_online(inputs);
      } catch (const BudgetError&) {  // Beside the arena of the recording there may be no room.
        if (recordings_left == 0) throw;
      }
    }
    return record_again(inputs, of_reads) ? run_graph(inputs) : run_online(inputs);
  }

  mutable std::recursive_mutex turns;  // calls of several threads
  StepFunction step;
  TrainStepOptions options;
  StepMode mode = StepMode::kGraph;
  std::vector<ModeTried> tried;
  std::optional<CapturedStep> captured;
  InputKind kind;  // of the recording
  std::optional<Online>
      online;  // for a step that runs online, and for calls that were not recorded
  Budget online_budget;
  int recordings_left;
  std::optional<InputKind> missed_before;  // by the call before this one
  int64_t missed_reads = 0;
  std::string last_miss;
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
const std::string& TrainStep::last_miss() const { return state_->last_miss; }

std::string TrainStep::explain() const {
  std::string text = fmt::format("{} mode{}", to_string(state_->mode), lines_of(state_->tried));
  if (!state_->last_miss.empty()) {
    text += "\nthe last step that was not what was recorded: " + state_->last_miss;
  }
  return text;
}

TrainStepReport TrainStep::last_step() const {
  const std::lock_guard turn(state_->turns);
  if (state_->last.graph_steps + state_->last.online_steps == 0) {
    throw InputError("the step has not run yet");
  }
  return state_->last;
}

const CapturedStep* TrainStep::captured() const {
  return state_->captured ? &*state_->captured : nullptr;
}

}  // namespace reprise::runtime
