#include "plan/place/levels/flow.h"

#include <algorithm>
#include <limits>

#include "model/contains.h"
#include "reprise/model/errors.h"

namespace reprise::internal::levels {

using place::Carrier;
using place::Lane;

namespace {

constexpr int32_t kNotAsked = -2;

const Variant& variant_of(const Graph& graph, const Run& run) {
  return graph.ops[static_cast<size_t>(run.op)].variants[static_cast<size_t>(run.variant)];
}

// Times of strangers' problems may be as large as they like.
int64_t plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace

FlowBuilder::FlowBuilder(const Graph& graph, const Carrier& carrier, OpIndex loss)
    : graph_(graph),
      carrier_(carrier),
      loss_(loss),
      is_result_(graph.values.size(), 0),
      is_input_(graph.values.size(), 0),
      resident_(graph.fixed.count()),
      queue_free_(carrier.machine().channels.size(), 0) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    bytes_.push_back(graph.values[v].bytes.count());
    if (graph.values[v].kind != ValueKind::kInput) continue;
    is_input_[v] = 1;
    resident_ += bytes_[v];
  }
  for (const ValueIndex result : graph.results) is_result_[static_cast<size_t>(result)] = 1;
}

FlowResult FlowBuilder::build(const Schedule& schedule, int64_t budget) {
  measure(schedule);
  keep_to_capacity();
  FlowResult result;
  if (!evict(schedule.runs, budget, result)) return result;
  bring_back(budget);
  result.fits = true;
  result.time = time_of(schedule.runs);
  return result;
}

// Sums up the bytes of every run as if all values stayed, and finds the gaps.
void FlowBuilder::measure(const Schedule& schedule) {
  const std::vector<Run>& runs = schedule.runs;
  const size_t n = runs.size();
  during_.assign(n + 1, 0);
  after_.assign(n + 1, 0);
  lives_.assign(graph_.values.size(), {});
  next_use_.assign(graph_.values.size(), kNotAsked);
  carried_.clear();
  bool before_loss = true;
  for (size_t r = 0; r < n; ++r) {
    if (runs[r].op == loss_) {
      before_loss = false;
      for (Carried& carried : carried_) {
        const Life& life = lives_[static_cast<size_t>(carried.value)];
        if (life.begin != carried.written || life.taken) {
          carried.written = -1;  // It was made again, or is gone.
          continue;
        }
        carried.last = life.last;
        next_use_[static_cast<size_t>(carried.value)] = -1;
      }
    }
    touch(runs, static_cast<int32_t>(r), before_loss);
    if (!before_loss) continue;
    // The saved values of a stage go out before its output, which the next stage still reads.
    const std::vector<ValueIndex>& writes = variant_of(graph_, runs[r]).writes;
    for (size_t w = writes.size(); w-- > 0;) {
      const int8_t lane = schedule.lane_of[static_cast<size_t>(writes[w])];
      if (lane == kStays) continue;
      carried_.push_back({.value = writes[w], .lane = lane, .written = static_cast<int32_t>(r)});
    }
  }
  for (size_t v = 0; v < lives_.size(); ++v) {
    if (lives_[v].begin < 0) continue;
    if (is_result_[v]) lives_[v].last = static_cast<int32_t>(n);
    close(static_cast<ValueIndex>(v));
  }
  int64_t during = resident_, after = resident_;
  for (size_t r = 0; r < n; ++r) {
    during_[r] = during += during_[r];
    after_[r] = after += after_[r];
    during_[r] += variant_of(graph_, runs[r]).workspace.count();
  }
  std::erase_if(carried_, [&](Carried& carried) {
    carried.next = next_use_[static_cast<size_t>(carried.value)];
    return carried.written < 0 || carried.next < 0 || carried.next <= carried.last + 1;
  });
}

