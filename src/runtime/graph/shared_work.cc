#include "runtime/graph/shared_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/run/interpreter.h"
#include "reprise/runtime/allocator.h"
#include "runtime/graph/agreement.h"
#include "runtime/graph/other_devices.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/shared_parts.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using distributed::Ranks;
using rewrite::VariantName;

namespace {

constexpr const char* kShared = "shared";

[[noreturn]] void refuse_with_shared_work(const std::string& option) {
  throw InputError(fmt::format(
      "a step whose ranks share out its work (share_work) cannot have {}: leave one out", option));
}

// Returns for each call the works of realizations that the ranks run together, each work once.
std::vector<std::set<int32_t>> pieces_by_call(const RewrittenStep& step) {
  std::vector<std::set<int32_t>> all(step.recording.calls.size());
  for (const CallRealization& realization : step.alternatives.realizations) {
    for (const CallRealization::Piece& piece : realization.pieces) {
      for (const int32_t work : piece.works) {
        if (!step.works.all[work].apart) continue;
        all[piece.after].insert(work);
      }
    }
  }
  return all;
}

// A SharedTrial runs in the same way on all ranks: what it does depends on the recording alone.
class SharedTrial {
 public:
  SharedTrial(const std::shared_ptr<Ranks>& ranks, StepProgram& program,
              const CaptureOptions& options)
      : ranks_(ranks),
        program_(program),
        step_(program.step),
        options_(options),
        recording_(step_.recording),
        sharers_(program.sharers),
        calls_(recording_.calls.size()),
        pieces_(pieces_by_call(step_)),
        replay_(recording_, step_.works, program.lowered) {}

  void run(const Tensors& inputs) {
    const ReplayScope scope;
    const RandomScope random(recording_.device);
    const LoweredStep& lowered = program_.lowered;
    const std::vector<Run> runs = plain_runs(lowered.graph);
    const Program plain(lowered.graph, with_frees(lowered.graph, runs));
    std::vector<std::pair<c10::Storage, HostBytes>> outside;
    for (const Run& one : runs) {
      const Work& work = step_.works.all[work_of(one.op, one.variant)];
      if (work.apart) continue;
      for (const int32_t e : work.effects) {
        const c10::Storage storage = recording_.externals[e].tensor.storage();
        outside.emplace_back(storage, copy_to_host(storage));
      }
    }
    // An external that is written twice gets the bytes that it had first.
    const auto put_back = [&] {
      for (size_t k = outside.size(); k-- > 0;) copy_from_host(outside[k].second, outside[k].first);
    };
    replay_.begin(inputs);
    try {
      Walk walk(*this);
      execute(plain, walk);
    } catch (...) {
      ranks_->abandon(nullptr);
      replay_.clear();
      put_back();
      throw;
    }
    replay_.clear();
    put_back();
    agree();
    keep_close();
    keep_best();
  }

 private:
  struct Found {
    size_t call = 0;
    SharedWay way = {};
    int32_t piece = -1;  // the work of a realization that it is, if it is no way of the call
    Exactness exactness = Exactness::kBitwise;
    WorkCost cost = {};
  };

  class Walk final : public Backend {
   public:
    explicit Walk(SharedTrial& trial) : trial_(trial) {}
    void run(const RunAction& action) override { trial_.run_op(action); }
    void free(ValueIndex value, int32_t memory) override { trial_.replay_.free(value, memory); }

   private:
    SharedTrial& trial_;
  };

  size_t work_of(OpIndex op, int32_t variant) const {
    return static_cast<size_t>(program_.lowered.works[op][variant]);
  }

