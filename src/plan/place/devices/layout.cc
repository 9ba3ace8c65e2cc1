#include "plan/place/devices/layout.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace reprise::internal::devices {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();
constexpr size_t kFarthest = 512;  // runs that a copy is brought forward by, at most

// A Use is a run that reads or writes a value. A run that writes a value makes it anew.
struct Use {
  size_t run;
  int32_t device;
  bool writes;
};

// A Place is a value in a memory.
struct Place {
  bool there = false;
  bool arriving = false;              // nobody has waited for its copy
  size_t since = 0;                   // the slot from which on copies of it can stand
  size_t free_from = 0;               // the slot from which on a copy can come here again
  bool sent = false;                  // a copy of it has gone elsewhere
  std::vector<int32_t> leaving = {};  // where copies of it go that nobody has waited for
};

// A slot is a run with what stands before and behind it: copies, what leaves, copies for the run,
// waits, the run, and frees.
struct Slot {
  std::vector<BoundAction> early;   // copies that stand here for later runs
  std::vector<BoundAction> before;  // the rest, up to the run
  std::vector<BoundAction> after;
};

class Builder {
 public:
  Builder(const Ground& ground, const std::vector<Run>& runs, bool late_frees)
      : ground_(ground),
        runs_(runs),
        late_frees_(late_frees),
        memories_(ground.machine.memories.size()),
        places_(ground.graph.values.size() * memories_),
        uses_(ground.graph.values.size()),
        next_use_(ground.graph.values.size(), 0),
        slots_(runs.size() + 1),
        levels_(memories_, 0),
        most_(memories_, std::vector<int64_t>(runs.size() + 1, 0)),
        held_(memories_),
        let_go_(memories_) {}

  Layout build() {
    find_uses();
    levels_[0] = ground_.graph.fixed.count();
    for (size_t v = 0; v < ground_.graph.values.size(); ++v) {
      if (ground_.is_input[v]) arrive(static_cast<ValueIndex>(v), 0, 0);
    }
    layout_.excess = std::max<int64_t>(0, levels_[0] - ground_.capacities[0]);
    for (slot_ = 0; slot_ < runs_.size(); ++slot_) {
      note_levels();
      if (!place_run(runs_[slot_])) return {};
    }
    note_levels();
    if (!bring_results()) return {};
    layout_.possible = true;
    collect();
    return std::move(layout_);
  }

 private:
  Place& place(ValueIndex v, int32_t m) {
    return places_[static_cast<size_t>(v) * memories_ + static_cast<size_t>(m)];
  }
  int64_t bytes(ValueIndex v) const { return ground_.bytes(v); }
  bool is_input(ValueIndex v) const { return ground_.is_input[v] != 0; }

  void find_uses() {
    for (size_t r = 0; r < runs_.size(); ++r) {
      const Variant& variant = ground_.variant(runs_[r]);
      const int32_t device = ground_.device(runs_[r]);
      for (const ValueIndex v : variant.reads) uses_[index(v)].push_back({r, device, false});
      for (const ValueIndex v : variant.writes) uses_[index(v)].push_back({r, device, true});
    }
    for (const ValueIndex v : ground_.graph.results)
      uses_[index(v)].push_back({runs_.size(), 0, false});
  }
  static size_t index(ValueIndex v) { return static_cast<size_t>(v); }

  // Returns the next run behind this slot that reads the value as it is, on the device or (-1) on
  // any.
  size_t next_read(ValueIndex v, int32_t device) const {
    const std::vector<Use>& uses = uses_[index(v)];
    for (size_t u = next_use_[index(v)]; u < uses.size() && !uses[u].writes; ++u) {
      if (device < 0 || uses[u].device == device) return uses[u].run;
    }
    return kNever;
  }

  void note_levels() {
    for (size_t m = 0; m < memories_; ++m) most_[m][slot_] = levels_[m];
  }
  void add(ValueIndex v, int32_t m) {
    levels_[m] += bytes(v);
    int64_t& most = most_[m][slot_];
    most = std::max(most, levels_[m]);
  }

  void arrive(ValueIndex v, int32_t m, size_t since) {
    Place& here = place(v, m);
    here.there = true;
    here.since = since;
    add(v, m);
    held_[m].push_back(v);
  }

