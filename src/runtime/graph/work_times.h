// Makes one time for each kind of work from samples.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reprise/model/plan.h"
#include "reprise/model/profile.h"
#include "reprise/model/units.h"
#include "runtime/device/stopwatch.h"
#include "runtime/graph/lower.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

// WorkTimes collects samples of works. Works of one kind, which do the same, share their samples.
// There are two sorts:
//
// - A work is measured *alone*, repeated on the same operands. The operands, its code and the
//   library's tables are in the caches then.
// - The works of plain training are measured *in order*, where each work finds in the caches what
//   the works before it have left there. This makes a step some per cent longer, and a small work
//   several times as long.
//
// A work of plain training takes the typical time of its samples in order (typical_time(), the
// median on a quiet machine; of two samples the shorter one). No walk has the works of alternatives
// in order. Such a work takes its typical time alone, longer in the proportion of the work that it
// stands for, but by no more time.
class WorkTimes {
 public:
  WorkTimes(const step::Works& works, const LoweredStep& lowered);

  void add_alone(size_t work, const device::TimedRun& run);
  void add_in_order(size_t work, const device::TimedRun& run);

  // Returns a text that is equal for works that share their samples.
  const std::string& kind(size_t work) const { return kinds_[work]; }
  // Return the number of samples alone, and the sum of their wall times.
  int repeats(size_t work) const;
  Nanos total(size_t work) const;

  struct Shared {
    std::vector<Nanos> time;         // by work; 0 for a work that was not measured
    std::vector<TimeSpread> spread;  // by kind of work, named after the first work of the kind
  };
  Shared share(bool busy) const;  // whether the machine was busy with other work

 private:
  struct Samples {
    std::vector<device::TimedRun> alone, in_order;
    Nanos total;  // of the samples alone
  };
  // A Slowdown says how much longer works of plain training take in order.
  struct Slowdown {
    Nanos in_order, alone;
    int64_t count = 0;  // of the works that are added up

    void add(const Slowdown& other);
    Nanos of(Nanos time) const;
  };

  const std::string& kind_of_run(const Run& run) const;
  // Returns for each kind of work the slowdown of the work that it stands for.
  std::map<std::string, Slowdown> slowdowns(bool busy) const;

  const step::Works& works_;
  const LoweredStep& lowered_;
  std::vector<std::string> kinds_;  // by work
  std::map<std::string, Samples> samples_;
};

}  // namespace reprise::runtime::internal::graph
