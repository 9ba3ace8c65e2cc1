// Traffic follows the copies of a plan for verify(): which are under way, and when the devices and
// the channels get to what. It knows nothing of bytes, and accepts any order of calls, so that the
// judge can go on after a fault.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
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
  // Enters a send or a receive. Returns false if it is the second one of a message.
  bool message(int64_t action, const BoundAction& end);
  // Waits for the last copy to this place, and for the messages out of it. Does nothing if there was
  // none. Returns false if a message has not got both of its ends, or is behind such a one.
  bool wait(ValueIndex value, int32_t memory);

  // Says whether a copy into this place has not been waited for here.
  bool arriving(ValueIndex value, int32_t memory) const;
  // Says whether a copy out of this place has not been waited for.
  bool leaving(ValueIndex value, int32_t memory) const;
  // Says whether the message into this place cannot start yet.
  bool open(ValueIndex value, int32_t memory) const;
  // Says whether messages that cannot start yet stand before what this channel is to carry now.
  bool blocked(int32_t channel) const;
  // Returns the sends and the receives that have no partner, in order.
  std::vector<int64_t> halves() const;
  // The bytes of this place are given back: what comes there later is something new. The memory is
  // held up until the copies out of the place and into it are over that somebody has waited for.
  void forget(ValueIndex value, int32_t memory);

 private:
  struct Copy {
    ValueIndex value;
    int32_t from, to;
    std::optional<Wide> end = {};
    bool waited = false;   // at one of its ends
    bool arrived = false;  // waited for where it goes
    bool message = false;
    std::optional<Wide> sent = {}, posted = {};  // when the two ends got to a message
  };
  using Place = std::pair<ValueIndex, int32_t>;

  const Copy* last_into(const Place& place) const;
  // Gives a copy its end, which starts after `start` and after these copies.
  void carry(int64_t action, int32_t channel, Wide start, const std::vector<int64_t>& after);

  const Graph& graph_;
  const Machine& machine_;
  // By memory: when a device has done its runs, and when a memory behind the devices has given back
  // what was freed there.
  std::vector<Wide> clocks_;
  std::map<int64_t, Copy> copies_;                // by action; messages by that of their first end
  std::map<Place, int64_t> into_;                 // the last copy into a place
  std::map<Place, std::vector<int64_t>> out_of_;  // the copies out of a place
  std::map<int32_t, int64_t> last_in_queue_;      // by the first channel of a queue
  std::map<Place, int64_t> halves_;               // messages that have one end, by target
  std::map<int32_t, std::deque<int64_t>> sent_;   // messages that have not started, by queue
};

}  // namespace reprise