void FlowBuilder::touch(const std::vector<Run>& runs, int32_t r, bool before_loss) {
  const Variant& variant = variant_of(graph_, runs[static_cast<size_t>(r)]);
  for (const ValueIndex value : variant.reads) {
    const auto v = static_cast<size_t>(value);
    if (is_input_[v]) continue;
    if (lives_[v].begin < 0 || lives_[v].taken) {
      throw InternalError("a flow reads " + graph_.values[v].id + ", which is not there");
    }
    lives_[v].last = r;
    if (!before_loss && next_use_[v] == -1) next_use_[v] = r;
  }
  for (const ValueIndex value : variant.consumes) {
    if (!is_input_[static_cast<size_t>(value)]) lives_[static_cast<size_t>(value)].taken = true;
  }
  for (const ValueIndex value : variant.writes) {
    const auto v = static_cast<size_t>(value);
    if (lives_[v].begin >= 0) close(value);
    if (next_use_[v] == -1) next_use_[v] = kNotAsked;  // It is made again before it is read.
    lives_[v] = {.begin = r, .last = r, .taken = false};
  }
}

// Adds the bytes of a life that is over.
void FlowBuilder::close(ValueIndex value) {
  Life& life = lives_[static_cast<size_t>(value)];
  const int64_t bytes = bytes_[static_cast<size_t>(value)];
  const auto n = static_cast<int32_t>(during_.size()) - 1;
  const int32_t end = std::min(life.taken ? life.last : life.last + 1, n);
  during_[static_cast<size_t>(life.begin)] += bytes;
  during_[static_cast<size_t>(end)] -= bytes;
  after_[static_cast<size_t>(life.begin)] += bytes;
  after_[static_cast<size_t>(std::min(life.last, n))] -= bytes;
  life.begin = -1;
}

// A value whose bytes do not fit into its memory any more stays. Lives there end in the reverse of
// the order in which they begin, or later, so that a sum over those before is enough.
void FlowBuilder::keep_to_capacity() {
  for (size_t l = 0; l < carrier_.lanes().size(); ++l) {
    const int64_t capacity = carrier_.lanes()[l].capacity;
    if (capacity == std::numeric_limits<int64_t>::max()) continue;
    int64_t used = 0;
    std::erase_if(carried_, [&](const Carried& carried) {
      if (static_cast<size_t>(carried.lane) != l) return false;
      const int64_t bytes = bytes_[static_cast<size_t>(carried.value)];
      if (bytes > capacity - used) return true;
      used += bytes;
      return false;
    });
  }
}

// Decides which values leave, and where. Returns false if a run does not fit.
bool FlowBuilder::evict(const std::vector<Run>& runs, int64_t budget, FlowResult& result) {
  const auto n = static_cast<int32_t>(during_.size()) - 1;
  absent_.assign(static_cast<size_t>(n) + 1, 0);
  returns_.assign(static_cast<size_t>(n) + 1, 0);
  by_leave_.clear();
  int64_t absent = 0;
  size_t first = 0;  // all before it have left, or are needed already
  for (int32_t k = 0; k < n; ++k) {
    absent -= returns_[static_cast<size_t>(k)];
    size_t c = first;
    // The values that come back for this run are there before it begins, with those that it consumes.
    const int64_t level = level_at(static_cast<size_t>(k));
    while (level - absent > budget) {
      while (c < carried_.size() && (carried_[c].leaves >= 0 || carried_[c].last >= k ||
                                     carried_[c].next <= k || carried_[c].written >= k)) {
        ++c;
      }
      if (c == carried_.size()) {
        if (level - absent > result.need) {
          result.need = level - absent;
          result.at = runs[static_cast<size_t>(k)].op;
        }
        break;
      }
      carried_[c].leaves = k;
      absent += bytes_[static_cast<size_t>(carried_[c].value)];
      returns_[static_cast<size_t>(carried_[c].next)] +=
          bytes_[static_cast<size_t>(carried_[c].value)];
      by_leave_.push_back(c);
    }
    absent_[static_cast<size_t>(k)] = absent;
    while (first < carried_.size() && (carried_[first].leaves >= 0 || carried_[first].next <= k)) {
      ++first;
    }
  }
  return result.need == 0;
}

