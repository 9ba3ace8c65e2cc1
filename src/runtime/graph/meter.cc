#include "runtime/graph/meter.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/model/plan.h"
#include "reprise/run/interpreter.h"
#include "reprise/runtime/allocator.h"
#include "runtime/arena/block_pool.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/words.h"
#include "runtime/graph/work_times.h"

namespace reprise::runtime::internal::graph {

using arena::BlockPool;
using device::wall_clock;
using online::Needed;
using online::Unseen;
using online::Within;
using state::RandomState;
using step::values_read;

namespace {

// The walks in order of a short step go on until they have taken so many times
// MeasureOptions::min_time.
constexpr int64_t kWalks = 20;
// So many walks in order are left time for.
constexpr int64_t kWalksLeft = 2;
// The first walk is this part of the progress that is reported.
constexpr double kForAlone = 0.6;

class Meter {
 public:
  Meter(const RewrittenStep& step, const MeasureOptions& options, const CaptureTime& most,
        Within* within, StandIns* stand_ins)
      : recording_(step.recording),
        works_(step.works),
        options_(options),
        most_(most),
        within_(within),
        stand_ins_(stand_ins),
        lowered_(lower(step, std::vector<WorkCost>(works_.all.size()), /*inputs=*/{}, /*name=*/"")),
        replay_(recording_, works_, lowered_),
        times_(works_, lowered_) {
    std::vector<bool> seen(works_.all.size(), false);
    for (const std::vector<int32_t>& variants : lowered_.works) {
      const bool is_seen =
          std::all_of(variants.begin(), variants.end(), [&](int32_t work) { return seen[work]; });
      is_again_.push_back(is_seen);
      for (const int32_t work : variants) seen[work] = true;
    }
    const Graph& graph = lowered_.graph;
    has_alternatives_.resize(graph.ops.size());
    for (size_t op = 0; op < graph.ops.size(); ++op) {
      has_alternatives_[op] = graph.ops[op].variants.size() > 1;
    }
    is_known_ = known_realizations();
    for (const Choice& choice : graph.choices) {
      for (const Realization& realization : choice.realizations) {
        for (const OpIndex op : realization.ops) has_alternatives_[op] = true;
      }
    }
    kinds_left_ = kinds_alone();
  }

  WorkCosts run(const Tensors& inputs) {
    BlockSourceScope pool(std::make_shared<BlockPool>(room()));
    const RandomScope random(recording_.device);
    const RandomState before(recording_.device);
    replay_.begin(inputs);
    result_.by_work.resize(works_.all.size());
    is_measured_.resize(works_.all.size());
    const std::vector<std::vector<ValueIndex>> last = last_uses();
    for (size_t op = 0; op < lowered_.graph.ops.size(); ++op) {
      if (!is_again_[op] && !is_known_[op]) {
        done_ = static_cast<double>(op) / static_cast<double>(lowered_.graph.ops.size());
        // The first variant is measured last, because its results stay for the ops that follow.
        const std::vector<int32_t>& variants = lowered_.works[op];
        for (size_t k = variants.size(); k-- > 0;) {
          const auto work = static_cast<size_t>(variants[k]);
          const bool stays = k == 0 && stand_ins_ == nullptr;
          if (works_.all[work].apart && stays) replay_.pass_over(works_.all[work]);
          if (works_.all[work].apart || (!stays && times_.repeats(work) > 0)) continue;
          if (stand_ins_ != nullptr) {
            measure_on_stand_ins(work);
            continue;
          }
          measure(work, k == 0, has_alternatives_[op] || !has_walks_in_order());
        }
      }
      for (const ValueIndex value : last[op]) replay_.free(value, 0);
      report(kForAlone * static_cast<double>(op + 1) / static_cast<double>(last.size()),
             lowered_.graph.ops[op].id);
    }
    // Other devices go on working while the host prepares the next work, so that the host's caches
    // do not count there.
    if (has_walks_in_order()) walk_in_order(inputs, before);
    replay_.clear();
    result_.processor_percent = watch_.percent();
    const bool busy = result_.processor_percent < 100;
    if (busy) report(1, explain_busy_machine(result_.processor_percent));
    WorkTimes::Shared shared = times_.share(busy);
    for (size_t w = 0; w < shared.time.size(); ++w) {
      WorkCost& cost = result_.by_work[w];
      cost.time = shared.time[w];
      // Equal works need the same scratch memory.
      const auto scratch = scratch_.find(times_.kind(w));
      if (!is_measured_[w] && scratch != scratch_.end()) cost.workspace = scratch->second;
    }
    result_.spread = std::move(shared.spread);
    return std::move(result_);
  }

