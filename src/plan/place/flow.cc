#include "plan/place/flow.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "plan/place/copies.h"

namespace reprise::internal::place {

using schedule::ScheduleModel;

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Times of strangers' problems may be as large as they like.
int64_t plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kUnlimited : sum;
}

}  // namespace

Flow::Flow(const ScheduleModel& model, const LaneTimes& lane_times)
    : model_(model),
      lane_times_(lane_times),
      homes_(lane_times.homes()),
      lane_room_(lane_times.lanes().size()),
      queue_free_(lane_times.machine().channels.size(), 0) {}

FlowCost Flow::build(const RunList& runs, const std::vector<int8_t>& lanes, int64_t budget,
                     int64_t limit, bool with_misfits) {
  // Where only lanes change, the bytes and the gaps are those of the flow before.
  if (runs != runs_) {
    int64_t time = 0;
    for (const int32_t run : runs.op_variants) time = plus(time, model_.op_variant(run).time);
    if (time > limit) return {.time = time};
    runs_ = runs;
    time_ = time;
    measure();
  }
  if (time_ > limit) return {.time = time_};
  choose_lanes(lanes);
  FlowCost cost = evict(budget);
  if (cost.peak > budget && !with_misfits) return cost;
  bring_back(budget);
  settle();
  cost.time = follow(limit - time_);
  return cost;
}

// Sums up the bytes of every run, and of the moment before it, as if all values stayed. Finds the
// gaps. Index n stands for the end of the step.
void Flow::measure() {
  const size_t n = runs_.op_variants.size();
  const size_t values = model_.graph().values.size();
  times_.assign(n + 1, 0);
  starts_.assign(n + 1, 0);
  level_.assign(n + 2, 0);
  after_.assign(n + 2, 0);
  life_of_.assign(values, -1);
  lives_.clear();
  gaps_.clear();
  next_gap_.clear();
  first_gap_.assign(n + 2, -1);
  cursor_.resize(values);
  for (size_t v = 0; v < values; ++v) {
    const auto value = static_cast<ValueIndex>(v);
    cursor_[v] = model_.first_interval(value);
    if (!homes_.has(value) || !model_.is_input(value)) continue;
    life_of_[v] = static_cast<int32_t>(lives_.size());
    lives_.push_back({.begin = 0, .last = -1, .at_home = true});
  }
  for (size_t r = 0; r < n; ++r) {
    const ScheduleModel::OpVariant& run = model_.op_variant(runs_.op_variants[r]);
    const auto at = static_cast<int32_t>(r);
    times_[r] = run.time;
    starts_[r + 1] = plus(starts_[r], run.time);
    for (const ValueIndex value : model_.reads(run)) touch(value, at, runs_.positions[r]);
    for (const ValueIndex value : model_.reads(run)) {
      if (homes_.has(value) && homes_.takes(run.run, value)) close(value, true);
    }
    for (const ValueIndex value : model_.taken(run)) close(value, true);
    for (const ValueIndex value : model_.writes(run)) {
      if (model_.is_input(value)) continue;
      close(value, false);
      life_of_[value] = static_cast<int32_t>(lives_.size());
      lives_.push_back({.begin = at, .last = at});
    }
  }
  for (size_t v = 0; v < values; ++v) {
    const auto value = static_cast<ValueIndex>(v);
    if (life_of_[v] < 0) continue;
    if (homes_.has(value)) {
      end_homed(value);
    } else if (model_.is_result(value)) {
      touch(value, static_cast<int32_t>(n), static_cast<int32_t>(model_.plain().size()));
    }
    close(value, false);
  }
  int64_t during = model_.always(), before = 0, after = model_.always();
  for (size_t r = 0; r <= n; ++r) {
    during += level_[r];
    const int64_t workspace = r < n ? model_.op_variant(runs_.op_variants[r]).workspace : 0;
    level_[r] = std::max(before, during + workspace);
    before = after += after_[r];
  }
}

void Flow::touch(ValueIndex value, int32_t run, int32_t position) {
  if (homes_.has(value)) return touch_homed(value, run);
  const int32_t index = life_of_[value];
  if (index < 0) return;
  Life& life = lives_[index];
  if (run > life.last + 1 && model_.bytes(value) > 0) add_gap(value, run, position);
  life.last = run;
}

