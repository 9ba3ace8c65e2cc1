#include "plan/graph_schedule.h"

#include <algorithm>
#include <tuple>

#include "plan/graph_facts.h"

namespace reprise::internal {
namespace {

// A schedule with more runs an op of plain training is no good, or has ops that take what each
// other make.
constexpr size_t kMostRuns = 200;

// Preferably one that takes nothing.
int32_t some_first_variant(const Op& op) {
  int32_t found = -1;
  for (size_t k = op.variants.size(); k-- > 0;) {
    const Variant& variant = op.variants[k];
    if (!can_be_first(variant)) continue;
    const bool clean = variant.consumes.empty() && variant.reuses.empty();
    if (found < 0 || clean) found = static_cast<int32_t>(k);
  }
  return found;
}

std::vector<Run> runs_of_all(const Graph& graph) {
  std::vector<Run> runs;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    runs.push_back({static_cast<OpIndex>(o), some_first_variant(graph.ops[o])});
  }
  for (const Run& run : plain_runs(graph)) runs[run.op].variant = run.variant;
  return runs;
}

}  // namespace

ScheduleWalk::ScheduleWalk(const Graph& graph) : graph_(graph), plain_(runs_of_all(graph)) {
  choice_.assign(graph.ops.size(), -1);
  realization_.assign(graph.ops.size(), -1);
  for (size_t c = 0; c < graph.choices.size(); ++c) {
    const auto& realizations = graph.choices[c].realizations;
    for (size_t r = 0; r < realizations.size(); ++r) {
      for (const OpIndex op : realizations[r]) {
        choice_[op] = static_cast<int32_t>(c);
        realization_[op] = static_cast<int32_t>(r);
      }
    }
  }
  const size_t values = graph.values.size();
  always_ = graph.fixed.count();
  is_result_.assign(values, 0);
  for (const ValueIndex value : graph.results) is_result_[value] = 1;
  for (const Value& value : graph.values) {
    bytes_.push_back(value.bytes.count());
    is_input_.push_back(value.kind == ValueKind::kInput);
    if (is_input_.back()) always_ += value.bytes.count();
  }
  add_ways();
  add_gaps();
  ran_.resize(graph.ops.size());
  open_.resize(values);
  gap_.resize(values);
  birth_.resize(values);
  last_.resize(values);
}

void ScheduleWalk::add_ways() {
  makers_.resize(bytes_.size());
  replay_time_.assign(bytes_.size(), -1);
  first_way_.assign(graph_.ops.size(), -1);
  const auto append = [&](const std::vector<ValueIndex>& list) {
    lists_.insert(lists_.end(), list.begin(), list.end());
    return static_cast<int32_t>(lists_.size());
  };
  for (const Run& run : plain_) {
    const Op& op = graph_.ops[run.op];
    first_way_[run.op] = static_cast<int32_t>(ways_.size());
    for (size_t k = 0; k < op.variants.size(); ++k) {
      const Variant& variant = op.variants[k];
      Way way{{run.op, static_cast<int32_t>(k)},
              variant.time.count(),
              variant.workspace.count(),
              static_cast<int32_t>(lists_.size()),
              0,
              0,
              0,
              false,
              false};
      way.writes = append(variant.reads);
      way.taken = append(variant.writes);
      append(variant.consumes);
      for (const auto& pair : variant.reuses) lists_.push_back(pair.second);
      way.end = static_cast<int32_t>(lists_.size());
      const bool any_time = !runs_once(op);
      way.first = any_time && can_be_first(variant);
      way.again = any_time && can_be_replay(variant);
      for (const ValueIndex value : variant.writes) {
        if (way.again && (replay_time_[value] < 0 || way.time < replay_time_[value])) {
          replay_time_[value] = way.time;
        }
        if (any_time) makers_[value].push_back(static_cast<int32_t>(ways_.size()));
      }
      ways_.push_back(way);
    }
  }
  results_way_ = {{-1, 0}, 0, 0, static_cast<int32_t>(lists_.size()), 0, 0, 0, false, false};
  results_way_.writes = results_way_.taken = results_way_.end = append(graph_.results);
}

void ScheduleWalk::add_gaps() {
  const auto end = static_cast<int32_t>(plain_.size());
  std::vector<std::vector<int32_t>> positions(bytes_.size());
  const auto touch = [&](ValueIndex value, int32_t position) {
    std::vector<int32_t>& list = positions[value];
    if (list.empty() || list.back() != position) list.push_back(position);
  };
  for (int32_t p = 0; p < end; ++p) {
    for (const Variant& variant : graph_.ops[plain_[p].op].variants) {
      for (const ValueIndex value : variant.reads) touch(value, p);
      for (const ValueIndex value : variant.writes) touch(value, p);
    }
  }
  touches_.resize(plain_.size());
  for (size_t v = 0; v < bytes_.size(); ++v) {
    first_gap_.push_back(static_cast<int32_t>(gaps_.size()));
    const auto value = static_cast<ValueIndex>(v);
    if (is_input_[v]) continue;
    for (size_t k = 0; k < positions[v].size(); ++k) {
      const bool is_last = k + 1 == positions[v].size();
      touches_[positions[v][k]].push_back({value, static_cast<int32_t>(gaps_.size())});
      gaps_.push_back(
          {value, positions[v][k], is_last ? end : positions[v][k + 1], replay_time_[v] < 0});
    }
  }
  first_gap_.push_back(static_cast<int32_t>(gaps_.size()));
}

