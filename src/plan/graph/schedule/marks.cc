// These are the consequences in the ledger of a position that was walked again: the marks of
// values, the other positions that must be walked again, and the levels of memory.
#include <algorithm>
#include <utility>

#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::schedule {

bool ScheduleLedger::live_before(int32_t id, int32_t position) const {
  const std::vector<Mark>& marks = marks_[id];
  for (size_t k = marks.size(); k-- > 0;) {
    if (marks[k].position < position && (marks[k].flags & kSet)) return marks[k].flags & kLive;
  }
  return false;
}

void ScheduleLedger::count(const std::vector<int32_t>& op_variants, int sign) {
  run_count_ += sign * static_cast<int64_t>(op_variants.size());
  for (const int32_t op_variant : op_variants) time_ += sign * model_.op_variant(op_variant).time;
}

void ScheduleLedger::adopt(int32_t position) {
  Position& now = positions_[position];
  for (const int32_t id : now.ids) {
    if (flags_[id] == 0) set_mark(id, position, 0);
  }
  for (const int32_t id : ids_now_) set_mark(id, position, flags_[id]);
  const bool runs_change = now.op_variants != op_variants_now_;
  if (!runs_change && now.ids == ids_now_) return;
  count(now.op_variants, -1);
  count(op_variants_now_, 1);
  if (runs_change) want_local(position);
  if (logging_) {
    if (positions_before_.size() == positions_changed_.size()) positions_before_.emplace_back();
    std::swap(positions_before_[positions_changed_.size()], now);
    positions_changed_.push_back(position);
  }
  now.op_variants.assign(op_variants_now_.begin(), op_variants_now_.end());
  now.ids.assign(ids_now_.begin(), ids_now_.end());
}

void ScheduleLedger::put_mark(int32_t id, int32_t position, uint8_t flags) {
  std::vector<Mark>& marks = marks_[id];
  const auto at = std::partition_point(marks.begin(), marks.end(),
                                       [&](const Mark& mark) { return mark.position < position; });
  if (at == marks.end() || at->position != position) {
    if (flags != 0) marks.insert(at, {position, flags});
  } else if (flags != 0) {
    at->flags = flags;
  } else {
    marks.erase(at);
  }
}

// Updates what the value holds between the position that touched it last and this one, and between
// this one and the next. `at` is the first mark that is not before the position.
void ScheduleLedger::relink(ValueIndex value, int32_t position, size_t at, uint8_t before,
                            uint8_t after) {
  const std::vector<Mark>& marks = marks_[value];
  int32_t last = -1;
  for (size_t k = at; last < 0 && k-- > 0;) {
    if (marks[k].flags & kTouched) last = marks[k].position;
  }
  size_t k = at;
  while (k < marks.size() && (marks[k].position <= position || !(marks[k].flags & kTouched))) ++k;
  const bool next_reads = k < marks.size() && (marks[k].flags & kReadsFirst);
  const auto holds_until = [&](uint8_t flags) {
    return last >= 0 && (flags & kTouched ? (flags & kReadsFirst) != 0 : next_reads);
  };
  const auto holds_on = [&](uint8_t flags) {
    return next_reads && (last >= 0 || (flags & kTouched));
  };
  const int64_t bytes = model_.bytes(value);
  const int64_t until = bytes * (holds_until(after) - holds_until(before));
  const int64_t on = bytes * (holds_on(after) - holds_on(before));
  if (until != 0) raises_.push_back({last + 1, position, until});
  if (on != 0) raises_.push_back({position + 1, marks[k].position, on});
  if (last >= 0) want_local(last);
  want_local(position);
}

