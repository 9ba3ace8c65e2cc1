#include "capture/meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "capture/block_pool.h"
#include "capture/replay.h"
#include "capture/storage_bytes.h"
#include "device.h"
#include "random_state.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime {
namespace {

using Clock = std::chrono::steady_clock;

class Meter {
 public:
  Meter(const Recording& recording, const Works& works, const Alternatives& alternatives,
        const Updates& updates, const MeasureOptions& options)
      : recording_(recording),
        works_(works),
        options_(options),
        captured_(lower(recording, works, alternatives, updates,
                        std::vector<WorkCost>(works.all.size()), {}, Bytes(0), "")),
        replay_(recording, works, captured_) {
    for (const Work& work : works.all) keys_.push_back(kind_of(work));
    std::vector<bool> seen(works.all.size(), false);
    for (const std::vector<int32_t>& variants : captured_.works) {
      const bool is_seen = std::all_of(variants.begin(), variants.end(), [&](int32_t work) {
        return seen[static_cast<size_t>(work)];
      });
      is_again_.push_back(is_seen);
      for (const int32_t work : variants) seen[static_cast<size_t>(work)] = true;
    }
  }

  WorkCosts run(const Tensors& inputs) {
    BlockSourceScope pool(std::make_shared<BlockPool>());
    const RandomScope random(recording_.device);
    replay_.begin(inputs);
    result_.costs.resize(works_.all.size());
    const std::vector<std::vector<ValueIndex>> last = last_uses();
    for (size_t op = 0; op < captured_.graph.ops.size(); ++op) {
      if (!is_again_[op]) {
        // The first one last: it leaves its results behind.
        const std::vector<int32_t>& variants = captured_.works[op];
        for (size_t k = variants.size(); k-- > 0;) {
          const auto work = static_cast<size_t>(variants[k]);
          if (!works_.all[work].apart) measure(work, k == 0);
        }
      }
      for (const ValueIndex value : last[op]) replay_.free(value);
      if (options_.observer) {
        const double done = static_cast<double>(op + 1) / static_cast<double>(last.size());
        options_.observer({"profile", done, captured_.graph.ops[op].id});
      }
    }
    replay_.clear();
    share_times();
    return std::move(result_);
  }

 private:
  std::vector<std::vector<ValueIndex>> last_uses() const {
    const Graph& graph = captured_.graph;
    std::vector<int64_t> last(graph.values.size(), -1);
    for (size_t op = 0; op < graph.ops.size(); ++op) {
      if (is_again_[op]) continue;
      for (const Variant& variant : graph.ops[op].variants) {
        for (const auto* values : {&variant.reads, &variant.writes}) {
          for (const ValueIndex v : *values)
            last[static_cast<size_t>(v)] = static_cast<int64_t>(op);
        }
      }
    }
    std::vector<std::vector<ValueIndex>> result(graph.ops.size());
    for (size_t v = 0; v < last.size(); ++v) {
      if (last[v] >= 0) result[static_cast<size_t>(last[v])].push_back(static_cast<ValueIndex>(v));
    }
    return result;
  }

  // Memory that the work writes over: repeating it needs the bytes from before.
  std::vector<c10::Storage> written(const Work& work) const {
    std::vector<c10::Storage> all;
    for (const auto& [now, before] : work.overwrites) all.push_back(replay_.storage_of(before));
    for (const int32_t e : work.effects) {
      all.push_back(recording_.externals[static_cast<size_t>(e)].tensor.storage());
    }
    return all;
  }

  // `stays`: the step goes on with its results; else all is as if it had not run.
  void measure(size_t w, bool stays) {
    const Work& work = works_.all[w];
    const std::vector<c10::Storage> memory = written(work);
    std::vector<HostBytes> before;
    for (const c10::Storage& storage : memory) before.push_back(copy_to_host(storage));
    const RandomState random(recording_.device);
    auto put_back = [&] {
      for (size_t m = 0; m < memory.size(); ++m) copy_from_host(before[m], memory[m]);
      random.restore();
    };
    try {
      take_times(w, put_back);
    } catch (...) {
      put_back();
      throw;
    }
    if (!stays) {
      replay_.drop_results();
      put_back();
      return;
    }
    replay_.keep_results(work);
    // What lies outside the step is put back; inside, the next works read what was written.
    for (size_t m = memory.size() - work.effects.size(); m < memory.size(); ++m) {
      copy_from_host(before[m], memory[m]);
    }
  }

  // Leaves the last run's results on the stack.
  template <class PutBack>
  void take_times(size_t w, PutBack&& put_back) {
    const Work& work = works_.all[w];
    reset_peak(recording_.device);
    int64_t time = timed(work);
    const MemoryCount count = memory_count(recording_.device);
    result_.costs[w].workspace = Bytes(count.peak - count.live);
    std::vector<int64_t>& times = times_[keys_[w]];
    times.push_back(time);
    int64_t& total = total_[keys_[w]];
    total += time;
    while (static_cast<int>(times.size()) < options_.min_repeats ||
           (total < options_.min_time.count() &&
            static_cast<int>(times.size()) < options_.max_repeats)) {
      replay_.drop_results();
      put_back();
      times.push_back(timed(work));
      total += times.back();
    }
  }

  int64_t timed(const Work& work) {
    synchronize(recording_.device);
    const auto start = Clock::now();
    replay_.invoke(work);
    synchronize(recording_.device);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  }

  void share_times() {
    std::map<std::string, Nanos> medians;
    for (size_t c = 0; c < keys_.size(); ++c) {
      const auto found = times_.find(keys_[c]);
      if (found == times_.end()) continue;  // left out of the graph
      auto [median, fresh] = medians.try_emplace(keys_[c]);
      if (fresh) {
        std::vector<int64_t>& times = found->second;
        std::sort(times.begin(), times.end());
        median->second = Nanos(times[times.size() / 2]);
        result_.spread.push_back({.op = fmt::format("{}:{}", c, works_.all[c].name),
                                  .variant = "default",
                                  .repeats = static_cast<int64_t>(times.size()),
                                  .min = Nanos(times.front()),
                                  .median = median->second,
                                  .max = Nanos(times.back())});
      }
      result_.costs[c].time = median->second;
    }
  }

  const Recording& recording_;
  const Works& works_;
  const MeasureOptions& options_;
  const CapturedGraph captured_;
  Replay replay_;
  std::vector<bool> is_again_;     // by op: its works are those of ops before it
  std::vector<std::string> keys_;  // by work
  std::map<std::string, std::vector<int64_t>> times_;  // by key
  std::map<std::string, int64_t> total_;
  WorkCosts result_;
};

}  // namespace

WorkCosts measure_works(const Recording& recording, const Works& works,
                        const Alternatives& alternatives, const Updates& updates,
                        const Tensors& inputs, const MeasureOptions& options) {
  ReplayScope scope;
  return Meter(recording, works, alternatives, updates, options).run(inputs);
}

}  // namespace reprise::runtime