 private:
  void report(double done, const std::string& what) const {
    if (options_.observer) options_.observer({"profile", done, what});
  }

  // Returns for each op the values that no later op uses.
  std::vector<std::vector<ValueIndex>> last_uses() const {
    const Graph& graph = lowered_.graph;
    std::vector<int64_t> last(graph.values.size(), -1);
    for (size_t op = 0; op < graph.ops.size(); ++op) {
      if (is_again_[op]) continue;
      for (const Variant& variant : graph.ops[op].variants) {
        for (const auto* values : {&variant.reads, &variant.writes}) {
          for (const ValueIndex v : *values) last[v] = static_cast<int64_t>(op);
        }
      }
    }
    std::vector<std::vector<ValueIndex>> result(graph.ops.size());
    for (size_t v = 0; v < last.size(); ++v) {
      if (last[v] >= 0) result[last[v]].push_back(static_cast<ValueIndex>(v));
    }
    return result;
  }

  // Within a budget there is no room for plain training, which a walk in order is.
  bool has_walks_in_order() const {
    return recording_.device.is_cpu() && within_ == nullptr && stand_ins_ == nullptr;
  }

  // Returns the bytes that the budget leaves, if there is one.
  std::optional<int64_t> room() const {
    if (within_ == nullptr && stand_ins_ == nullptr) return std::nullopt;
    const int64_t budget = within_ ? within_->budget().count() : stand_ins_->budget();
    return std::max<int64_t>(0, budget - memory_count(recording_.device).live);
  }

  std::vector<c10::Storage> operands(const Work& work) const {
    std::vector<c10::Storage> all;
    for (const int32_t value : values_read(work)) all.push_back(replay_.storage_of(value));
    return all;
  }

  // Returns the memory that the work writes over. To repeat the work, the bytes from before are put
  // back.
  std::vector<c10::Storage> written(const Work& work) const {
    std::vector<c10::Storage> all;
    for (const auto& [now, before] : work.overwrites) all.push_back(replay_.storage_of(before));
    for (const int32_t e : work.effects) all.push_back(replay_.external_storage(e));
    return all;
  }

  // Returns for each op whether it belongs to realizations that need not be measured, because all
  // their works do what other works do that are measured. All realizations of a choice but the first
  // are measured or left out together, because they read each other's values.
  std::vector<bool> known_realizations() const {
    const Graph& graph = lowered_.graph;
    std::vector<bool> known(graph.ops.size(), false);
    std::set<std::string> kinds;
    for (const Choice& choice : graph.choices) {
      std::set<OpIndex> plain(choice.realizations[0].ops.begin(), choice.realizations[0].ops.end());
      std::vector<OpIndex> others;
      bool fresh = false;
      for (size_t r = 1; r < choice.realizations.size(); ++r) {
        for (const OpIndex op : choice.realizations[r].ops) {
          if (plain.contains(op)) continue;
          others.push_back(op);
          if (is_again_[op]) continue;
          for (const int32_t work : lowered_.works[op]) {
            fresh |= kinds.insert(times_.kind(static_cast<size_t>(work))).second;
          }
        }
      }
      if (fresh) continue;
      for (const OpIndex op : others) known[op] = true;
    }
    return known;
  }

  // Returns the number of kinds of works that are measured alone.
  int64_t kinds_alone() const {
    std::set<std::string> kinds;
    for (size_t op = 0; op < has_alternatives_.size(); ++op) {
      if (is_again_[op] || is_known_[op]) continue;
      if (!has_alternatives_[op] && has_walks_in_order()) continue;
      for (const int32_t work : lowered_.works[op]) {
        if (!works_.all[work].apart) {
          kinds.insert(times_.kind(static_cast<size_t>(work)));
        }
      }
    }
    return static_cast<int64_t>(kinds.size());
  }