Schedule ScheduleWalk::keep_all() const {
  Schedule schedule{std::vector<Keeping>(gaps_.size(), Keeping::kKeep),
                    {},
                    std::vector<int32_t>(plain_.size(), kFastest),
                    std::vector<int32_t>(graph_.choices.size(), 0),
                    {}};
  for (const Run& run : plain_) schedule.variant.push_back(run.variant);
  return schedule;
}

int32_t ScheduleWalk::gap_at(ValueIndex value, int32_t position) const {
  const auto first = gaps_.begin() + first_gap_[value],
             last = gaps_.begin() + first_gap_[value + 1];
  const auto gap =
      std::partition_point(first, last, [&](const Gap& g) { return g.end < position; });
  if (gap == last || gap->begin > position) return -1;
  return static_cast<int32_t>(gap - gaps_.begin());
}

void ScheduleWalk::reset() {
  live_ = is_input_;
  std::fill(ran_.begin(), ran_.end(), 0);
  std::fill(open_.begin(), open_.end(), 0);
  std::fill(gap_.begin(), gap_.end(), -1);
  made_.clear();
  runs_.clear();
  positions_.clear();
  change_.assign(1, 0);
  workspace_.clear();
  lives_.clear();
  time_ = 0;
}

bool ScheduleWalk::active(OpIndex op) const {
  return choice_[op] < 0 || schedule_->realization[choice_[op]] == realization_[op];
}

bool ScheduleWalk::walk(const Schedule& schedule, int64_t most) {
  reset();
  schedule_ = &schedule;
  most_ = most;
  const auto end = static_cast<int32_t>(plain_.size());
  size_t early = 0;
  for (position_ = 0; position_ < end; ++position_) {
    const OpIndex op = plain_[position_].op;
    const int32_t variant = schedule.variant[position_];
    if (!make_early(&early)) return false;
    const bool runs = active(op) && variant != kPutOff;
    if (runs && !make(first_way_[op] + variant, false)) return false;
    finish_position(position_);
  }
  if (!make_rest() || !make(-1, false)) return false;
  measure();
  return true;
}

bool ScheduleWalk::make_early(size_t* next) {
  const std::vector<Early>& early = schedule_->early;
  for (; *next < early.size() && early[*next].position == position_; ++*next) {
    const ValueIndex value = gaps_[early[*next].gap].value;
    if (live_[value]) continue;
    const Way reader{{position_, 0}, 0, 0, 0, 0, 0, 0, false, false};
    const int32_t way = choose_way(value, reader);
    if (way >= 0 && !make(way, true)) return false;
  }
  return true;
}

// Ops that were put off and that nothing needed.
bool ScheduleWalk::make_rest() {
  for (size_t p = 0; p < plain_.size(); ++p) {
    const OpIndex op = plain_[p].op;
    if (schedule_->variant[p] != kPutOff || ran_[op] || !active(op)) continue;
    int32_t fastest = -1;
    const auto end = first_way_[op] + static_cast<int32_t>(graph_.ops[op].variants.size());
    for (int32_t way = first_way_[op]; way < end; ++way) {
      if (!ways_[way].first) continue;
      if (fastest < 0 || ways_[way].time < ways_[fastest].time) fastest = way;
    }
    if (!make(fastest, false)) return false;
  }
  return true;
}

bool ScheduleWalk::can_wait(int32_t position) const {
  const OpIndex op = plain_[position].op;
  if (graph_.ops[op].random) return false;  // random numbers are drawn in the order of plain training
  const auto begin = ways_.begin() + first_way_[op];
  const auto end = begin + static_cast<int32_t>(graph_.ops[op].variants.size());
  return std::any_of(begin, end, [](const Way& way) { return way.first; });
}

// Runs an op (-1: the end, which reads the results), after what it needs. `needed`: for a value,
// not because it is its turn in plain training.
bool ScheduleWalk::make(int32_t way, bool needed) {
  stack_.assign(1, {way, 0});
  while (!stack_.empty()) {
    Frame& frame = stack_.back();
    const Way& reader = frame.way < 0 ? results_way_ : ways_[frame.way];
    const int32_t count = reader.writes - reader.reads;
    while (frame.next < count && live_[lists_[reader.reads + frame.next]]) ++frame.next;
    if (frame.next < count) {
      const int32_t next = choose_way(lists_[reader.reads + frame.next], reader);
      if (next < 0) return false;
      stack_.push_back({next, 0});
      continue;
    }
    const bool is_end = frame.way < 0, is_needed = needed || stack_.size() > 1;
    stack_.pop_back();
    if (is_end) continue;
    if (!emit(reader)) return false;
    // What it took may be what another run that waits has found to be there.
    if (reader.taken < reader.end) {
      for (Frame& waiting : stack_) waiting.next = 0;
    }
    if (!is_needed) continue;
    for (int32_t k = reader.writes; k < reader.taken; ++k) made_.push_back(lists_[k]);
  }
  return true;
}

