// This is the ledger's walk of one position: what a schedule runs there.
#include <algorithm>
#include <tuple>

#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::schedule {

using common::contains;

namespace {

// The most runs for each op of plain training. A schedule with more of them is useless, or has ops
// that take what each other make.
constexpr size_t kMostRuns = 200;

}  // namespace

// Returns the flags of an id at the position that is being walked.
uint8_t& ScheduleLedger::flags(int32_t id) {
  if (flags_[id] == 0) ids_now_.push_back(id);
  return flags_[id];
}

bool ScheduleLedger::live(ValueIndex value) {
  if (model_.is_input(value)) return true;
  uint8_t& now = flags(value);
  if ((now & (kAsked | kSet)) == 0) {
    now |= kAsked;
    live_now_[value] = live_before(value, position_);
  }
  return live_now_[value];
}

// This is asked of an op that may make something here. The answer matters only if the variants of
// the op have roles. For an op that was put off, the answer also matters at the end, and where
// other ops draw random numbers.
bool ScheduleLedger::has_run(OpIndex op) {
  const int32_t id = ran_id(op);
  uint8_t& now = flags(id);
  if ((now & (kAsked | kSet)) == 0) {
    now |= kAsked;
    live_now_[id] = live_before(id, position_);
  }
  return live_now_[id];
}

void ScheduleLedger::set_live(int32_t id, bool live) {
  uint8_t& now = flags(id);
  now = static_cast<uint8_t>(live ? now | kSet | kLive : (now | kSet) & ~kLive);
  live_now_[id] = live;
}

bool ScheduleLedger::walk_position(int32_t position) {
  for (const int32_t id : ids_now_) flags_[id] = 0;
  ids_now_.clear();
  op_variants_now_.clear();
  made_.clear();
  position_ = position;
  if (position == end()) return make_rest() && make(model_.end_op_variant(), false);
  const OpIndex op = model_.plain()[position].op;
  const int32_t variant = schedule_.variant[position];
  if (!make_early()) return false;
  const bool runs = model_.active(schedule_, op) && variant != kPutOff;
  if (runs && !make(model_.op_variant_of(op, variant), false)) return false;
  finish();
  return true;
}

bool ScheduleLedger::make_early() {
  const auto& early = schedule_.early;
  for (auto next = std::lower_bound(early.begin(), early.end(), Early{position_, 0});
       next != early.end() && next->position == position_; ++next) {
    const ValueIndex value = model_.intervals()[next->interval].value;
    if (live(value)) continue;
    const ScheduleModel::OpVariant nobody{{position_, 0}, 0, 0, 0, 0, 0, 0, false, false};
    const int32_t op_variant = choose_op_variant(value, nobody, position_);
    if (op_variant >= 0 && !make(op_variant, true)) return false;
  }
  return true;
}

// Runs the ops that were put off and that nothing needed.
bool ScheduleLedger::make_rest() {
  for (int32_t p = 0; p < end(); ++p) {
    if (schedule_.variant[p] != kPutOff) continue;
    const OpIndex op = model_.plain()[p].op;
    if (!model_.active(schedule_, op) || has_run(op)) continue;
    if (!make(fastest_first_op_variant(op), false)) return false;
  }
  return true;
}

int32_t ScheduleLedger::fastest_first_op_variant(OpIndex op) const {
  int32_t fastest = -1;
  const auto count = static_cast<int32_t>(model_.graph().ops[op].variants.size());
  for (int32_t op_variant = model_.op_variant_of(op, 0);
       op_variant < model_.op_variant_of(op, count); ++op_variant) {
    if (!model_.op_variant(op_variant).first) continue;
    if (fastest < 0 || model_.op_variant(op_variant).time < model_.op_variant(fastest).time)
      fastest = op_variant;
  }
  return fastest;
}

