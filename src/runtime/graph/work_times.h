// From samples to one time for each kind of work.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/graph/lower.h"
#include "runtime/step/work.h"
#include "reprise/model/plan.h"
#include "reprise/model/profile.h"
#include "reprise/model/units.h"

namespace reprise::runtime::internal::graph {

// Works that do the same share their samples. A work is measured *alone*, repeated on the same operands: these, its code
// and the library's tables are in the caches then. And plain training is measured *in order*, where each work
// finds what the works before it have left there: some per cent of a step, and several times what a small work takes
// alone. Work of plain training takes the median of its samples in order. What can run in its place, which
// no walk has in order, takes its median alone, longer in the proportion of that which it stands for, but by no more time.
class WorkTimes {
 public:
  WorkTimes(const step::Works& works, const LoweredStep& lowered);

  void add_alone(size_t work, Nanos time);
  void add_in_order(size_t work, Nanos time);

  int repeats(size_t work) const;  // alone
  Nanos total(size_t work) const;  // of these

  struct Shared {
    std::vector<Nanos> time;         // by work; 0 of one that was not measured
    std::vector<TimeSpread> spread;  // by kind of work, named after its first one
  };
  Shared share() const;

 private:
  struct Samples {
    std::vector<Nanos> alone, in_order;
    Nanos total;  // alone
  };
  // Of plain training's works: how much longer they take in order.
  struct Slowdown {
    Nanos in_order, alone;
    int64_t count = 0;  // of what is added up

    void add(const Slowdown& other);
    Nanos of(Nanos time) const;
  };

  const std::string& kind_of_run(const Run& run) const;
  // By kind of work: of what it stands for.
  std::map<std::string, Slowdown> slowdowns() const;

  const step::Works& works_;
  const LoweredStep& lowered_;
  std::vector<std::string> kinds_;  // by work
  std::map<std::string, Samples> samples_;
};

}  // namespace reprise::runtime::internal::graph