  void run_op(const RunAction& action) {
    const size_t w = work_of(action.op, action.variant);
    if (step_.works.all[w].apart) return;
    std::vector<std::pair<size_t, Tensors>> tried;  // positions in found_, with the results
    if (w < calls_) {
      const Call& call = recording_.calls[w];
      const auto add = [&](Tensors results) {
        tried.emplace_back(found_.size() - 1, std::move(results));
      };
      if (may_be_shared(call)) {
        for (const SharedWay& way : shared_ways(call, recording_, ranks_->size())) {
          add(try_way(w, way));
        }
      }
      for (const int32_t piece : pieces_[w]) add(try_piece(w, piece));
    }
    replay_.run(action);
    for (const auto& [position, results] : tried) {
      Exactness& worst = found_[position].exactness;
      const std::vector<TensorRef> made = results_of(w);
      for (size_t k = 0; k < results.size(); ++k) {
        const at::Tensor whole = replay_.tensor(made[k]);
        const at::Tensor& other = results[k];
        worst = std::max(worst, whole.sizes() == other.sizes()
                                    ? agreement(whole, other)
                                    : agreement(whole.reshape({-1}), other.reshape({-1})));
      }
    }
    if (!options_.measure.observer) return;
    const double done =
        static_cast<double>(action.op + 1) / static_cast<double>(program_.lowered.graph.ops.size());
    options_.measure.observer({"profile", done, "shared by the ranks"});
  }

  static bool may_be_shared(const Call& call) {
    return !call.random && call.effects.empty() && call.results.empty() && !sizes_by_values(call);
  }

  // Returns the tensors that the call makes, each value once.
  std::vector<TensorRef> results_of(size_t c) const {
    std::vector<TensorRef> all;
    for (const Work::Made& made : step_.works.all[c].made) {
      all.push_back(recording_.calls[c].outputs[made.result][made.item]);
    }
    return all;
  }

  // Runs the call together with the other ranks, and returns this rank's results.
  Tensors try_way(size_t c, const SharedWay& way) {
    const Work work = shared_work(step_.works.all[c], recording_.calls[c], way, sharers_);
    Found found{.call = c, .way = way};
    found.cost = cost_of(work, step::kind_of(work) + way.name);
    Tensors results = results_now(work);
    replay_.drop_results();
    found_.push_back(std::move(found));
    return results;
  }

  // Runs a piece of a realization. Rows of this rank alone stay for the pieces that follow; what
  // stands for a whole value is returned.
  Tensors try_piece(size_t c, int32_t piece) {
    const Work& work = step_.works.all[piece];
    Found found{.call = c, .piece = piece};
    found.cost = cost_of(work, step::kind_of(work));
    const bool stays = std::all_of(work.made.begin(), work.made.end(), [&](const Work::Made& made) {
      return recording_.values[made.value].maker < 0;
    });
    Tensors results;
    if (stays) {
      replay_.keep_results(work);
    } else {
      results = results_now(work);
      replay_.drop_results();
    }
    found_.push_back(std::move(found));
    return results;
  }

  Tensors results_now(const Work& work) const {
    Tensors results;
    for (const Work::Made& made : work.made) {
      results.push_back(replay_.results()[made.result].toTensor());
    }
    return results;
  }

  // Runs the work, together with the other ranks, and leaves the results of the last run on the
  // stack. The time is that of the work and that of its exchanges, each as typical as the time of a
  // work that is not shared. The exchanges begin when all ranks are ready.
  WorkCost cost_of(const Work& work, const std::string& kind) {
    WorkCost cost;
    const auto known = costs_.find(kind);
    // A work that writes over an operand runs once. Else the first run shows the memory alone,
    // because measuring an exchange takes some, too.
    const bool in_place = !work.overwrites.empty();
    const bool once = known != costs_.end() || in_place;
    const int repeats = once ? 1 : 2 * std::max(1, options_.measure.min_repeats);
    std::vector<TimedRun> alone, exchanges;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const bool measuring = repeat > 0 || in_place;
      replay_.drop_results();
      reset_peak(recording_.device);
      if (measuring) sharers_->begin_measuring();
      const TimedRun whole = time_run(recording_.device, [&] { replay_.invoke(work); });
      if (repeat == 0) {
        const MemoryCount count = memory_count(recording_.device);
        cost.workspace = Bytes(count.peak - count.live);
      }
      if (!measuring) continue;
      const SharingRanks::Exchanged part = sharers_->taken();
      alone.push_back({whole.wall - part.all.wall, whole.processor - part.all.processor});
      exchanges.push_back({part.time, part.time});
    }
    if (known != costs_.end()) {
      cost.time = known->second;
      return cost;
    }
    const bool busy = watch_.busy();
    cost.time = typical_time(alone, busy) + typical_time(exchanges, busy);
    costs_[kind] = cost.time;
    return cost;
  }