void ScheduleLedger::set_mark(int32_t id, int32_t position, uint8_t flags) {
  std::vector<Mark>& marks = marks_[id];
  const auto at = static_cast<size_t>(
      std::partition_point(marks.begin(), marks.end(),
                           [&](const Mark& mark) { return mark.position < position; }) -
      marks.begin());
  const bool there = at < marks.size() && marks[at].position == position;
  const uint8_t before = there ? marks[at].flags : uint8_t{0};
  if (before == flags) return;
  if (logging_) marks_before_.push_back({id, position, before});
  if ((before ^ flags) & (kTouched | kReadsFirst)) relink(id, position, at, before, flags);
  put_mark(id, position, flags);
  if ((before ^ flags) & (kSet | kLive)) spread(id, position, before, flags);
}

// If the value becomes live after this position, or no longer is, this function wants the positions
// that ask for it, up to the next one that sets it.
void ScheduleLedger::spread(int32_t id, int32_t position, uint8_t before, uint8_t after) {
  const bool until_here = live_before(id, position);
  const bool old = before & kSet ? (before & kLive) != 0 : until_here;
  const bool now = after & kSet ? (after & kLive) != 0 : until_here;
  if (old == now) return;
  const std::vector<Mark>& marks = marks_[id];
  auto at = std::partition_point(marks.begin(), marks.end(),
                                 [&](const Mark& mark) { return mark.position <= position; });
  for (; at != marks.end(); ++at) {
    if (at->flags & kAsked) want(at->position);
    if (at->flags & kSet) return;
  }
}

// --- Memory at one position ------------------------------------------------------------------------

void ScheduleLedger::want_local(int32_t position) {
  if (is_wanted_local_[position]) return;
  is_wanted_local_[position] = 1;
  wanted_local_.push_back(position);
}

// Returns whether some later run reads the value as it is after this position.
bool ScheduleLedger::goes_on(ValueIndex value, int32_t position) const {
  const std::vector<Mark>& marks = marks_[value];
  auto at = std::partition_point(marks.begin(), marks.end(),
                                 [&](const Mark& mark) { return mark.position <= position; });
  while (at != marks.end() && (at->flags & kTouched) == 0) ++at;
  return at != marks.end() && (at->flags & kReadsFirst);
}

// Returns the largest level while the runs of a position run, without the values that pass through
// the position or are live when it begins. A value is live from the run that writes it to the last
// run that touches it before it is written again. A taken value is gone while the run that takes it
// runs.
int64_t ScheduleLedger::local_peak(int32_t position) {
  const std::vector<int32_t>& op_variants = positions_[position].op_variants;
  if (op_variants.empty()) return kNothingRuns;
  const auto count = static_cast<int32_t>(op_variants.size());
  level_change_.assign(op_variants.size() + 1, 0);
  const auto end_life = [&](ValueIndex value) {
    level_change_[last_[value] + 1] -= model_.bytes(value);
    last_[value] = -1;
  };
  for (int32_t run = 0; run < count; ++run) {
    const ScheduleModel::OpVariant& op_variant = model_.op_variant(op_variants[run]);
    for (const ValueIndex value : model_.reads(op_variant)) {
      if (!model_.is_input(value)) last_[value] = run;
    }
    for (const ValueIndex value : model_.taken(op_variant)) {
      level_change_[run] -= model_.bytes(value);
      last_[value] = -1;
    }
    for (const ValueIndex value : model_.writes(op_variant)) {
      if (model_.is_input(value)) continue;
      if (last_[value] >= 0) end_life(value);
      last_[value] = run;
      level_change_[run] += model_.bytes(value);
    }
  }
  for (const int32_t id : positions_[position].ids) {
    if (id >= first_ran_ || last_[id] < 0) continue;
    if (goes_on(id, position)) {
      last_[id] = -1;
    } else {
      end_life(id);
    }
  }
  int64_t level = model_.always(), peak = INT64_MIN;
  for (int32_t run = 0; run < count; ++run) {
    level += level_change_[run];
    peak = std::max(peak, level + model_.op_variant(op_variants[run]).workspace);
  }
  return peak;
}

}  // namespace reprise::internal::schedule
