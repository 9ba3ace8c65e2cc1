#include <fmt/format.h>

#include <set>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/miss.h"
#include "reprise/runtime/peer_error.h"
#include "runtime/device/activity.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/followed_run.h"
#include "runtime/graph/gradients.h"
#include "runtime/graph/plan_run.h"
#include "runtime/graph/step_program.h"
#include "runtime/graph/step_state.h"
#include "runtime/graph/words.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/online/session.h"
#include "runtime/transfer/offload_carrier.h"

namespace reprise::runtime::internal::graph {

using arena::StepMemory;
using device::StepUnderWay;
using state::RandomState;
using step::difference_of;

namespace {

// Throws in place of the exception that is being handled. The text says that updates cannot be
// taken back.
[[noreturn]] void rethrow_after_updates(const std::string& updated) {
  const auto text = [&](const char* reason) {
    return fmt::format(
        "the step failed when some parameters were updated already ({}); the others are as before. "
        "Load the model and the optimizer from where you saved them. The reason: {}",
        updated, reason);
  };
  try {
    throw;
  } catch (const BudgetError& error) {
    throw BudgetError(text(error.what()), error.budget(), error.live(), error.requested());
  } catch (const PeerError& error) {
    throw PeerError(text(error.what()));
  } catch (const std::exception& error) {
    throw Error(text(error.what()));
  }
}

// A flag is true while the scope lives.
class FlagScope {
 public:
  explicit FlagScope(bool& flag) : flag_(flag) { flag_ = true; }
  ~FlagScope() { flag_ = false; }
  FlagScope(const FlagScope&) = delete;
  FlagScope& operator=(const FlagScope&) = delete;

 private:
  bool& flag_;
};

// An Averager runs while the scope lives; it may be null.
class AveragingScope {
 public:
  AveragingScope(Averager* averager, bool synchronized) : averager_(averager) {
    if (averager_ != nullptr) averager_->begin(synchronized);
  }
  ~AveragingScope() {
    if (averager_ != nullptr) averager_->end();
  }
  AveragingScope(const AveragingScope&) = delete;
  AveragingScope& operator=(const AveragingScope&) = delete;

