#include "plan/graph/schedule/ledger.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace reprise::internal::schedule {

ScheduleLedger::ScheduleLedger(const ScheduleModel& model)
    : model_(model),
      first_ran_(static_cast<int32_t>(model.graph().values.size())),
      tree_(model.plain().size() + 1, kNothingRuns) {
  const size_t ids = model.graph().values.size() + model.graph().ops.size();
  const size_t count = model.plain().size() + 1;
  positions_.resize(count);
  marks_.resize(ids);
  is_wanted_.resize(count);
  is_wanted_local_.resize(count);
  flags_.resize(ids);
  live_now_.resize(ids);
  last_.assign(model.graph().values.size(), -1);
}

void ScheduleLedger::clear() {
  for (Position& position : positions_) {
    position.op_variants.clear();
    position.ids.clear();
  }
  for (std::vector<Mark>& marks : marks_) marks.clear();
  local_.assign(positions_.size(), kNothingRuns);
  tree_ = PeakTree(positions_.size(), kNothingRuns);
  time_ = run_count_ = 0;
  for (const int32_t p : wanted_) is_wanted_[p] = 0;
  for (const int32_t p : wanted_local_) is_wanted_local_[p] = 0;
  wanted_.clear();
  wanted_local_.clear();
}

bool ScheduleLedger::assign(const Schedule& schedule) {
  clear();
  commit();
  schedule_ = schedule;
  logging_ = false;
  for (int32_t p = 0; p <= end(); ++p) want(p);
  const bool runs = apply_changes();
  logging_ = true;
  commit();
  return runs;
}

void ScheduleLedger::list(std::vector<int32_t>& op_variants,
                          std::vector<int32_t>& positions) const {
  op_variants.clear();
  positions.clear();
  for (size_t p = 0; p < positions_.size(); ++p) {
    for (const int32_t op_variant : positions_[p].op_variants) {
      if (op_variant == model_.end_op_variant()) continue;
      op_variants.push_back(op_variant);
      positions.push_back(static_cast<int32_t>(p));
    }
  }
}

std::vector<Run> ScheduleLedger::runs() const {
  std::vector<Run> runs;
  for (const Position& position : positions_) {
    for (const int32_t op_variant : position.op_variants) {
      if (op_variant != model_.end_op_variant()) runs.push_back(model_.op_variant(op_variant).run);
    }
  }
  return runs;
}

std::vector<int64_t> ScheduleLedger::levels() const { return tree_.numbers(positions_.size()); }

bool ScheduleLedger::passes(ValueIndex value, int32_t position) const {
  const std::vector<Mark>& marks = marks_[value];
  auto at = std::partition_point(marks.begin(), marks.end(),
                                 [&](const Mark& mark) { return mark.position < position; });
  while (at != marks.end() && (at->flags & kTouched) == 0) ++at;
  if (at == marks.end() || at->position == position || (at->flags & kReadsFirst) == 0) return false;
  return std::any_of(marks.begin(), at, [](const Mark& mark) { return mark.flags & kTouched; });
}

bool ScheduleLedger::touches(ValueIndex value, int32_t position) const {
  const std::vector<Mark>& marks = marks_[value];
  const auto at = std::partition_point(marks.begin(), marks.end(),
                                       [&](const Mark& mark) { return mark.position < position; });
  return at != marks.end() && at->position == position && (at->flags & kTouched);
}

// --- Changes of the schedule -----------------------------------------------------------------------

void ScheduleLedger::want(int32_t position) {
  if (is_wanted_[position]) return;
  is_wanted_[position] = 1;
  wanted_.push_back(position);
  std::push_heap(wanted_.begin(), wanted_.end(), std::greater<>());
}

// Wants the positions begin .. end that have a mark of the value.
void ScheduleLedger::want_around(ValueIndex value, int32_t begin, int32_t end) {
  const std::vector<Mark>& marks = marks_[value];
  auto at = std::partition_point(marks.begin(), marks.end(),
                                 [&](const Mark& mark) { return mark.position < begin; });
  for (; at != marks.end() && at->position <= end; ++at) want(at->position);
}

// Wants the positions where ops run that draw random numbers after this op in plain training.
void ScheduleLedger::want_random_after(OpIndex op) {
  if (!model_.graph().ops[op].random) return;
  for (const OpIndex later : model_.random()) {
    if (later <= op) continue;
    want(later);
    if (schedule_.variant[later] != kPutOff) continue;
    for (const Variant& op_variant : model_.graph().ops[later].variants) {
      for (const ValueIndex value : op_variant.writes) want_around(value, 0, end());
    }
  }
}

// Returns the last of the positions for which interval_before() gives this interval.
int32_t ScheduleLedger::last_that_asks(int32_t interval) const {
  const std::vector<Interval>& intervals = model_.intervals();
  const auto next = static_cast<size_t>(interval) + 1;
  const bool last = next == intervals.size() || intervals[next].value != intervals[interval].value;
  return last ? end() : intervals[interval].end;
}

void ScheduleLedger::set_interval(int32_t interval, Keeping keeping) {
  changes_.push_back(
      {Part::kInterval, interval, static_cast<int32_t>(schedule_.intervals[interval])});
  schedule_.intervals[interval] = keeping;
  const Interval& changed = model_.intervals()[interval];
  want(changed.begin);
  want_around(changed.value, changed.begin + 1, last_that_asks(interval));
}

