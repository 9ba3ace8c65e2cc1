// Traffic follows the copies of a plan for verify(): which are under way, and when the devices and
// the channels get to what. It knows nothing of bytes, and accepts any order of calls, so that the
// judge can go on after a fault.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "check/accounting.h"
#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"

namespace reprise {

class Traffic {
 public:
  // Both must outlive the object.
  Traffic(const Graph& graph, const Machine& machine);

  // Returns the time when all devices are done with what was entered.
  Wide now() const;
  void run(Nanos time, int32_t memory) { clocks_[memory] += time.count(); }

  // Enters a copy with its number in the plan.
  void copy(int64_t action, const BoundAction& copy);
  // Waits for the last copy to this place. Does nothing if there was none.
  void wait(ValueIndex value, int32_t memory);

  // Says whether a copy into this place has not been waited for.
  bool arriving(ValueIndex value, int32_t memory) const;
  // Says whether a copy out of this place has not been waited for.
  bool leaving(ValueIndex value, int32_t memory) const;
  // The bytes of this place are given back: what comes there later is something new. The memory is
  // held up until the copies out of the place and into it are over that somebody has waited for.
  void forget(ValueIndex value, int32_t memory);

 private:
  struct Copy {
    ValueIndex value;
    int32_t from, to;
    Wide end;
    bool waited = false;
  };
  using Place = std::pair<ValueIndex, int32_t>;

  const Copy* last_into(const Place& place) const;

  const Graph& graph_;
  const Machine& machine_;
  // By memory: when a device has done its runs, and when a memory behind the devices has given back
  // what was freed there.
  std::vector<Wide> clocks_;
  std::map<int64_t, Copy> copies_;                // by action
  std::map<Place, int64_t> into_;                 // the last copy into a place
  std::map<Place, std::vector<int64_t>> out_of_;  // the copies out of a place
  std::map<int32_t, int64_t> last_in_queue_;      // by the first channel of a queue
};

}  // namespace reprise