// Whether the schedule keeps the value from now on, for an op of plain training that reads it.
bool ScheduleWalk::wanted_later(ValueIndex value) const {
  const int32_t gap = gap_[value];
  if (gap < 0 || schedule_->gaps[gap] == Keeping::kDrop) return false;
  const auto end = static_cast<size_t>(gaps_[gap].end);
  if (end == plain_.size()) return is_result_[value];
  const int32_t variant = schedule_->variant[end];
  return variant == kPutOff || contains(graph_.ops[plain_[end].op].variants[variant].reads, value);
}

// The way that the schedule asks for; otherwise the one that gains most of what this reader needs
// or is kept for later (makes less takes), then the fastest, then the smallest. Of ops before the
// reader's only, so that what they read in turn never leads back here.
int32_t ScheduleWalk::choose_way(ValueIndex value, const Way& reader) const {
  int32_t best = -1;
  std::tuple<int32_t, int64_t, int64_t> best_rank;
  for (const int32_t candidate : makers_[value]) {
    const Way& way = ways_[candidate];
    if (reader.run.op >= 0 && way.run.op >= reader.run.op) continue;
    if (!(ran_[way.run.op] ? way.again : way.first) || !active(way.run.op)) continue;
    if (makers_[value].size() == 1) return candidate;  // nearly always: no need to rank
    if (schedule_->on_demand[way.run.op] == way.run.variant) return candidate;
    const auto useful = [&](ValueIndex other) {
      const auto reads = lists_.begin() + reader.reads, end = lists_.begin() + reader.writes;
      return std::find(reads, end, other) != end || wanted_later(other);
    };
    int32_t gain = 0;
    int64_t size = way.workspace;
    for (int32_t k = way.writes; k < way.taken; ++k) {
      size += bytes_[lists_[k]];
      gain += !live_[lists_[k]] && useful(lists_[k]);
    }
    for (int32_t k = way.taken; k < way.end; ++k) {
      size -= bytes_[lists_[k]];
      gain -= live_[lists_[k]] && useful(lists_[k]);
    }
    const std::tuple rank(-gain, way.time, size);
    if (best >= 0 && rank >= best_rank) continue;
    best = candidate;
    best_rank = rank;
  }
  return best;
}

// What with_frees() does to memory: a value is there from the run that writes it to the last one
// that touches it before it is written again; taken values are gone while the run that takes them
// runs.
bool ScheduleWalk::emit(const Way& way) {
  time_ += way.time;
  if (time_ > most_ || runs_.size() > kMostRuns * plain_.size()) return false;
  const auto run = static_cast<int32_t>(runs_.size());
  ran_[way.run.op] = 1;
  runs_.push_back(way.run);
  positions_.push_back(position_);
  workspace_.push_back(way.workspace);
  change_.push_back(0);
  for (int32_t k = way.reads; k < way.writes; ++k) last_[lists_[k]] = run;
  for (int32_t k = way.taken; k < way.end; ++k) {
    const ValueIndex value = lists_[k];
    last_[value] = run - 1;
    end_life(value);
    live_[value] = 0;
  }
  for (int32_t k = way.writes; k < way.taken; ++k) {
    const ValueIndex value = lists_[k];
    if (open_[value]) end_life(value);
    open_[value] = live_[value] = 1;
    birth_[value] = last_[value] = run;
    change_[run] += bytes_[value];
  }
  return true;
}

void ScheduleWalk::end_life(ValueIndex value) {
  change_[last_[value] + 1] -= bytes_[value];
  lives_.push_back({value, birth_[value], last_[value]});
  open_[value] = 0;
}

// Drops what the schedule does not keep behind this position.
void ScheduleWalk::finish_position(int32_t position) {
  for (const Touch& touch : touches_[position]) {
    gap_[touch.value] = touch.gap;
    if (schedule_->gaps[touch.gap] != Keeping::kKeep) live_[touch.value] = 0;
  }
  for (const ValueIndex value : made_) {
    const int32_t gap = gap_[value];
    if (gap < 0 || schedule_->gaps[gap] == Keeping::kDrop) live_[value] = 0;
  }
  made_.clear();
}

void ScheduleWalk::measure() {
  for (size_t v = 0; v < open_.size(); ++v) {
    if (!open_[v]) continue;
    if (is_result_[v]) last_[v] = static_cast<int32_t>(runs_.size()) - 1;
    end_life(static_cast<ValueIndex>(v));
  }
  int64_t level = peak_ = always_;
  peak_run_ = 0;
  for (size_t r = 0; r < runs_.size(); ++r) {
    level += change_[r];
    if (level + workspace_[r] <= peak_) continue;
    peak_ = level + workspace_[r];
    peak_run_ = static_cast<int32_t>(r);
  }
}

}  // namespace reprise::internal