 private:
  Averager* averager_;
};

}  // namespace

Tensors StepState::run(const Tensors& inputs) {
  if (options.follow) return run_followed(inputs);
  try {
    return run_or_capture_outcome(inputs);
  } catch (const StepMiss& miss) {
    if (options.on_miss == OnMiss::kRefuse || !miss.of_function()) throw;
    differences.emplace_back(miss.what());
  }
  capture(inputs, differences.back());
  try {
    return run_or_capture_outcome(inputs);
  } catch (const StepMiss& miss) {
    throw InputError(
        fmt::format("the step cannot be captured, because it does something else right "
                    "after a capture: {}",
                    miss.what()));
  }
}

Tensors StepState::run_or_capture_outcome(const Tensors& inputs) {
  if (std::optional<Tensors> outputs = run_captured(inputs)) return *std::move(outputs);
  capture_outcome(inputs);
  if (std::optional<Tensors> outputs = run_captured(inputs)) return *std::move(outputs);
  throw InputError("the step cannot be captured again: " + missed +
                   ", right after a capture with the same inputs and the same random state");
}

std::optional<Tensors> StepState::run_captured(const Tensors& inputs) {
  const Circumstances here(inputs, options);
  const std::string difference = of_all_ranks(outcome().difference(here));
  if (!difference.empty()) {
    if (options.on_miss == OnMiss::kRefuse) {
      throw StepMiss(difference, StepMiss::Kind::kState);
    }
    capture(inputs, difference);
  }
  std::set<int64_t> tried;
  while (true) {
    std::optional<ReadMiss> miss;
    try {
      std::optional<Tensors> outputs = attempt(inputs, miss);
      if (outputs) return outputs;
    } catch (const BudgetError&) {
      // An outcome without a plan must not stand before those that have one.
      if (!outcome().plan && outcomes.all().size() > 1) drop_outcome();
      throw;
    }
    tried.insert(outcome().number);
    missed = difference_of(outcome().reads.at(miss->read()), miss->found());
    put_memory_aside();
    const bool goes_on = outcomes.bring(*miss, here, tried);
    take_memory_up();
    if (!goes_on) break;
  }
  if (options.on_miss == OnMiss::kRefuse) {
    throw StepMiss(missed +
                       ". Nothing was changed. With on_miss recapture, a step is captured for "
                       "each outcome of what it reads",
                   StepMiss::Kind::kReads);
  }
  return std::nullopt;
}

// Replays the outcome in front. If it reads other numbers than at its capture, returns nothing and
// sets `miss`; all is then as before.
std::optional<Tensors> StepState::attempt(const Tensors& inputs, std::optional<ReadMiss>& miss) {
  if (!options.follow) begin_gradients(recording(), inputs);
  const StepUnderWay under_way;
  for (const auto& use : captured().program.step.codecs) use->check = codec_check;
  // A function that is followed may drop what lies in the arena before the plan needs the place.
  if (!options.follow || !recording().device.is_cpu()) memory.evacuate();
  use_captured_homes();
  updater().begin();
  if (homes) homes->park();
  const int64_t plans = report.plans;
  replan_if_needed(inputs);
  if (homes && report.plans > plans) homes->park();
  if (is_compared() && compares_first()) compare(inputs);

  const c10::Device device = recording().device;
  const int64_t live = memory_count(device).live - dropped_gradients().count();
  const Bytes expected = foreseen();  // It is not there in this run.
  const Bytes beside = level_without(inputs) + outcome().placed.staying() - expected;
  const int64_t uncounted = beside.count() + captured().sample_bytes +
                            captured().program.lowered.external_bytes.count() - live;
  report.budget = outcome().plan->result.budget;
  // On a device the arena is one block, and all of it counts. memory_count() knows the blocks in it.
  const Bytes holes = device.is_cpu() ? Bytes(0) : memory.height() - memory.live_bytes();
  report.predicted_peak = outcome().own_peak + outcome().drift + holes - expected;
  const bool limited = plan_options.enforce && !plan_options.budget.unlimited();
  const RandomState random(device);
  const AveragingScope averaging(captured().program.averager.get(), synchronized);
  captured().effects.save(inputs);
  Tensors outputs;
  std::vector<Delivery> gradients;
  try {
    const auto limit =
        limited ? std::optional((report.budget - holes).count() - uncounted) : std::nullopt;
    PlanRun run(*this, inputs, limit);
    std::optional<FollowedRun> followed;
    if (options.follow) {
      followed.emplace(*this, run, inputs, random, limit);
      followed->call();
      if (followed->has_left()) {
        outputs = end_left(*followed, Bytes(uncounted));
        return outputs;
      }
      report.predicted_peak = outcome().own_peak + outcome().drift + holes - expected;
    }
    // Bindings throw exceptions of their own for a request that is refused.
    const uint64_t failures = failed_requests(device);
    try {
      outputs = run.finish();
      // The function has let go of what it kept of earlier runs.
      if (followed) report.predicted_peak -= Bytes(live - run.live_before());
      run.report(report, Bytes(uncounted), holes);
    } catch (const std::exception& error) {
      const bool refused = failed_requests(device) != failures;
      if (!refused || !followed || !can_run_again()) throw;
      const BudgetError reason(error.what(), report.budget.count(), live, 0);
      outputs = followed->finish_plainly();
      end_plainly(Bytes(uncounted), reason);
    }
    if (is_compared() && !compares_first()) compare(inputs);
    gradients = deliveries(captured().program.step, synchronized, captured().replay, inputs);
    if (followed) followed->give_gradients(gradients);
    for (const Delivery& next : gradients) memory.hand_out(next.gradient);
    memory.move_out(outputs);
    if (followed) outputs = followed->give(outputs);
    // A step that made the optimizer's state is not like those that follow.
    if (updater().made_state()) renew_memory();
    place();
  } catch (const ReadMiss& other) {
    // No update has run, because all of them stand behind the last guard. All ranks are here.
    if (const auto& averager = captured().program.averager) averager->finish();
    captured().replay.clear();
    if (homes) homes->undo({});
    random.restore();
    captured().effects.restore(inputs);
    miss = other;
    return std::nullopt;
  } catch (...) {
    if (ranks) ranks->abandon(memory.keep());
    const bool all_saved = captured().effects.has(captured().replay.written());
    captured().replay.clear();
    if (homes) homes->undo(updater().parameters_done());
    random.restore();
    captured().effects.restore(inputs);
    renew_memory();
    const std::string updated = all_saved ? updater().updated() : "those that it writes";
    if (!updated.empty()) rethrow_after_updates(updated);
    throw;
  }
  // From here on nothing fails.
  deliver(gradients);
  set_flags(recording(), inputs);
  captured().replay.clear();
  if (homes) homes->commit();
  const transfer::MovedBytes& moved = captured().replay.moved();
  report.moved_out = moved.out;
  report.moved_in = moved.in;
  report.waited = moved.waited;
  if (const auto& averager = captured().program.averager) report.waited += averager->waited();
  ++report.steps;
  ++outcome().runs;
  return outputs;
}

// The function went on by itself and has done all, but for the updates.
Tensors StepState::end_left(FollowedRun& followed, Bytes uncounted) {
  update_all(options.optimizer.get());
  report.predicted_peak = Bytes(0);
  report.measured_peak = Bytes(memory_count(recording().device).peak) + uncounted;
  report.last_difference = followed.difference();
  ++report.left;
  ++report.steps;
  learning.left = followed.take_learned();
  learning.wanted = !learning.left;
  return followed.returned();
}

// Says whether a followed run whose replay failed can be done once more: all of it can be taken back.
bool StepState::can_run_again() const {
  return online::works_on(recording().device) && !homes &&
         updater().updates().each.empty() && captured().effects.has(captured().replay.written());
}

// The plan did not fit, and the function's work was done without it.
void StepState::end_plainly(Bytes uncounted, const BudgetError& error) {
  report.predicted_peak = Bytes(0);
  report.measured_peak = Bytes(memory_count(recording().device).peak) + uncounted;
  report.last_difference = error.what();
  ++report.left;
  Planless& none = learning.planless[outcome().number];
  none.error = error;
  none.pause = std::exchange(none.next_pause, 4 * none.next_pause);
  // The costs of steps on other shapes say too little about this one.
  learning.estimates = learning.estimates && !captured().program.estimated;
}

bool StepState::is_compared() const {
  return !options.follow && lockstep::is_due(options.lockstep, outcome().runs + 1) &&
         lockstep::can_intercept() && lockstep::can_follow(recording());
}

std::string StepState::of_all_ranks(std::string difference) const {
  if (!ranks || options.on_miss == OnMiss::kRefuse) return difference;
  std::vector<int64_t> differs{difference.empty() ? 0 : 1};
  ranks->maxima(differs, recording().device, "the begin of its step");
  if (differs[0] == 0) return {};
  return distributed::first_reason(ranks.get(), difference, "what differs from its capture");
}

// Nothing was computed in vain if the comparison stands before the replay. But only the replay shows
// which way a step with host reads goes, and updates of an optimizer cannot be taken back.
bool StepState::compares_first() const {
  return outcome().reads.empty() || !updater().updates().each.empty();
}

void StepState::compare(const Tensors& inputs) {
  std::string difference;
  {
    const FlagScope running(comparing);
    difference = lockstep::compare_with(recording(), step, inputs, parameters_of(options));
  }
  difference = of_all_ranks(std::move(difference));
  const int64_t run = outcome().runs + 1, last = outcome().compared;
  if (!difference.empty()) {
    const std::string since =
        run == last + 1 ? ""
                        : fmt::format(
                              ". What differs may have differed since run {}, and the runs from "
                              "then on did what the recording says",
                              last + 1);
    throw StepMiss(fmt::format("{}. Lockstep found this at run {} after the capture{}. This run "
                               "changed nothing",
                               difference, run, since),
                   StepMiss::Kind::kFunction);
  }
  outcome().compared = run;
  ++report.compared;
}

void StepState::begin_replay(const Tensors& inputs) {
  transfer::Carriers carriers = outcome().carriers;
  if (offload_memory.memory) {
    carriers.at(0) = carriers.at(1) =
        std::make_shared<transfer::OffloadCarrier>(offload_memory.memory, captured().replay);
  }
  captured().replay.begin(inputs, std::move(carriers), homes.get(), &outcome().placed);
}

Tensors StepState::outputs_now() {
  Tensors outputs;
  for (const TensorRef& ref : recording().outputs) {
    outputs.push_back(captured().replay.tensor(captured().program.step.buckets.averaged(ref)));
  }
  return outputs;
}

bool StepState::launch(const Tensors& inputs) {
  if (!graphed || !report.no_device_graph.empty() || !memory.free_arena()) return false;
  if (!graphed->fits(recording(), memory)) {
    // The run only asks for memory; it puts nothing on the device.
    StepMemory::RunScope in_place(memory);
    try {
      graphed->record(recording(), *outcome().program, captured().replay);
      in_place.finish();
      if (memory.fallbacks() > 0 ||
          !graphed->keep(recording().values.size(), captured().replay, memory)) {
        report.no_device_graph = "the arena does not serve all of the step's memory";
      }
    } catch (const c10::Error& error) {
      report.no_device_graph = error.what_without_backtrace();
    }
    if (!report.no_device_graph.empty()) {
      captured().replay.clear();
      graphed.reset();
      return false;
    }
  }
  graphed->launch(inputs, captured().replay, memory);
  memory.count_run();
  ++report.graphed;
  return true;
}

}  // namespace reprise::runtime::internal::graph