  bool place_run(const Run& run) {
    const Variant& variant = ground_.variant(run);
    const int32_t d = ground_.device(run);
    // The uses by this run are over; what is read later decides what stays.
    for (const auto* list : {&variant.reads, &variant.writes}) {
      for (const ValueIndex v : *list) ++next_use_[index(v)];
    }
    for (const ValueIndex v : variant.writes) {
      if (place(v, d).there && is_let_go(v, d)) free(v, d, slots_[slot_].before);
    }
    int64_t brought = 0, added = variant.workspace.count();
    for (const ValueIndex v : variant.reads) {
      if (!place(v, d).there) brought += bytes(v);
    }
    for (const ValueIndex v : variant.writes) added += bytes(v);
    for (const ValueIndex v : variant.consumes) added -= bytes(v);
    for (const auto& pair : variant.reuses) added -= bytes(pair.second);
    // The bytes that the run takes have to be free before it.
    make_room(d, brought + std::max<int64_t>(0, added), variant);
    for (const ValueIndex v : variant.reads) {
      if (!bring(v, d)) return false;
    }
    for (const ValueIndex v : variant.reads) wait(v, d);
    const int64_t before = levels_[index(d)];
    for (const ValueIndex v : variant.consumes) take(v, d);
    for (const auto& pair : variant.reuses) take(pair.second, d);
    slots_[slot_].before.push_back(
        {.kind = ActionKind::kRun, .target = run.op, .variant = run.variant, .at = d});
    int64_t during = levels_[d] + variant.workspace.count();
    for (const ValueIndex v : variant.writes) {
      during += bytes(v);
      if (!place(v, d).there) arrive(v, d, slot_ + 1);
    }
    int64_t& most = most_[d][slot_];
    most = std::max(most, during);
    layout_.excess += std::max<int64_t>(0, std::max(before, during) - ground_.capacities[index(d)]);
    for (const auto* list : {&variant.reads, &variant.writes}) {
      for (const ValueIndex v : *list) forget(v);
    }
    release(d, slots_[slot_].after);
    return true;
  }

  bool bring_results() {
    for (const ValueIndex v : ground_.graph.results) {
      ++next_use_[index(v)];
      if (!place(v, 0).there) make_room(0, bytes(v), {});
      if (!bring(v, 0)) return false;
      wait(v, 0);
    }
    if (levels_[0] > ground_.capacities[0]) release(0, slots_[slot_].before);
    layout_.excess += std::max<int64_t>(0, levels_[0] - ground_.capacities[0]);
    for (size_t v = 0; v < ground_.graph.values.size(); ++v) {
      for (size_t m = 0; m < memories_; ++m) {
        const auto value = static_cast<ValueIndex>(v);
        const auto memory = static_cast<int32_t>(m);
        const bool stays = memory == 0 && (ground_.is_result[v] || ground_.is_input[v]);
        if (!stays && place(value, memory).there) free(value, memory, slots_[slot_].before);
      }
    }
    return true;
  }

  // Lets values leave the device until so many bytes fit.
  void make_room(int32_t d, int64_t need, const Variant& variant) {
    const auto is_full = [&] { return levels_[index(d)] + need > ground_.capacities[index(d)]; };
    if (is_full()) release(d, slots_[slot_].before);
    while (is_full()) {
      ValueIndex victim = -1;
      int32_t to = -1;
      size_t last = 0;
      for (const ValueIndex v : held_[d]) {
        if (!can_leave(v, d) || touches(variant, v)) continue;
        const size_t next = std::min(next_read(v, d), next_read(v, -1) + 1);
        if (victim >= 0 && next <= last) continue;
        const int32_t refuge = find_refuge(v, d);
        if (refuge == d) continue;
        victim = v;
        to = refuge;
        last = next;
      }
      if (victim < 0) return;
      if (to >= 0) copy_out(victim, d, to);
      free(victim, d, slots_[slot_].before);
    }
  }

  // Inputs are the caller's on the first device, and results have to be there in the end.
  bool can_leave(ValueIndex v, int32_t d) {
    const bool at_end = slot_ == runs_.size() && ground_.is_result[index(v)];
    return place(v, d).there && !(d == 0 && (is_input(v) || at_end));
  }

  static bool touches(const Variant& variant, ValueIndex v) {
    return std::find(variant.reads.begin(), variant.reads.end(), v) != variant.reads.end() ||
           std::find(variant.writes.begin(), variant.writes.end(), v) != variant.writes.end();
  }