// Puts the copies back as early as the bytes allow, in the order of the uses.
void FlowBuilder::bring_back(int64_t budget) {
  const size_t n = during_.size() - 1;
  room_.resize(n);
  for (size_t k = 0; k < n; ++k) {
    room_[k] = budget - level_at(k) + absent_[k];
  }
  by_next_ = by_leave_;
  std::stable_sort(by_next_.begin(), by_next_.end(),
                   [&](size_t a, size_t b) { return carried_[a].next < carried_[b].next; });
  int32_t earliest = 0;
  for (const size_t c : by_next_) {
    Carried& carried = carried_[c];
    const int64_t bytes = bytes_[static_cast<size_t>(carried.value)];
    const int32_t from = std::max(earliest, carried.leaves);
    int32_t back = carried.next;
    while (back > from && room_[static_cast<size_t>(back) - 1] >= bytes) --back;
    for (int32_t k = back; k < carried.next; ++k) room_[static_cast<size_t>(k)] -= bytes;
    carried.back = back;
    if (back == carried.leaves) {
      carried.back = carried.leaves = -1;  // It need not leave at all.
    } else {
      earliest = back;
    }
  }
  const auto stays = [&](size_t c) { return carried_[c].leaves < 0; };
  std::erase_if(by_leave_, stays);
  std::erase_if(by_next_, stays);
}

// Goes through the actions in the order in which actions() writes them.
int64_t FlowBuilder::time_of(const std::vector<Run>& runs) {
  const std::vector<Lane>& lanes = carrier_.lanes();
  std::fill(queue_free_.begin(), queue_free_.end(), 0);
  int64_t now = 0;
  size_t out = 0, leave = 0, back = 0, wait = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto k = static_cast<int32_t>(r);
    for (; out < carried_.size() && carried_[out].written < k; ++out) {
      Carried& carried = carried_[out];
      if (carried.leaves < 0) continue;
      const auto lane = static_cast<size_t>(carried.lane);
      int64_t& free = queue_free_[static_cast<size_t>(lanes[lane].out_queue)];
      carried.out_end = free = plus(std::max(free, now), carrier_.out_time(lane, carried.value));
    }
    for (; leave < by_leave_.size() && carried_[by_leave_[leave]].leaves == k; ++leave) {
      now = std::max(now, carried_[by_leave_[leave]].out_end);
    }
    for (; back < by_next_.size() && carried_[by_next_[back]].back == k; ++back) {
      Carried& carried = carried_[by_next_[back]];
      const auto lane = static_cast<size_t>(carried.lane);
      int64_t& free = queue_free_[static_cast<size_t>(lanes[lane].in_queue)];
      carried.in_end = free = plus(std::max(free, now), carrier_.in_time(lane, carried.value));
    }
    for (; wait < by_next_.size() && carried_[by_next_[wait]].next == k; ++wait) {
      now = std::max(now, carried_[by_next_[wait]].in_end);
    }
    now = plus(now, variant_of(graph_, runs[r]).time.count());
  }
  return now;
}

std::vector<Action> FlowBuilder::actions(const std::vector<Run>& runs) const {
  const std::vector<Action> plain = with_frees(graph_, runs);
  const std::string& device = carrier_.machine().memories[0].name;
  const auto id = [&](size_t c) {
    return graph_.values[static_cast<size_t>(carried_[c].value)].id;
  };
  const auto memory = [&](size_t c) -> const std::string& {
    const Lane& lane = carrier_.lanes()[static_cast<size_t>(carried_[c].lane)];
    return carrier_.machine().memories[static_cast<size_t>(lane.memory)].name;
  };
  std::vector<Action> actions;
  int32_t k = 0;
  size_t out = 0, leave = 0, back = 0, wait = 0;
  for (const Action& action : plain) {
    if (action.kind == ActionKind::kRun) {
      for (; out < carried_.size() && carried_[out].written < k; ++out) {
        if (carried_[out].leaves < 0) continue;
        actions.push_back({ActionKind::kCopy, id(out), "", device, memory(out)});
      }
      for (; leave < by_leave_.size() && carried_[by_leave_[leave]].leaves == k; ++leave) {
        const size_t c = by_leave_[leave];
        actions.push_back({ActionKind::kWait, id(c), "", memory(c)});
        actions.push_back({ActionKind::kFree, id(c), ""});
      }
      for (; back < by_next_.size() && carried_[by_next_[back]].back == k; ++back) {
        const size_t c = by_next_[back];
        actions.push_back({ActionKind::kCopy, id(c), "", memory(c), device});
      }
      for (; wait < by_next_.size() && carried_[by_next_[wait]].next == k; ++wait) {
        const size_t c = by_next_[wait];
        actions.push_back({ActionKind::kWait, id(c), "", device});
        actions.push_back({ActionKind::kFree, id(c), "", memory(c)});
      }
      ++k;
    }
    actions.push_back(action);
  }
  return actions;
}

}  // namespace reprise::internal::levels