  // Measures a work. If it `stays`, the step goes on with its results; else all is as if the work
  // had not run. Repeats the work if `alone`, or else takes its time in the walks in order.
  void measure(size_t w, bool stays, bool alone) {
    const Work& work = works_.all[w];
    const Needed needed(within_, operands(work));
    const std::vector<c10::Storage> memory = written(work);
    const size_t inside = memory.size() - work.effects.size();
    // A work that runs once and stays leaves what it writes inside the step.
    const size_t first = stays && !alone ? inside : 0;
    std::vector<HostBytes> before(memory.size());
    for (size_t m = first; m < memory.size(); ++m) before[m] = copy_to_host(memory[m]);
    const RandomState random(recording_.device);
    auto put_back = [&] {
      for (size_t m = first; m < memory.size(); ++m) copy_from_host(before[m], memory[m]);
      random.restore();
    };
    try {
      const Unseen unseen(within_);
      if (within_ != nullptr) {  // This run makes room for those that are measured.
        replay_.invoke(work);
        replay_.drop_results();
        put_back();
      }
      take_times(w, alone, put_back);
    } catch (...) {
      put_back();
      throw;
    }
    if (!stays) {
      replay_.drop_results();
      put_back();
      return;
    }
    if (within_ != nullptr) {  // This run is seen, so that its results can be made again.
      replay_.drop_results();
      put_back();
      replay_.invoke(work);
    }
    replay_.keep_results(work);
    // Memory outside the step gets its bytes back. The next works read what was written inside the
    // step.
    for (size_t m = inside; m < memory.size(); ++m) copy_from_host(before[m], memory[m]);
  }

  // Measures a work on operands of its own, which are there for it alone.
  void measure_on_stand_ins(size_t w) {
    const Work& work = works_.all[w];
    stand_ins_->begins(work.name);
    std::vector<int32_t> given;
    for (const Argument& argument : work.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory != Memory::kValue || argument.shape_only || replay_.storage_of(ref.index)) {
          continue;
        }
        const StepValue& value = recording_.values[ref.index];
        stand_ins_->require_budget(device::counted_bytes(value.bytes, value.device));
        replay_.set(ref.index, stand_in(value.bytes, ref.geometry.dtype, value.device));
        given.push_back(ref.index);
      }
    }
    measure(w, /*stays=*/false, /*alone=*/true);
    for (const int32_t value : given) replay_.set(value, {});
    stand_ins_->require_budget();
  }

  // Takes the work's times and leaves the results of its last run on the stack.
  template <class PutBack>
  void take_times(size_t w, bool alone, PutBack&& put_back) {
    const Work& work = works_.all[w];
    reset_peak(recording_.device);
    const bool fresh = times_.repeats(w) == 0;
    const TimedRun time = timed(work);
    const MemoryCount count = memory_count(recording_.device);
    const Bytes workspace(count.peak - count.live);
    result_.by_work[w].workspace = workspace;
    is_measured_[w] = true;
    Bytes& of_kind = scratch_[times_.kind(w)];
    of_kind = std::max(of_kind, workspace);
    if (!fresh) return;
    times_.add_alone(w, time);
    if (!alone) return;
    const Nanos share = share_of_kind();
    kinds_left_ = std::max<int64_t>(0, kinds_left_ - 1);
    Nanos last = time.wall;
    while (times_.total(w) + last <= share &&
           (times_.repeats(w) < options_.min_repeats ||
            (times_.total(w) < options_.min_time && times_.repeats(w) < options_.max_repeats))) {
      replay_.drop_results();
      put_back();
      const TimedRun again = timed(work);
      last = again.wall;
      times_.add_alone(w, again);
    }
  }

  // Returns how long one more kind may be measured, so that time is left for the rest of this walk,
  // for the kinds that follow and for walks in order.
  Nanos share_of_kind() const {
    const auto rest = static_cast<int64_t>((1 - done_) * static_cast<double>(most_.step.count()));
    const int64_t walks = has_walks_in_order() ? kWalksLeft : 0;
    const int64_t left = (most_.end() - wall_clock()).count() - rest - walks * most_.step.count();
    return Nanos(std::max<int64_t>(0, left) / std::max<int64_t>(1, kinds_left_));
  }

  TimedRun timed(const Work& work) {
    return time_run(recording_.device, [&] { replay_.invoke(work); });
  }

  // Runs the works of plain training and takes the time of each.
  class InOrder final : public Backend {
   public:
    explicit InOrder(Meter& meter) : meter_(meter) {}