  // Returns the memory that a value goes to when it leaves the device: -1 if another memory has it
  // already, and the device itself if there is none.
  int32_t find_refuge(ValueIndex v, int32_t d) {
    int32_t best = d;
    int64_t least = kNoWay;
    for (size_t m = 0; m < memories_; ++m) {
      const auto memory = static_cast<int32_t>(m);
      if (memory == d) continue;
      if (place(v, memory).there) return -1;
      if (ground_.channels[index(d)][m] < 0 || ground_.channels[m][index(d)] < 0) continue;
      // It must not push out what a device needs for its own runs.
      if (levels_[m] + bytes(v) > ground_.capacities[m]) continue;
      const int64_t time = ground_.routes.time(v, d, memory) + ground_.routes.time(v, memory, d);
      if (time >= least) continue;
      least = time;
      best = memory;
    }
    return best;
  }

  // The copy stands behind what makes the value on the device, if where it goes has room until
  // here.
  void copy_out(ValueIndex v, int32_t from, int32_t to) {
    copy(v, from, to);
    wait(v, to);
  }

  // Returns the first slot at which a copy to this memory can stand.
  size_t earliest(ValueIndex v, int32_t from, int32_t to) {
    const auto m = static_cast<size_t>(to);
    const size_t first = std::max({place(v, from).since, place(v, to).free_from,
                                   slot_ > kFarthest ? slot_ - kFarthest : size_t{0}});
    size_t at = slot_;
    // The bytes are also there beside all that this slot held until now.
    if (most_[m][slot_] + bytes(v) > ground_.capacities[m]) return at;
    while (at > first && most_[m][at - 1] + bytes(v) <= ground_.capacities[m]) --at;
    if (at == slot_) return at;
    for (size_t k = at; k <= slot_; ++k) most_[m][k] += bytes(v);
    return at;
  }

  // Puts a copy over one channel into the order.
  void copy(ValueIndex v, int32_t from, int32_t to) {
    const BoundAction action{.kind = ActionKind::kCopy,
                             .target = v,
                             .at = from,
                             .to = to,
                             .channel = ground_.channels[index(from)][index(to)]};
    const size_t at = earliest(v, from, to);
    (at == slot_ ? slots_[at].before : slots_[at].early).push_back(action);
    place(v, from).leaving.push_back(to);
    place(v, from).sent = true;
    // What stands early in a slot stands before the rest of it.
    arrive(v, to, at == slot_ ? slot_ + 1 : at);
    place(v, to).arriving = true;
  }

  // Sees to it that the value comes to the device, over other memories if need be.
  bool bring(ValueIndex v, int32_t d) {
    if (place(v, d).there) return true;
    int32_t from = -1;
    int64_t least = kNoWay;
    for (size_t m = 0; m < memories_; ++m) {
      const auto memory = static_cast<int32_t>(m);
      if (!place(v, memory).there || ground_.routes.time(v, memory, d) >= least) continue;
      least = ground_.routes.time(v, memory, d);
      from = memory;
    }
    if (from < 0) return false;
    while (from != d) {
      const int32_t next = ground_.routes.next(v, from, d);
      // Where copies take no time, another memory on the way may have the value, too.
      const bool full = levels_[index(next)] + bytes(v) > ground_.capacities[index(next)];
      if (next != d && full) release(next, slots_[slot_].before);
      if (!place(v, next).there) copy(v, from, next);
      if (next != d && levels_[index(next)] > ground_.capacities[index(next)]) {
        layout_.excess += levels_[index(next)] - ground_.capacities[index(next)];
      }
      from = next;
    }
    return true;
  }

  void wait(ValueIndex v, int32_t m) { wait(v, m, slots_[slot_].before); }
  void wait(ValueIndex v, int32_t m, std::vector<BoundAction>& actions) {
    Place& here = place(v, m);
    if (!here.arriving) return;
    here.arriving = false;
    actions.push_back({.kind = ActionKind::kWait, .target = v, .at = m});
    for (size_t other = 0; other < memories_; ++other) {
      std::erase(place(v, static_cast<int32_t>(other)).leaving, m);
    }
  }

  // Waits for all copies of the value here and out of here; it is gone then.
  void settle(ValueIndex v, int32_t m, std::vector<BoundAction>& actions) {
    wait(v, m, actions);
    const std::vector<int32_t> leaving = place(v, m).leaving;
    for (const int32_t to : leaving) wait(v, to, actions);
    Place& here = place(v, m);
    here.there = here.sent = false;
    here.free_from = slot_ + 1;
    levels_[index(m)] -= bytes(v);
    std::erase(held_[index(m)], v);
    std::erase(let_go_[index(m)], v);
  }