void Flow::touch_homed(ValueIndex value, int32_t run) {
  int32_t& index = life_of_[value];
  if (index < 0) {  // It was taken, and comes once more.
    index = static_cast<int32_t>(lives_.size());
    lives_.push_back({.begin = run, .last = run - 1, .at_home = true});
    add_home_gap(value, run, Why::kComes);
  } else if (lives_[index].last < 0) {
    add_home_gap(value, run, Why::kComes);
  } else if (lives_[index].at_home && run > lives_[index].last + 1) {
    add_home_gap(value, run, Why::kBetween);
  }
  lives_[index].last = run;
}

// Behind its last touch, the value is at home to the end.
void Flow::end_homed(ValueIndex value) {
  const auto n = static_cast<int32_t>(runs_.op_variants.size());
  int32_t& index = life_of_[value];
  Life& life = lives_[index];
  if (life.last < 0) {  // No run touches it.
    index = -1;
    return;
  }
  add_home_gap(value, n + 1, life.at_home ? Why::kGoes : Why::kSent);
  life.last = n;
}

void Flow::add_home_gap(ValueIndex value, int32_t next, Why why) {
  const int32_t life = life_of_[value];
  const int32_t last = lives_[life].last;
  int32_t& head = first_gap_[static_cast<size_t>(last) + 1];
  next_gap_.push_back(head);
  head = static_cast<int32_t>(gaps_.size());
  gaps_.push_back({.why = why, .value = value, .life = life, .last = last, .next = next});
}

// Finds the intervals that a gap lies in: those that end behind its first position or last to its
// second one.
void Flow::add_gap(ValueIndex value, int32_t next, int32_t to) {
  const int32_t life = life_of_[value];
  const int32_t last = lives_[life].last;
  const int32_t from = runs_.positions[last];
  const std::vector<schedule::Interval>& intervals = model_.intervals();
  const int32_t end = model_.first_interval(value + 1);
  int32_t& at = cursor_[value];
  const auto interval = [&] { return intervals[at]; };
  while (at < end && interval().end <= from && interval().end < to) ++at;
  const int32_t first = at;
  while (at + 1 < end && intervals[static_cast<size_t>(at) + 1].begin < to) ++at;
  int32_t& head = first_gap_[static_cast<size_t>(last) + 1];
  next_gap_.push_back(head);
  head = static_cast<int32_t>(gaps_.size());
  gaps_.push_back({.value = value,
                   .life = life,
                   .last = last,
                   .next = next,
                   .first_interval = first,
                   .end_interval = std::min(at + 1, end)});
}

// A gap takes the first lane of the intervals that it lies in.
void Flow::choose_lanes(const std::vector<int8_t>& lanes) {
  in_time_ = homes_.groups() > 0 && lanes[model_.intervals().size() + homes_.groups()] != kStays;
  for (Life& life : lives_) life.is_sent = life.at_home;
  for (Gap& gap : gaps_) {
    gap.leaves = gap.back = gap.sent = -1;
    gap.earliest = 0;
    gap.ends = false;
    gap.out_end = 0;
    gap.lane = kStays;
    if (gap.why != Why::kLane) {
      const bool moves = lanes[model_.intervals().size() + homes_.group(gap.value)] != kStays;
      if (moves) gap.lane = homes_.lane(gap.value);
      continue;
    }
    for (int32_t g = gap.first_interval; g < gap.end_interval && gap.lane == kStays; ++g) {
      gap.lane = lanes[g];
    }
  }
}

// Adds the bytes of a life that is over. A run does not count what it takes.
void Flow::close(ValueIndex value, bool taken) {
  int32_t& index = life_of_[value];
  if (index < 0) return;
  const Life& life = lives_[index];
  const int64_t bytes = this->bytes(value);
  const auto begin = static_cast<size_t>(life.begin), last = static_cast<size_t>(life.last);
  level_[begin] += bytes;
  level_[taken ? last : last + 1] -= bytes;
  after_[begin] += bytes;
  after_[last] -= bytes;
  index = -1;
}