    void run(const RunAction& step) override {
      const auto work = static_cast<size_t>(meter_.lowered_.works[step.op][step.variant]);
      if (meter_.works_.all[work].apart) return meter_.replay_.pass_over(meter_.works_.all[work]);
      const TimedRun time = time_run(meter_.recording_.device, [&] { meter_.replay_.run(step); });
      times.emplace_back(work, time);
    }
    void free(ValueIndex value, int32_t memory) override { meter_.replay_.free(value, memory); }

    std::vector<std::pair<size_t, TimedRun>> times;  // work and time, in the order of the walk

   private:
    Meter& meter_;
  };

  // Walks through plain training, some times in a row. A work that is repeated finds its operands,
  // its code and the library's tables in the caches; in a step it finds what the works before it
  // have left there.
  void walk_in_order(const Tensors& inputs, const RandomState& random) {
    const Graph& graph = lowered_.graph;
    const std::vector<Run> runs = plain_runs(graph);
    const Program program(graph, with_frees(graph, runs));
    const std::vector<c10::Storage> memory = written_externals(runs);
    std::vector<HostBytes> before;
    for (const c10::Storage& storage : memory) before.push_back(copy_to_host(storage));
    const auto put_back = [&] {
      for (size_t m = 0; m < memory.size(); ++m) copy_from_host(before[m], memory[m]);
    };
    Nanos total, longest;
    const auto goes_on = [&](int walk) {
      if (walk == 1) return true;
      const bool wanted =
          walk <= options_.min_repeats ||
          (total.count() / kWalks < options_.min_time.count() && walk <= options_.max_repeats);
      return wanted && wall_clock() + longest <= most_.end();
    };
    for (int walk = 1; goes_on(walk); ++walk) {
      const Nanos begun = wall_clock();
      replay_.clear();
      replay_.begin(inputs);
      random.restore();  // Host reads may read what the step draws, so each walk draws the same.
      InOrder walker(*this);
      try {
        execute(program, walker);
        report(kForAlone + (1 - kForAlone) * walk / std::max(walk, options_.min_repeats),
               "in order");
      } catch (...) {
        put_back();
        throw;
      }
      put_back();
      for (const auto& [work, time] : walker.times) {
        times_.add_in_order(work, time);
        total += time.wall;
      }
      longest = std::max(longest, wall_clock() - begun);
    }
  }

  // Returns the memory outside the step that these runs write.
  std::vector<c10::Storage> written_externals(const std::vector<Run>& runs) const {
    std::set<int32_t> effects;
    for (const Run& run : runs) {
      const Work& work = works_.all[lowered_.works[run.op][run.variant]];
      if (!work.apart) effects.insert(work.effects.begin(), work.effects.end());
    }
    std::vector<c10::Storage> all;
    for (const int32_t e : effects) all.push_back(replay_.external_storage(e));
    return all;
  }

  const Recording& recording_;
  const Works& works_;
  const MeasureOptions& options_;
  const CaptureTime most_;
  Within* const within_;
  StandIns* const stand_ins_;
  const LoweredStep lowered_;
  Replay replay_;
  std::vector<bool> is_again_;  // by op: ops before it have the same works
  std::vector<bool> is_known_;  // by op: other ops do the same as all that belongs to it
  // By op: others may run in its place, so that its time alone is compared with theirs.
  std::vector<bool> has_alternatives_;
  std::vector<bool> is_measured_;         // by work
  std::map<std::string, Bytes> scratch_;  // by kind
  int64_t kinds_left_ = 0;                // to be measured alone
  double done_ = 0;                       // share of the first walk
  WorkTimes times_;
  const ProcessorWatch watch_{recording_.device};
  WorkCosts result_;
};

}  // namespace

WorkCosts measure_works(const RewrittenStep& step, const Tensors& inputs,
                        const MeasureOptions& options, const CaptureTime& most, Within* within,
                        StandIns* stand_ins) {
  const auto measure = [&] {
    const ReplayScope scope;
    return Meter(step, options, most, within, stand_ins).run(inputs);
  };
  if (within == nullptr && stand_ins == nullptr) return measure();
  step::Surroundings& around = within ? static_cast<step::Surroundings&>(*within) : *stand_ins;
  WorkCosts costs;
  around.run([&] { costs = measure(); });
  return costs;
}

}  // namespace reprise::runtime::internal::graph