  void take(ValueIndex v, int32_t m) { settle(v, m, slots_[slot_].before); }

  void free(ValueIndex v, int32_t m, std::vector<BoundAction>& actions) {
    settle(v, m, actions);
    actions.push_back({.kind = ActionKind::kFree, .target = v, .at = m});
  }

  // Gives the value back where no later run reads it. If others read it, one memory keeps it.
  void forget(ValueIndex v) {
    const size_t next = next_read(v, -1);
    int32_t keeper = -1;
    bool is_kept = false;  // some memory needs it itself
    int64_t least = kNoWay;
    const int32_t reader = next == kNever ? 0 : reader_of(v);
    for (size_t m = 0; m < memories_; ++m) {
      const auto memory = static_cast<int32_t>(m);
      if (!place(v, memory).there) continue;
      const bool stays = memory == 0 && is_input(v);
      is_kept = is_kept || stays || next_read(v, memory) != kNever;
      const int64_t time = ground_.routes.time(v, memory, reader);
      if (keeper >= 0 && time >= least) continue;
      keeper = memory;
      least = time;
    }
    for (size_t m = 0; m < memories_; ++m) {
      const auto memory = static_cast<int32_t>(m);
      if (!place(v, memory).there || (memory == 0 && is_input(v))) continue;
      if (next_read(v, memory) != kNever) continue;
      if (!is_kept && next != kNever && memory == keeper) continue;
      // A free holds up this memory's device until the copy is over that the other one reads.
      const bool later = late_frees_ && place(v, memory).sent &&
                         computes(ground_.machine, memory) && slot_ < runs_.size() &&
                         ground_.device(runs_[slot_]) != memory;
      if (!later) {
        free(v, memory, slots_[slot_].after);
      } else if (!is_let_go(v, memory)) {
        let_go_[m].push_back(v);
      }
    }
  }

  bool is_let_go(ValueIndex v, int32_t m) const {
    const std::vector<ValueIndex>& list = let_go_[index(m)];
    return std::find(list.begin(), list.end(), v) != list.end();
  }

  // Gives back what may go, unless somebody has come to need it.
  void release(int32_t m, std::vector<BoundAction>& actions) {
    const std::vector<ValueIndex> list = std::exchange(let_go_[index(m)], {});
    for (const ValueIndex v : list) {
      bool elsewhere = false;
      for (size_t other = 0; other < memories_; ++other) {
        const auto memory = static_cast<int32_t>(other);
        elsewhere = elsewhere || (memory != m && place(v, memory).there);
      }
      const bool needed = next_read(v, m) != kNever || (!elsewhere && next_read(v, -1) != kNever);
      if (!needed && can_leave(v, m)) free(v, m, actions);
    }
  }

  int32_t reader_of(ValueIndex v) const { return uses_[index(v)][next_use_[index(v)]].device; }

  void collect() {
    for (size_t s = 0; s < slots_.size(); ++s) {
      for (const auto* list : {&slots_[s].early, &slots_[s].before, &slots_[s].after}) {
        for (const BoundAction& action : *list) {
          if (action.kind == ActionKind::kRun) layout_.positions.push_back(layout_.actions.size());
          layout_.actions.push_back(action);
        }
      }
    }
  }

  const Ground& ground_;
  const std::vector<Run>& runs_;
  const bool late_frees_;
  const size_t memories_;
  std::vector<Place> places_;           // by value and memory
  std::vector<std::vector<Use>> uses_;  // by value
  std::vector<size_t> next_use_;        // by value
  std::vector<Slot> slots_;
  std::vector<int64_t> levels_;                // by memory, now
  std::vector<std::vector<int64_t>> most_;     // by memory and slot
  std::vector<std::vector<ValueIndex>> held_;  // by memory
  // By memory: what may go, and stays until the bytes are needed or the next run there is over.
  std::vector<std::vector<ValueIndex>> let_go_;
  size_t slot_ = 0;
  Layout layout_;
};

}  // namespace

Layout lay_out(const Ground& ground, const std::vector<Run>& runs, bool late_frees) {
  return Builder(ground, runs, late_frees).build();
}

}  // namespace reprise::internal::devices