// Decides which gaps leave, and before which run.
FlowCost Flow::evict(int64_t budget) {
  const size_t n = runs_.op_variants.size();
  absent_.assign(n + 1, 0);
  returns_.assign(n + 2, 0);
  for (size_t l = 0; l < lane_room_.size(); ++l) {
    const int64_t capacity = lane_times_.lanes()[l].capacity;
    if (capacity != kUnlimited) lane_room_[l].assign(n + 1, capacity);
  }
  if (homes_.groups() > 0) {
    due_.resize(n + 1);
    for (std::vector<int32_t>& gaps : due_) gaps.clear();
    std::fill(queue_free_.begin(), queue_free_.end(), 0);
  }
  open_.clear();
  by_leave_.clear();
  FlowCost cost;
  int64_t absent = 0;
  const auto leave = [&](int32_t g, size_t k) {
    Gap& gap = gaps_[g];
    gap.leaves = static_cast<int32_t>(k);
    lives_[gap.life].is_sent = true;
    lives_[gap.life].leaver = g;
    absent += bytes(gap.value);
    returns_[gap.next] += bytes(gap.value);
    by_leave_.push_back(g);
  };
  for (size_t k = 0; k <= n; ++k) {
    for (int32_t g = first_gap_[k]; g >= 0; g = next_gap_[g]) {
      const Gap& gap = gaps_[g];
      if (gap.lane == kStays) continue;
      if (gap.why == Why::kComes || gap.why == Why::kGoes) {
        leave(g, k);
        continue;
      }
      if (gap.why == Why::kSent) due_[slot_to_leave(gap, static_cast<int32_t>(k))].push_back(g);
      const Life& life = lives_[gap.life];
      // The value that is read last leaves first; among equals, the one that was written first.
      const int64_t next = gap.next + (life.is_sent ? static_cast<int64_t>(n) + 1 : 0);
      open_.emplace_back(next * (static_cast<int64_t>(n) + 1) - life.begin, -g);
      std::push_heap(open_.begin(), open_.end());
    }
    absent -= returns_[k];
    if (homes_.groups() > 0) {
      for (const int32_t g : due_[k]) {
        if (gaps_[g].leaves < 0) leave(g, k);
      }
    }
    const int64_t level = level_[k];
    while (level - absent > budget && !open_.empty()) {
      std::pop_heap(open_.begin(), open_.end());
      const int32_t g = -open_.back().second;
      open_.pop_back();
      Gap& gap = gaps_[g];
      if (gap.leaves >= 0 || gap.next <= static_cast<int32_t>(k)) continue;
      if (gap.why == Why::kLane) {
        const Life& life = lives_[gap.life];
        if (life.is_sent) gap.lane = gaps_[life.leaver].lane;
        if (!has_room(gap)) continue;
      }
      leave(g, k);
    }
    absent_[k] = absent;
    if (level - absent > cost.peak) {
      cost.peak = level - absent;
      cost.at = static_cast<int32_t>(k);
    }
  }
  return cost;
}

// Returns the run before which a value that was written before a slot leaves at the latest. That is where its
// copy is over, if runs wait for nothing and the channel carries no other values.
int32_t Flow::slot_to_leave(const Gap& gap, int32_t slot) {
  if (!in_time_) return static_cast<int32_t>(runs_.op_variants.size());
  const auto lane = static_cast<size_t>(gap.lane);
  int64_t& free = queue_free_[lane_times_.lanes()[lane].out_queue];
  free = plus(std::max(free, starts_[slot]), lane_times_.out_time(lane, gap.value));
  const auto at = std::lower_bound(starts_.begin() + slot, starts_.end() - 1, free);
  return static_cast<int32_t>(at - starts_.begin());
}

// Returns whether the value fits into the memory of its lane from its first copy to the end of the
// gap. If it does, its bytes are taken there.
bool Flow::has_room(const Gap& gap) {
  const auto l = static_cast<size_t>(gap.lane);
  if (lane_times_.lanes()[l].capacity == kUnlimited) return true;
  const Life& life = lives_[gap.life];
  const int32_t from = life.is_sent ? gaps_[life.leaver].next + 1 : life.begin + 1;
  // Before its last read a value is freed there behind the copies that stand before the same run.
  return lane_room_[l].take(static_cast<size_t>(from), static_cast<size_t>(gap.next) + 1,
                            model_.bytes(gap.value));
}