void ScheduleLedger::set_variant(int32_t position, int32_t variant) {
  int32_t& now = schedule_.variant[position];
  changes_.push_back({Part::kVariant, position, now});
  const bool puts_off = (now == kPutOff) != (variant == kPutOff);
  now = variant;
  want(position);
  for (const ScheduleModel::Touch& touch : model_.touches(position)) {
    const int32_t before = model_.interval_before(touch.value, position);
    if (before < 0) continue;
    want_around(touch.value, model_.intervals()[before].begin, last_that_asks(before));
  }
  if (!puts_off) return;
  want(end());
  want_random_after(position);
  for (const Variant& op_variant : model_.graph().ops[model_.plain()[position].op].variants) {
    for (const ValueIndex value : op_variant.writes) want_around(value, 0, end());
  }
}

void ScheduleLedger::set_on_demand(int32_t position, int32_t variant) {
  int32_t& now = schedule_.on_demand[position];
  changes_.push_back({Part::kOnDemand, position, now});
  now = variant;
  for (const Variant& op_variant : model_.graph().ops[model_.plain()[position].op].variants) {
    for (const ValueIndex value : op_variant.writes) want_around(value, 0, end());
  }
}

void ScheduleLedger::set_realization(int32_t choice, int32_t realization) {
  int32_t& now = schedule_.realization[choice];
  changes_.push_back({Part::kRealization, choice, now});
  now = realization;
  want(end());
  for (const Realization& one : model_.graph().choices[choice].realizations) {
    for (const OpIndex op : one.ops) {
      want(op);
      want_random_after(op);
      for (const Variant& op_variant : model_.graph().ops[op].variants) {
        for (const ValueIndex value : op_variant.writes) want_around(value, 0, end());
      }
    }
  }
}

void ScheduleLedger::set_early(std::vector<Early> early) {
  changes_.push_back({Part::kEarly, 0, 0});
  std::vector<Early> difference;
  std::set_symmetric_difference(early.begin(), early.end(), schedule_.early.begin(),
                                schedule_.early.end(), std::back_inserter(difference));
  for (const Early& changed : difference) {
    if (changed.position < end()) want(changed.position);
  }
  early_before_.push_back(std::exchange(schedule_.early, std::move(early)));
}

bool ScheduleLedger::apply_changes(int64_t most) {
  // A schedule may become slower first and faster further on. So the limit halfway is larger.
  const int64_t limit = most > INT64_MAX / 2 ? INT64_MAX : most + most / 4;
  while (!wanted_.empty()) {
    std::pop_heap(wanted_.begin(), wanted_.end(), std::greater<>());
    const int32_t position = wanted_.back();
    wanted_.pop_back();
    is_wanted_[position] = 0;
    if (!walk_position(position)) return false;
    adopt(position);
    if (time_ > limit) return false;
  }
  if (time_ > most) return false;
  for (; raised_ < raises_.size(); ++raised_) {
    const Raise& r = raises_[raised_];
    tree_.add(static_cast<size_t>(r.first), static_cast<size_t>(r.last), r.amount);
  }
  for (const int32_t position : wanted_local_) {
    is_wanted_local_[position] = 0;
    const int64_t peak = local_peak(position);
    if (peak == local_[position]) continue;
    local_before_.push_back({position, local_[position]});
    const auto where = static_cast<size_t>(position);
    tree_.add(where, where, peak - local_[position]);
    local_[position] = peak;
  }
  wanted_local_.clear();
  return true;
}

void ScheduleLedger::commit() {
  changes_.clear();
  early_before_.clear();
  marks_before_.clear();
  positions_changed_.clear();
  raises_.clear();
  raised_ = 0;
  local_before_.clear();
}

void ScheduleLedger::undo() {
  for (; !changes_.empty(); changes_.pop_back()) {
    const Change& last = changes_.back();
    switch (last.part) {
      case Part::kInterval:
        schedule_.intervals[last.at] = static_cast<Keeping>(last.before);
        break;
      case Part::kVariant:
        schedule_.variant[last.at] = last.before;
        break;
      case Part::kOnDemand:
        schedule_.on_demand[last.at] = last.before;
        break;
      case Part::kRealization:
        schedule_.realization[last.at] = last.before;
        break;
      case Part::kEarly:
        schedule_.early = std::move(early_before_.back());
        early_before_.pop_back();
        break;
    }
  }
  for (auto mark = marks_before_.rbegin(); mark != marks_before_.rend(); ++mark) {
    put_mark(mark->id, mark->position, mark->flags);
  }
  while (!positions_changed_.empty()) {
    Position& position = positions_[positions_changed_.back()];
    Position& before = positions_before_[positions_changed_.size() - 1];
    count(position.op_variants, -1);
    count(before.op_variants, 1);
    std::swap(position, before);
    positions_changed_.pop_back();
  }
  for (size_t k = 0; k < raised_; ++k) {
    const Raise& r = raises_[k];
    tree_.add(static_cast<size_t>(r.first), static_cast<size_t>(r.last), -r.amount);
  }
  for (auto local = local_before_.rbegin(); local != local_before_.rend(); ++local) {
    const auto where = static_cast<size_t>(local->position);
    tree_.add(where, where, local->peak - local_[local->position]);
    local_[local->position] = local->peak;
  }
  for (const int32_t p : wanted_) is_wanted_[p] = 0;
  for (const int32_t p : wanted_local_) is_wanted_local_[p] = 0;
  wanted_.clear();
  wanted_local_.clear();
  commit();
}

}  // namespace reprise::internal::schedule