  // Gives each way the worst exactness, the largest time and the most memory of all ranks.
  void agree() {
    std::vector<int64_t> numbers;
    for (const Found& found : found_) {
      numbers.push_back(static_cast<int64_t>(found.exactness));
      numbers.push_back(found.cost.time.count());
      numbers.push_back(found.cost.workspace.count());
    }
    if (numbers.empty()) return;
    ranks_->maxima(numbers, recording_.device, "the measurement of its operations");
    for (size_t k = 0; k < found_.size(); ++k) {
      found_[k].exactness = static_cast<Exactness>(numbers[3 * k]);
      found_[k].cost = {.time = Nanos(numbers[3 * k + 1]), .workspace = Bytes(numbers[3 * k + 2])};
    }
  }

  // Sets the costs of pieces, and drops the realizations whose results are not close.
  void keep_close() {
    std::set<int32_t> off;
    for (const Found& found : found_) {
      if (found.piece < 0) continue;
      program_.costs.by_work[found.piece] = found.cost;
      if (found.exactness > Exactness::kRounding) off.insert(found.piece);
    }
    std::erase_if(step_.alternatives.realizations, [&](const CallRealization& realization) {
      return std::ranges::any_of(realization.pieces, [&](const CallRealization::Piece& piece) {
        return std::ranges::any_of(piece.works, [&](int32_t work) { return off.contains(work); });
      });
    });
  }

  // Adds the fastest way of each call and exactness to the step.
  void keep_best() {
    const Exactness allowed = std::min(options_.alternatives.allow, Exactness::kRounding);
    std::map<std::pair<size_t, Exactness>, const Found*> best;
    for (const Found& found : found_) {
      if (found.piece >= 0 || found.exactness > allowed) continue;
      const Found*& one = best[{found.call, found.exactness}];
      if (one == nullptr || found.cost.time < one->cost.time) one = &found;
    }
    for (const auto& [key, found] : best) {
      const auto& [call, exactness] = key;
      if (exactness == Exactness::kRounding) {
        // A way that rounds has to be faster than one that does not.
        const auto exact = best.find({call, Exactness::kBitwise});
        if (exact != best.end() && exact->second->cost.time <= found->cost.time) continue;
      }
      CallVariant variant{.call = static_cast<int32_t>(call),
                          .work = static_cast<int32_t>(step_.works.all.size()),
                          .name = VariantName(kShared, found->way.name),
                          .exactness = exactness};
      step_.works.all.push_back(
          shared_work(step_.works.all[call], recording_.calls[call], found->way, sharers_));
      program_.costs.by_work.push_back(found->cost);
      step_.alternatives.variants.push_back(std::move(variant));
    }
  }

  const std::shared_ptr<Ranks> ranks_;
  StepProgram& program_;
  RewrittenStep& step_;
  const CaptureOptions& options_;
  const Recording& recording_;
  const std::shared_ptr<const SharingRanks> sharers_;
  const size_t calls_;
  const std::vector<std::set<int32_t>> pieces_;  // works by the call that they belong to
  Replay replay_;
  std::map<std::string, Nanos> costs_;  // times, by kind of work and way
  std::vector<Found> found_;
  const ProcessorWatch watch_{recording_.device};
};

}  // namespace

void require_shared_work(const CaptureOptions& options) {
  if (options.share_work.empty()) return;
  if (!options.group.empty()) {
    refuse_with_shared_work("a process group that averages gradients (group, process_group)");
  }
  if (!options.other_devices.empty()) refuse_with_shared_work("other_devices");
  if (!options.budget.unlimited()) {
    refuse_with_shared_work("a budget for its capture (CaptureOptions::budget)");
  }
}

void add_shared_work(const std::shared_ptr<Ranks>& ranks, StepProgram& program,
                     const Tensors& inputs, const CaptureOptions& options) {
  if (!program.step.recording.device.is_cpu()) {
    throw InputError("ranks share out the work of a step on the CPU alone, and the inputs are on " +
                     program.step.recording.device.str() + ": leave share_work out");
  }
  agree_on_step(*ranks, program, options);
  agree_on_run(*ranks, inputs, /*needs=*/false);
  agree_on_numbers(*ranks, program, options);
  if (ranks->size() == 1) return;
  SharedTrial(ranks, program, options).run(inputs);
  program.lowered = lower(program.step, program.costs.by_work, inputs, options.measure.name);
}

}  // namespace reprise::runtime::internal::graph
