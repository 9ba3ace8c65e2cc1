#include "runtime/graph/step_program.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/buckets.h"
#include "runtime/graph/cost_cache.h"
#include "runtime/graph/estimate_costs.h"
#include "runtime/graph/meter.h"
#include "runtime/graph/other_devices.h"
#include "runtime/graph/shards.h"
#include "runtime/graph/shared_parts.h"
#include "runtime/graph/shared_work.h"
#include "runtime/graph/stand_ins.h"
#include "runtime/graph/update_costs.h"
#include "runtime/graph/words.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/modules/module_paths.h"
#include "runtime/online/within.h"
#include "runtime/step/find_updates.h"
#include "runtime/step/observe_step.h"
#include "runtime/transfer/device_carrier.h"

namespace reprise::runtime::internal::graph {

using device::wall_clock;
using modules::with_modules;
using online::Within;
using rewrite::find_alternatives;
using step::find_updates;
using step::Observation;
using step::observe_step;
using step::repeats;
using step::works_of;

std::vector<at::Tensor> parameters_of(const CaptureOptions& options) {
  std::vector<at::Tensor> all;
  for (const auto& module : options.modules) {
    for (at::Tensor& parameter : module->parameters()) all.push_back(std::move(parameter));
  }
  if (options.optimizer) {
    for (at::Tensor& parameter : options.optimizer->parameters()) {
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

namespace {

struct Measured {
  WorkCosts costs;
  std::vector<int64_t> state_bytes, movable_bytes;
  LoweredStep lowered;
  std::vector<std::pair<OpIndex, Bytes>> own_workspaces;
  CacheUse cache;
};

// The bytes of the optimizer's state are measured even if the costs are known.
MeasureOptions once(MeasureOptions options) {
  options.min_repeats = options.max_repeats = 1;
  options.min_time = Nanos();
  return options;
}

// Sets the errors that the codecs have stated for the values of the sample.
WorkCosts with_errors(WorkCosts works, const RewrittenStep& step) {
  constexpr double kMost = 1e9;  // a thousand times the largest element; NaN counts as that
  for (const auto& use : step.codecs) {
    const double share = use->stated.largest == 0 ? 0 : use->stated.bound / use->stated.largest;
    const double ppm = std::isfinite(share) ? std::min(kMost, std::ceil(share * 1e6)) : kMost;
    works.by_work[use->decode].error_ppm = static_cast<int64_t>(ppm);
  }
  return works;
}

WorkCosts with_shards(WorkCosts works, const UpdateCosts& costs, const Buckets& buckets) {
  if (!buckets.sharded) return works;
  for (const Bucket& bucket : buckets.all) {
    works.by_work[bucket.update] = cost_of_shards(bucket, costs);
  }
  return works;
}

std::vector<std::pair<OpIndex, Bytes>> own_workspaces(const LoweredStep& lowered,
                                                      const UpdateCosts& costs,
                                                      const Buckets& buckets, int rank) {
  std::vector<std::pair<OpIndex, Bytes>> all;
  if (!buckets.sharded) return all;
  for (const Bucket& bucket : buckets.all) {
    for (size_t op = 0; op < lowered.works.size(); ++op) {
      if (lowered.works[op][0] != bucket.update) continue;
      all.emplace_back(static_cast<OpIndex>(op), cost_of_shards(bucket, costs, rank).workspace);
    }
  }
  return all;
}

CostCache cache_of(const RewrittenStep& step, const Tensors& sample,
                   const CaptureOptions& options) {
  return CostCache(options, [&] {
    const std::vector<WorkCost> none(step.works.all.size());
    return CostCache::Question{step, lower(step, none, sample, options.measure.name), sample};
  });
}

// A Room is what a capture takes place in. If both pointers are null, it may take what it needs.
struct Room {
  std::unique_ptr<Within> within = nullptr;
  std::unique_ptr<StandIns> stand_ins = nullptr;

  step::Surroundings* surroundings() const {
    if (stand_ins) return stand_ins.get();
    return within.get();
  }
};

// Measures the step, or takes its costs from the estimate or the cache.
Measured measured_step(const RewrittenStep& step, const Tensors& sample,
                       const CaptureOptions& options, CostCache cache, const CaptureTime& most,
                       const Room& room, int rank, const std::optional<WorkCosts>& estimate) {
  const std::string& name = options.measure.name;
  Measured result;
  if (estimate) {
    result.costs = *estimate;
    result.lowered = lower(step, result.costs.by_work, sample, name);
  } else if (cache.found()) {
    result.costs = cache.costs();
    result.lowered = lower(step, result.costs.by_work, sample, name);
    cache.compare(result.lowered);
  }
  const bool found = estimate || cache.found();
  UpdateCosts of_updates = measure_updates(step.recording, step.updates, options.optimizer.get(),
                                           found ? once(options.measure) : options.measure);
  if (!found) {
    result.costs = with_updates(measure_works(step, sample, options.measure, most,
                                              room.within.get(), room.stand_ins.get()),
                                of_updates, step.updates);
    result.costs = with_shards(std::move(result.costs), of_updates, step.buckets);
    result.costs = with_errors(std::move(result.costs), step);
    result.lowered = lower(step, result.costs.by_work, sample, name);
    cache.store(result.lowered, result.costs);
  }
  result.own_workspaces = own_workspaces(result.lowered, of_updates, step.buckets, rank);
  result.state_bytes = std::move(of_updates.state_bytes);
  result.movable_bytes = std::move(of_updates.movable_bytes);
  result.cache = {.found = found, .warning = cache.warning()};
  if (options.measure.observer && !cache.warning().empty()) {
    options.measure.observer({"profile", 1, cache.warning()});
  }
  return result;
}

// Returns a room in which the step computes what it computes in training.
Room room_with_values(const CaptureOptions& options, c10::Device device) {
  if (options.budget.unlimited()) return {};
  return {.within = std::make_unique<Within>(options.budget, device)};
}

// Says whether a capture on stand-ins is tried first. The errors of codecs are those of the values.
bool takes_stand_ins(const CaptureOptions& options, c10::Device device) {
  const bool has_codecs = device.is_cpu() && options.alternatives.allow == Exactness::kApproximate;
  return !options.budget.unlimited() && !has_codecs;
}

}  // namespace

c10::Device device_of(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined()) return input.device();
  }
  throw InputError(
      "a captured step needs at least one input tensor, which says on what device it runs");
}

namespace {

// Returns how often the function runs before the cache is asked. What a third run of the capture
// shows, lockstep shows at the first run of the step, before anything happens. So a step whose costs
// are known runs twice. A rank cannot know whether other ranks find their costs.
int runs_before_cache(const CaptureOptions& options, const distributed::Ranks* ranks) {
  const bool fewer = !options.cache.empty() && options.lockstep != Lockstep::kNever &&
                     ranks == nullptr && lockstep::can_intercept();
  return fewer ? std::min(options.runs, 2) : options.runs;
}

// Makes the program of a recording. `is_right` is asked before anything is measured, unless lockstep
// shows the same. Returns nothing if it says no.
std::optional<StepProgram> program_of(Recording recording, const CaptureTime& most,
                                      const Tensors& sample, const CaptureOptions& options,
                                      const std::shared_ptr<distributed::Ranks>& ranks,
                                      const Room& room, const std::function<bool()>& is_right,
                                      const std::vector<const StepProgram*>& known = {}) {
  recording = with_modules(std::move(recording), options.modules);

  // Make a work for each call, and for each update of the optimizer.
  Works calls = works_of(recording);
  Updates updates = find_updates(recording, options, /*first_work=*/calls.all.size());
  auto updater = std::make_shared<Updater>(options.optimizer, updates, recording.device);
  Works works = with_updates(std::move(calls), recording, updater);

  // Rewrite the step: find what may run in place of its calls, and average gradients behind them.
  Buckets buckets = find_buckets(recording, updates, options, ranks ? ranks->size() : 1);
  if (buckets.sharded) updater->shard(updates_of(buckets, ranks->rank()));
  const auto sharers =
      options.share_work.empty() ? nullptr : std::make_shared<const SharingRanks>(ranks);
  const Nanos begun = wall_clock();
  RewrittenStep rewritten =
      find_alternatives(std::move(recording), std::move(works), std::move(updates), buckets,
                        options.alternatives, sharers);
  CaptureTime left = most;
  left.begun += wall_clock() - begun;
  auto averager = options.group.empty() ? nullptr : std::make_shared<Averager>(ranks);
  add_buckets(rewritten, std::move(buckets), averager, updater);

  // Lower the step to a graph that a planner understands, with what each work costs.
  CostCache cache = cache_of(rewritten, sample, options);
  const bool compared_later = cache.found() && lockstep::can_follow(rewritten.recording);
  if (!compared_later && !is_right()) return std::nullopt;
  std::vector<KnownCosts> of_other_shapes;
  for (const StepProgram* one : known) {
    if (!one->estimated) of_other_shapes.push_back({&one->step.works, &one->costs});
  }
  const auto estimate = estimate_costs(rewritten.works, of_other_shapes);
  Measured measured = measured_step(rewritten, sample, options, std::move(cache), left, room,
                                    ranks ? ranks->rank() : 0, estimate);
  Machine devices;
  if (!options.other_devices.empty()) {
    add_other_devices(rewritten, measured.costs, sample, options);
    measured.lowered = lower(rewritten, measured.costs.by_work, sample, options.measure.name);
    devices = transfer::measure_devices(rewritten.devices);
  }

  return StepProgram{.step = std::move(rewritten),
                     .costs = std::move(measured.costs),
                     .estimated = estimate.has_value(),
                     .on_stand_ins = room.stand_ins != nullptr,
                     .state_bytes = std::move(measured.state_bytes),
                     .movable_bytes = std::move(measured.movable_bytes),
                     .lowered = std::move(measured.lowered),
                     .own_workspaces = std::move(measured.own_workspaces),
                     .updater = std::move(updater),
                     .cache = std::move(measured.cache),
                     .averager = std::move(averager),
                     .sharers = sharers,
                     .devices = std::move(devices)};
}

// Makes the program. The function runs `runs` times, and up to CaptureOptions::runs times unless its
// costs are in the cache. Returns nothing if one of these later runs is not like the first ones.
std::optional<StepProgram> program_after(int runs, const StepFunction& step, const Tensors& sample,
                                         const CaptureOptions& options,
                                         const std::shared_ptr<distributed::Ranks>& ranks,
                                         const Room& room) {
  // Observe what the step does, call by call, and find the module that each call belongs to. The
  // quickest run is the one whose memory is watched least.
  CaptureTime most{.begun = wall_clock()};
  const StepFunction timed = [&](const Tensors& inputs) {
    const Nanos start = wall_clock();
    Tensors outputs = step(inputs);
    const Nanos time = wall_clock() - start;
    most.step = most.step > Nanos() ? std::min(most.step, time) : time;
    return outputs;
  };
  Observation seen = observe_step(timed, sample, device_of(sample), parameters_of(options), runs,
                                  room.surroundings());
  std::optional<Observation> first;  // what more runs are compared with
  if (runs < options.runs) first = seen;
  const auto is_right = [&] {
    return !first || repeats(timed, sample, device_of(sample), parameters_of(options),
                             *std::move(first), options.runs - runs, room.surroundings());
  };
  return program_of(std::move(seen.recording), most, sample, options, ranks, room, is_right);
}

StepProgram program_in(const Room& room, const StepFunction& step, const Tensors& sample,
                       const CaptureOptions& options,
                       const std::shared_ptr<distributed::Ranks>& ranks) {
  const int first = runs_before_cache(options, ranks.get());
  std::optional<StepProgram> program = program_after(first, step, sample, options, ranks, room);
  if (!program) program = program_after(options.runs, step, sample, options, ranks, room);
  return *std::move(program);
}

// Makes the program on stand-ins. Returns nothing if the step cannot run on them, and there is another
// way within the budget.
std::optional<StepProgram> program_on_stand_ins(const StepFunction& step, const Tensors& sample,
                                                const CaptureOptions& options,
                                                const std::shared_ptr<distributed::Ranks>& ranks) {
  const Room room{.stand_ins = std::make_unique<StandIns>(options.budget, device_of(sample))};
  try {
    return program_in(room, step, sample, options, ranks);
  } catch (...) {
    if (room.stand_ins->is_refused() || !online::works_on(device_of(sample))) throw;
    return std::nullopt;
  }
}

}  // namespace

LearnedStep learn_step(const StepFunction& step, const Tensors& inputs,
                       const CaptureOptions& options, step::Scrutiny scrutiny, step::Audit& known) {
  const Room room = room_with_values(options, device_of(inputs));
  CaptureTime most{.begun = wall_clock()};
  Observation seen = step::observe_run(step, inputs, device_of(inputs), parameters_of(options),
                                       scrutiny, known, room.surroundings());
  most.step = wall_clock() - most.begun;
  const size_t before = known.writes.size();
  known.writes.insert(seen.audit.writes.begin(), seen.audit.writes.end());
  return {std::move(seen.recording), most, /*complete=*/known.writes.size() == before,
          room.within ? std::optional(room.within->evictions()) : std::nullopt};
}

StepProgram program_of(LearnedStep learned, const Tensors& inputs, const CaptureOptions& options,
                       const std::vector<const StepProgram*>& known) {
  const Room room = room_with_values(options, device_of(inputs));
  learned.most.begun = wall_clock();
  learned.most.most_of_short = Nanos(250'000'000);
  learned.most.steps_of_long = 2.5;
  return *program_of(
      std::move(learned.recording), learned.most, inputs, options, nullptr, room,
      [] { return true; }, known);
}

StepProgram make_step_program(const StepFunction& step, const Tensors& sample,
                              const CaptureOptions& options,
                              const std::shared_ptr<distributed::Ranks>& ranks) {
  require_other_devices(options, device_of(sample));
  std::optional<StepProgram> program;
  if (takes_stand_ins(options, device_of(sample))) {
    program = program_on_stand_ins(step, sample, options, ranks);
  }
  if (!program) {
    program =
        program_in(room_with_values(options, device_of(sample)), step, sample, options, ranks);
  }
  if (!options.share_work.empty()) add_shared_work(ranks, *program, sample, options);
  return *std::move(program);
}

}  // namespace reprise::runtime::internal::graph