// If this is the first run of an op that draws random numbers: an op variant of the first op that
// draws before it in plain training and has not run yet. Otherwise, or if there is none: -1.
int32_t ScheduleLedger::before_random(OpIndex op) {
  if (op < 0 || !model_.graph().ops[op].random) return -1;
  if (schedule_.variant[op] == kPutOff ? has_run(op) : position_ != op) return -1;
  for (const OpIndex earlier : model_.random()) {
    if (earlier >= op) break;
    if (schedule_.variant[earlier] != kPutOff || !model_.active(schedule_, earlier)) continue;
    if (!has_run(earlier)) return fastest_first_op_variant(earlier);
  }
  return -1;
}

// Runs an op after everything that it needs. `needed` says that it runs for a value, and not
// because it is its turn.
bool ScheduleLedger::make(int32_t op_variant, bool needed) {
  stack_.assign(1, {op_variant, 0});
  while (!stack_.empty()) {
    Frame& frame = stack_.back();
    const ScheduleModel::OpVariant& reader = model_.op_variant(frame.op_variant);
    const ScheduleModel::List reads = model_.reads(reader);
    const auto count = static_cast<int32_t>(reads.size());
    while (frame.next < count && live(reads[frame.next])) ++frame.next;
    if (frame.next < count) {
      const int32_t next = choose_op_variant(reads[frame.next], reader, reader.run.op);
      if (next < 0) return false;
      stack_.push_back({next, 0});
      continue;
    }
    const int32_t earlier = before_random(reader.run.op);
    if (earlier >= 0) {
      stack_.push_back({earlier, 0});
      continue;
    }
    const int32_t done = frame.op_variant;
    const bool is_needed = needed || stack_.size() > 1;
    const int32_t first = is_needed ? before_taken(reader) : -1;
    if (first >= 0) {
      stack_.push_back({first, 0});
      continue;
    }
    stack_.pop_back();
    if (!emit(done)) return false;
    // This run may have taken a value that a waiting run has found to be live.
    if (reader.taken < reader.end) {
      for (Frame& waiting : stack_) waiting.next = 0;
    }
    if (!is_needed) continue;
    const ScheduleModel::List writes = model_.writes(reader);
    made_.insert(made_.end(), writes.begin(), writes.end());
  }
  return true;
}

// Returns whether the schedule keeps the value from now on, for an op of plain training that reads
// it.
bool ScheduleLedger::wanted_later(ValueIndex value) {
  if (model_.is_input(value)) return false;
  flags(value) |= kAsked;
  if ((flags_[value] & kSet) == 0) live_now_[value] = live_before(value, position_);
  const int32_t interval = model_.interval_before(value, position_);
  if (interval < 0 || schedule_.intervals[interval] == Keeping::kDrop) return false;
  const int32_t until = model_.intervals()[interval].end;
  if (until == end()) return model_.is_result(value);
  const int32_t variant = schedule_.variant[until];
  if (variant == kPutOff) return true;
  const Op& op = model_.graph().ops[model_.plain()[until].op];
  return contains(op.variants[variant].reads, value);
}

// Returns an op variant that must run before this one takes a value: it reads that value, all of
// its reads are live, and it makes something that is not live and is kept from now on. -1: there is
// none.
int32_t ScheduleLedger::before_taken(const ScheduleModel::OpVariant& taker) {
  for (const ValueIndex taken : model_.taken(taker)) {
    for (const int32_t candidate : model_.readers(taken)) {
      const ScheduleModel::OpVariant& op_variant = model_.op_variant(candidate);
      const OpIndex op = op_variant.run.op;
      if (op == taker.run.op) continue;
      const auto is_live = [&](ValueIndex value) { return live(value); };
      const auto is_missed = [&](ValueIndex value) { return wanted_later(value) && !live(value); };
      // This question comes first, as it marks the values as asked for. Then the position is walked
      // again when the op becomes active, or is put off.
      if (std::ranges::none_of(model_.writes(op_variant), is_missed)) continue;
      if (!model_.active(schedule_, op)) continue;
      if (before_random(op) >= 0) continue;  // that op may be the taker
      if (!std::ranges::all_of(model_.reads(op_variant), is_live)) continue;
      if (model_.has_roles(op) ? (has_run(op) ? op_variant.again : op_variant.first)
                               : op_variant.first) {
        return candidate;
      }
    }
  }
  return -1;
}