// Puts the copies back as early as the bytes allow, in the order of the reads.
void Flow::bring_back(int64_t budget) {
  const size_t n = runs_.op_variants.size();
  room_.assign(n + 1, 0);
  for (size_t k = 0; k <= n; ++k) room_.set(k, budget - level_[k] + absent_[k]);
  by_next_.clear();
  std::ranges::copy_if(by_leave_, std::back_inserter(by_next_), [&](int32_t g) {
    return gaps_[g].next <= static_cast<int32_t>(n);
  });
  std::stable_sort(by_next_.begin(), by_next_.end(),
                   [&](int32_t a, int32_t b) { return gaps_[a].next < gaps_[b].next; });
  if (in_time_) find_arrivals();
  int32_t earliest = 0;
  for (const int32_t g : by_next_) {
    Gap& gap = gaps_[g];
    const int32_t first = std::max({earliest, gap.leaves, gap.earliest});
    const auto back = static_cast<int32_t>(room_.take_before(
        static_cast<size_t>(gap.next), static_cast<size_t>(first), bytes(gap.value)));
    if (back == gap.leaves && gap.why != Why::kComes) {
      gap.leaves = -1;  // It need not leave at all.
    } else {
      gap.back = earliest = back;
    }
  }
  const auto stays = [&](int32_t g) { return gaps_[g].leaves < 0; };
  std::erase_if(by_leave_, stays);
  std::erase_if(by_next_, stays);
}

// Finds the runs before which values have to come from home, from the last one on. The channel carries the
// other copies back, too, and each copy takes twice its time.
void Flow::find_arrivals() {
  std::fill(queue_free_.begin(), queue_free_.end(), kUnlimited);
  for (size_t k = by_next_.size(); k-- > 0;) {
    Gap& gap = gaps_[by_next_[k]];
    const auto lane = static_cast<size_t>(gap.lane);
    int64_t& until = queue_free_[lane_times_.lanes()[lane].in_queue];
    const int64_t time = lane_times_.in_time(lane, gap.value);
    const int64_t due = std::min(until, starts_[gap.next]);
    until = time > due / 2 ? 0 : due - 2 * time;
    if (gap.why != Why::kComes) continue;
    const auto behind = std::upper_bound(starts_.begin(), starts_.end(), until);
    gap.earliest = std::min(gap.next, static_cast<int32_t>(behind - starts_.begin()) - 1);
  }
}

// Finds the gaps whose values are sent out, and those behind which the other memory frees them.
void Flow::settle() {
  const auto life_of = [&](int32_t g) -> Life& { return lives_[gaps_[g].life]; };
  for (const int32_t g : by_leave_) life_of(g).leaver = -1;
  by_write_.clear();
  for (const int32_t g : by_leave_) {  // ascending by the run before which they leave
    Life& life = life_of(g);
    if (life.leaver < 0 && !life.at_home) by_write_.push_back(g);
    life.leaver = g;
  }
  for (const int32_t g : by_leave_) {
    Gap& last = gaps_[life_of(g).leaver];
    last.ends = last.why == Why::kLane;
  }
  std::stable_sort(by_write_.begin(), by_write_.end(),
                   [&](int32_t a, int32_t b) { return life_of(a).begin < life_of(b).begin; });
}

// Sends the value out that has to leave first.
void Flow::send_next(int32_t run, int64_t clock) {
  Gap& gap = gaps_[waiting_.front()];
  waiting_.pop();
  const auto lane = static_cast<size_t>(gap.lane);
  int64_t& free = queue_free_[lane_times_.lanes()[lane].out_queue];
  gap.sent = run;
  gap.out_end = free = plus(std::max(free, clock), lane_times_.out_time(lane, gap.value));
}

