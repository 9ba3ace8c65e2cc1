#include "plan/place/devices/starts.h"

#include <algorithm>

#include "plan/common/graph_facts.h"

namespace reprise::internal::devices {
namespace {

constexpr size_t kMostRanked = 2000;  // runs; longer lists keep their order

bool are_twins(const Variant& a, const Variant& b) {
  return a.reads == b.reads && a.writes == b.writes && a.consumes == b.consumes &&
         a.reuses == b.reuses && a.role == b.role;
}

class EarliestFinish {
 public:
  explicit EarliestFinish(const Ground& ground)
      : ground_(ground),
        memories_(ground.machine.memories.size()),
        plain_(plain_runs(ground.graph)),
        made_(ground.graph.values.size() * memories_, kNoWay),
        clocks_(memories_, 0) {
    for (size_t v = 0; v < ground.graph.values.size(); ++v) {
      if (ground.is_input[v]) made_[v * memories_] = 0;
    }
    find_ranks();
  }

  Sequence make() {
    State list;
    std::vector<char> done(plain_.size(), 0);
    while (list.runs.size() < plain_.size()) {
      size_t next = plain_.size();
      bool before_once = true, before_random = true;
      for (size_t r = 0; r < plain_.size(); ++r) {
        if (done[r]) continue;
        const Op& op = ground_.graph.ops[plain_[r].op];
        const bool once = common::runs_once(op);
        const bool waits = (once && !before_once) || (op.random && !before_random) || !is_ready(r);
        if (once) before_once = false;
        if (op.random) before_random = false;
        if (!waits && (next == plain_.size() || ranks_[r] > ranks_[next])) next = r;
        if (next < plain_.size() && plain_.size() > kMostRanked) break;
      }
      if (next == plain_.size()) return plain_;  // some op takes what another one still reads
      done[next] = 1;
      list.runs.push_back(place(plain_[next]));
      list.ends.push_back(end_);
    }
    return by_end(ground_, list);
  }

 private:
  int64_t& made(ValueIndex v, int32_t m) {
    return made_[static_cast<size_t>(v) * memories_ + static_cast<size_t>(m)];
  }

  // Plain training's runs write each value once, so that a value is there or not.
  bool is_ready(size_t r) {
    for (const ValueIndex v : ground_.variant(plain_[r]).reads) {
      bool there = false;
      for (size_t m = 0; m < memories_; ++m) there |= made(v, static_cast<int32_t>(m)) < kNoWay;
      if (!there) return false;
    }
    return true;
  }

  double mean_time(const Run& run) const {
    double sum = 0;
    int count = 0;
    for (size_t m = 0; m < memories_; ++m) {
      const int32_t twin = twin_on(ground_, run, static_cast<int32_t>(m));
      if (twin < 0) continue;
      sum += static_cast<double>(ground_.variant({run.op, twin}).time.count());
      ++count;
    }
    return count > 0 ? sum / count : 0;
  }

  // Half of the copies there are between two devices, as if each place were as likely.
  double mean_copy(ValueIndex v) const {
    double sum = 0;
    int count = 0;
    for (size_t a = 0; a < memories_; ++a) {
      for (size_t b = 0; b < memories_; ++b) {
        const auto from = static_cast<int32_t>(a), to = static_cast<int32_t>(b);
        const bool devices = computes(ground_.machine, from) && computes(ground_.machine, to);
        if (!devices || ground_.routes.time(v, from, to) >= kNoWay) continue;
        sum += static_cast<double>(ground_.routes.time(v, from, to));
        ++count;
      }
    }
    return count > 0 ? sum / count : 0;
  }

  void find_ranks() {
    ranks_.assign(plain_.size(), 0);
    std::vector<double> behind(ground_.graph.values.size(), 0);  // the highest rank of a reader
    for (size_t r = plain_.size(); r-- > 0;) {
      const Variant& variant = ground_.variant(plain_[r]);
      double rank = 0;
      for (const ValueIndex v : variant.writes) {
        rank = std::max(rank, behind[v] + mean_copy(v));
      }
      ranks_[r] = rank + mean_time(plain_[r]);
      for (const ValueIndex v : variant.reads) {
        double& most = behind[v];
        most = std::max(most, ranks_[r]);
      }
    }
  }

  // Takes the device where the run is over first.
  Run place(const Run& run) {
    Run best = run;
    end_ = kNoWay;
    for (size_t m = 0; m < memories_; ++m) {
      const auto device = static_cast<int32_t>(m);
      const int32_t twin = twin_on(ground_, run, device);
      if (twin < 0) continue;
      int64_t begin = clocks_[m];
      for (const ValueIndex v : ground_.variant(run).reads)
        begin = std::max(begin, there(v, device));
      const int64_t end = begin + ground_.variant({run.op, twin}).time.count();
      if (end >= end_) continue;
      end_ = end;
      best.variant = twin;
    }
    const int32_t device = ground_.device(best);
    for (const ValueIndex v : ground_.variant(run).reads) made(v, device) = there(v, device);
    for (const ValueIndex v : ground_.variant(run).writes) made(v, device) = end_;
    clocks_[device] = end_;
    return best;
  }

  int64_t there(ValueIndex v, int32_t device) {
    int64_t least = kNoWay;
    for (size_t m = 0; m < memories_; ++m) {
      const auto memory = static_cast<int32_t>(m);
      if (made(v, memory) == kNoWay) continue;
      least = std::min(least, made(v, memory) + ground_.routes.time(v, memory, device));
    }
    return least;
  }

  const Ground& ground_;
  const size_t memories_;
  const Sequence plain_;
  std::vector<double> ranks_;    // by run
  std::vector<int64_t> made_;    // by value and memory: when it is there
  std::vector<int64_t> clocks_;  // by memory
  int64_t end_ = 0;
};

}  // namespace

int32_t twin_on(const Ground& ground, const Run& run, int32_t device) {
  const Op& op = ground.graph.ops[run.op];
  int32_t best = -1;
  for (size_t k = 0; k < op.variants.size(); ++k) {
    if (ground.devices[run.op][k] != device) continue;
    if (!are_twins(op.variants[k], ground.variant(run))) continue;
    const bool faster = best < 0 || op.variants[k].time < op.variants[best].time;
    if (faster) best = static_cast<int32_t>(k);
  }
  return best;
}

Sequence earliest_finish(const Ground& ground) { return EarliestFinish(ground).make(); }

Sequence on_device(const Ground& ground, int32_t device) {
  Sequence runs = plain_runs(ground.graph);
  for (Run& run : runs) {
    const int32_t twin = twin_on(ground, run, device);
    if (twin >= 0) run.variant = twin;
  }
  return runs;
}

}  // namespace reprise::internal::devices