// Returns the op variant that makes a value for a reader. The one that the schedule asks for comes
// first. Next comes the one that gains most values that the reader needs or that are kept for later
// (those that it makes, less those that it takes), then the fastest, then the smallest. Only ops
// before the op `before` are looked at (-1: all ops), so that what they read in turn never leads
// back here.
int32_t ScheduleLedger::choose_op_variant(ValueIndex value, const ScheduleModel::OpVariant& reader,
                                          OpIndex before) {
  int32_t best = -1;
  std::tuple<int32_t, int64_t, int64_t> best_rank;
  const std::vector<int32_t>& makers = model_.makers(value);
  for (const int32_t candidate : makers) {
    const ScheduleModel::OpVariant& op_variant = model_.op_variant(candidate);
    const OpIndex op = op_variant.run.op;
    if (before >= 0 && op >= before) continue;
    const bool can = model_.has_roles(op) ? (has_run(op) ? op_variant.again : op_variant.first)
                                          : op_variant.first;
    if (!can || !model_.active(schedule_, op)) continue;
    if (makers.size() == 1) return candidate;  // nearly always: no need to rank
    if (schedule_.on_demand[op] == op_variant.run.variant) return candidate;
    const ScheduleModel::List reads = model_.reads(reader);
    const auto useful = [&](ValueIndex other) {
      return std::find(reads.begin(), reads.end(), other) != reads.end() || wanted_later(other);
    };
    int32_t gain = 0;
    int64_t size = op_variant.workspace;
    for (const ValueIndex other : model_.writes(op_variant)) {
      size += model_.bytes(other);
      gain += !live(other) && useful(other);
    }
    for (const ValueIndex other : model_.taken(op_variant)) {
      size -= model_.bytes(other);
      gain -= live(other) && useful(other);
    }
    const std::tuple rank(-gain, op_variant.time, size);
    if (best >= 0 && rank >= best_rank) continue;
    best = candidate;
    best_rank = rank;
  }
  return best;
}

bool ScheduleLedger::emit(int32_t index) {
  if (op_variants_now_.size() > kMostRuns * model_.plain().size()) return false;
  op_variants_now_.push_back(index);
  const ScheduleModel::OpVariant& op_variant = model_.op_variant(index);
  const OpIndex op = op_variant.run.op;
  if (op >= 0 && (model_.has_roles(op) || schedule_.variant[op] == kPutOff)) {
    set_live(ran_id(op), true);
  }
  for (const ValueIndex value : model_.reads(op_variant)) {
    if (model_.is_input(value)) continue;
    uint8_t& now = flags(value);
    if ((now & kTouched) == 0) now |= kTouched | kReadsFirst;
  }
  for (const ValueIndex value : model_.taken(op_variant)) set_live(value, false);
  for (const ValueIndex value : model_.writes(op_variant)) {
    if (model_.is_input(value)) continue;
    flags(value) |= kTouched;
    set_live(value, true);
  }
  return true;
}

// Drops the values that the schedule does not keep after this position.
void ScheduleLedger::finish() {
  for (const ScheduleModel::Touch& touch : model_.touches(position_)) {
    if (schedule_.intervals[touch.interval] != Keeping::kKeep) set_live(touch.value, false);
  }
  for (const ValueIndex value : made_) {
    if (model_.is_input(value)) continue;
    const int32_t interval = model_.interval_before(value, position_ + 1);
    if (interval < 0 || schedule_.intervals[interval] == Keeping::kDrop) set_live(value, false);
  }
}

}  // namespace reprise::internal::schedule