// Goes through the actions in the order in which actions() writes them, and decides before which
// run each copy out stands. Returns the time of the compute stream; or, as soon as the runs have
// waited for longer than the slack, a time that shows it.
int64_t Flow::follow(int64_t slack) {
  const std::vector<Lane>& lanes = lane_times_.lanes();
  const auto n = static_cast<int32_t>(times_.size()) - 1;
  std::fill(queue_free_.begin(), queue_free_.end(), 0);
  waiting_.clear();
  int64_t clock = 0, runs_alone = 0;
  size_t out = 0, leave = 0, back = 0, wait = 0;
  const auto gap_of = [&](int32_t g) -> Gap& { return gaps_[g]; };
  for (int32_t k = 0; k <= n; ++k) {
    const int64_t time = times_[k];
    for (; out < by_write_.size(); ++out) {
      const Gap& gap = gap_of(by_write_[out]);
      if (lives_[gap.life].begin >= k) break;
      waiting_.push(gap.leaves, by_write_[out]);
    }
    while (!waiting_.empty() && waiting_.rank() <= k) send_next(k, clock);
    int64_t begin = clock;
    for (; leave < by_leave_.size() && gap_of(by_leave_[leave]).leaves == k; ++leave) {
      begin = std::max(begin, gap_of(by_leave_[leave]).out_end);
    }
    // The channel gets the next copy before it is idle, while the run goes on.
    while (!waiting_.empty()) {
      const Lane& lane = lanes[gap_of(waiting_.front()).lane];
      if (queue_free_[lane.out_queue] >= plus(begin, time)) break;
      send_next(k, clock);
    }
    clock = begin;
    for (; back < by_next_.size() && gap_of(by_next_[back]).back == k; ++back) {
      Gap& gap = gap_of(by_next_[back]);
      const auto lane = static_cast<size_t>(gap.lane);
      int64_t& free = queue_free_[lanes[lane].in_queue];
      gap.in_end = free = plus(std::max(free, clock), lane_times_.in_time(lane, gap.value));
    }
    for (; wait < by_next_.size() && gap_of(by_next_[wait]).next == k; ++wait) {
      clock = std::max(clock, gap_of(by_next_[wait]).in_end);
    }
    clock = plus(clock, time);
    runs_alone = plus(runs_alone, time);
    if (clock - runs_alone > slack) return std::numeric_limits<int64_t>::max();
  }
  return clock;
}

std::vector<Action> Flow::actions() const {
  const Graph& graph = model_.graph();
  const Machine& machine = lane_times_.machine();
  const auto gap_of = [&](int32_t g) -> const Gap& { return gaps_[g]; };
  const auto id = [&](const Gap& gap) { return graph.values[gap.value].id; };
  const auto memory = [&](const Gap& gap) {
    const Lane& lane = lane_times_.lanes()[gap.lane];
    return machine.memories[lane.memory].name;
  };
  // By run: the gaps sent before it, in the order of their channels.
  std::vector<int32_t> by_send = by_write_;
  std::sort(by_send.begin(), by_send.end(), [&](int32_t a, int32_t b) {
    const Gap &one = gap_of(a), &other = gap_of(b);
    return std::tuple(one.sent, one.leaves, a) < std::tuple(other.sent, other.leaves, b);
  });
  CopyLayout copies(machine, runs_.op_variants.size() + 1);
  const auto slot = [](int32_t run) { return static_cast<size_t>(run); };
  for (const int32_t g : by_send)
    copies.send(slot(gap_of(g).sent), id(gap_of(g)), memory(gap_of(g)));
  for (const int32_t g : by_leave_) {
    const Gap& gap = gap_of(g);
    if (gap.why == Why::kComes) continue;
    copies.leave(slot(gap.leaves), id(gap), gap.sent >= 0 ? memory(gap) : "");
  }
  for (const int32_t g : by_next_) {
    const Gap& gap = gap_of(g);
    copies.bring(slot(gap.back), id(gap), memory(gap));
    copies.need(slot(gap.next), id(gap), gap.ends ? memory(gap) : "");
  }
  std::vector<Run> runs;
  for (const int32_t run : runs_.op_variants) runs.push_back(model_.op_variant(run).run);
  std::vector<Action> actions;
  size_t k = 0;
  for (Action& action : with_frees(graph, runs)) {
    if (action.kind == ActionKind::kRun) copies.write(k++, actions);
    actions.push_back(std::move(action));
  }
  copies.write(k, actions);
  return actions;
}

}  // namespace reprise::internal::place
