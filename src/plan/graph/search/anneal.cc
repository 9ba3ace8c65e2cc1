#include "plan/graph/search/anneal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "plan/common/graph_facts.h"

namespace reprise::internal::search {

using common::can_be_first;
using common::runs_once;
using common::SearchControl;
using schedule::Keeping;
using schedule::kPutOff;
using schedule::Schedule;
using schedule::ScheduleModel;

namespace {

Keeping less(Keeping keeping) { return static_cast<Keeping>(static_cast<int>(keeping) + 1); }

}  // namespace

ScheduleMoves::ScheduleMoves(const ScheduleModel& model) {
  for (size_t g = 0; g < model.intervals().size(); ++g) {
    if (model.intervals()[g].must_keep) continue;
    intervals.push_back(static_cast<int32_t>(g));
    total_rerun_time += static_cast<double>(model.rerun_time(model.intervals()[g].value));
  }
  for (size_t p = 0; p < model.plain().size(); ++p) {
    const Op& op = model.graph().ops[model.plain()[p].op];
    first_variants.emplace_back();
    for (size_t k = 0; k < op.variants.size(); ++k) {
      if (can_be_first(op.variants[k])) first_variants[p].push_back(static_cast<int32_t>(k));
    }
    const auto position = static_cast<int32_t>(p);
    if (first_variants[p].size() > 1) flexible.push_back(position);
    if (!runs_once(op) && op.variants.size() > 1) repeatable.push_back(position);
    if (model.can_wait(position)) patient.push_back(position);
    if (model.choice(model.plain()[p].op) >= 0) chosen.push_back(model.plain()[p].op);
  }
  find_kinds(model);
}

void ScheduleMoves::find_kinds(const ScheduleModel& model) {
  const Graph& graph = model.graph();
  std::map<std::vector<int64_t>, int32_t> kinds;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    std::vector<int64_t> looks;
    bool makes = false;
    for (const Variant& variant : graph.ops[o].variants) {
      looks.insert(looks.end(), {variant.time.count(), variant.workspace.count(),
                                 static_cast<int64_t>(variant.reads.size()),
                                 static_cast<int64_t>(variant.writes.size())});
      for (const ValueIndex value : variant.reads) looks.push_back(model.bytes(value));
      for (const ValueIndex value : variant.writes) {
        const int32_t first = model.first_interval(value), last = model.first_interval(value + 1);
        looks.insert(looks.end(), {model.bytes(value), last - first});
        makes |= first < last && !model.intervals()[first].must_keep;
      }
    }
    const auto known = kinds.emplace(std::move(looks), static_cast<int32_t>(kinds.size())).first;
    kind.push_back(known->second);
    if (known->second == static_cast<int32_t>(alike.size())) alike.emplace_back();
    alike[known->second].push_back(static_cast<OpIndex>(o));
    if (makes) makers.push_back(static_cast<OpIndex>(o));
  }
}

Annealer::Annealer(const ScheduleModel& model, const ScheduleMoves& moves, int64_t budget,
                   const SearchParams& params)
    : model_(model), moves_(moves), budget_(budget), params_(params), ledger_(model) {
  place_.assign(model.intervals().size(), -1);
}

void Annealer::start(uint64_t seed) {
  random_.seed(seed);
  best_.reset();
  smallest_.reset();
}

FoundSchedule Annealer::found() const {
  return {ledger_.time(), ledger_.peak(), ledger_.run_count(), ledger_.schedule()};
}

bool Annealer::assign(const Schedule& schedule) {
  if (!ledger_.assign(schedule)) return false;
  remember();
  return true;
}

void Annealer::remember() {
  const int64_t time = ledger_.time(), peak = ledger_.peak();
  if (!smallest_ || std::tie(peak, time) < std::tie(smallest_->peak, smallest_->time)) {
    smallest_ = found();
  }
  if (peak > budget_) return;
  if (!best_ || std::tuple(time, ledger_.run_count()) < std::tie(best_->time, best_->run_count)) {
    best_ = found();
  }
}

double Annealer::cost(const SearchGoal& goal) const {
  auto over = static_cast<double>(std::max<int64_t>(0, ledger_.peak() - goal.peak));
  if (over > 0 && goal.elsewhere > 0) over += goal.elsewhere * (ledger_.excess(goal.peak) - over);
  return goal.time_weight * static_cast<double>(ledger_.time()) + goal.memory_weight * over;
}

SearchGoal Annealer::goal_of_repair(double rate) const {
  return {1, params_.price_of_excess * rate, budget_, params_.price_of_others()};
}

// --- Repair ----------------------------------------------------------------------------------------

// Returns the bytes that are freed for each nanosecond of the maker. The values that the maker
// reads are not counted.
double Annealer::worth_of_dropping(ValueIndex value) const {
  return static_cast<double>(model_.bytes(value)) /
         (1 + static_cast<double>(model_.rerun_time(value)));
}

// Returns the intervals of values that are held at the position of the peak, the best few: those
// that free most bytes for the time that they take come first.
std::vector<int32_t> Annealer::droppable() const {
  const int32_t position = ledger_.peak_position();
  std::vector<std::pair<double, int32_t>> ranked;
  for (size_t v = 0; v < model_.graph().values.size(); ++v) {
    const auto value = static_cast<ValueIndex>(v);
    if (model_.is_input(value)) continue;
    const int32_t interval = model_.interval_at(value, position);
    if (interval < 0 || model_.intervals()[interval].must_keep) continue;
    if (ledger_.schedule().intervals[interval] == Keeping::kDrop) continue;
    if (!ledger_.passes(value, position) && !ledger_.touches(value, position)) continue;
    ranked.emplace_back(-worth_of_dropping(value), interval);
  }
  const size_t count = std::min(ranked.size(), params_.trials);
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                    ranked.end());
  std::vector<int32_t> intervals;
  for (size_t k = 0; k < count; ++k) intervals.push_back(ranked[k].second);
  return intervals;
}

// Lists the remedies for the peak: a value is dropped there, or an op runs in another way.
std::vector<Annealer::Remedy> Annealer::remedies() const {
  std::vector<Remedy> found;
  for (const int32_t interval : droppable()) {
    const auto less_kept = static_cast<int32_t>(less(ledger_.schedule().intervals[interval]));
    found.push_back({Remedy::kInterval, interval, less_kept});
  }
  const int32_t position = ledger_.peak_position();
  if (position < static_cast<int32_t>(model_.plain().size())) add_variants_of(position, found);
  add_variants_of_held(found);
  return found;
}

// Returns the bytes of the values that the op makes and that are held throughout the peak.
int64_t Annealer::bytes_at_peak(OpIndex op) const {
  if (!model_.active(ledger_.schedule(), op)) return 0;
  int64_t bytes = 0;
  for (const ValueIndex value : model_.graph().ops[op].variants.front().writes) {
    if (ledger_.passes(value, ledger_.peak_position())) bytes += model_.bytes(value);
  }
  return bytes;
}

// Other realizations of the choices that make the most bytes which are held throughout the peak.
void Annealer::add_variants_of_held(std::vector<Remedy>& found) const {
  std::map<int32_t, std::pair<int64_t, OpIndex>> by_choice;
  for (const OpIndex op : moves_.chosen) {
    const int64_t bytes = bytes_at_peak(op);
    if (bytes == 0) continue;
    std::pair<int64_t, OpIndex>& its = by_choice[model_.choice(op)];
    its = {its.first - bytes, op};
  }
  std::vector<std::pair<int64_t, OpIndex>> held;
  for (const auto& [choice, its] : by_choice) held.push_back(its);
  const size_t count = std::min(held.size(), params_.trials);
  std::partial_sort(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count), held.end());
  for (size_t k = 0; k < count; ++k) add_realizations_of(held[k].second, found);
}

void Annealer::add_variants_of(int32_t position, std::vector<Remedy>& found) const {
  const Schedule& now = ledger_.schedule();
  if (now.variant[position] != kPutOff) {
    for (const int32_t variant : moves_.first_variants[position]) {
      if (variant != now.variant[position]) {
        found.push_back({Remedy::kVariant, position, variant});
      }
    }
  }
  add_realizations_of(model_.plain()[position].op, found);
}

void Annealer::add_realizations_of(OpIndex op, std::vector<Remedy>& found) const {
  const Schedule& now = ledger_.schedule();
  const int32_t choice = model_.choice(op);
  if (choice < 0) return;
  const auto count = static_cast<int32_t>(model_.graph().choices[choice].realizations.size());
  for (int32_t r = 0; r < count; ++r) {
    if (r != now.realization[choice]) found.push_back({Remedy::kRealization, choice, r});
  }
}

void Annealer::apply(const Remedy& remedy) {
  switch (remedy.part) {
    case Remedy::kInterval:
      return ledger_.set_interval(remedy.at, static_cast<Keeping>(remedy.to));
    case Remedy::kVariant:
      return run_otherwise(remedy.at, remedy.to);
    case Remedy::kRealization:
      return ledger_.set_realization(remedy.at, remedy.to);
  }
}

bool Annealer::drop_something(double rate) {
  const SearchGoal goal = goal_of_repair(rate);
  const int64_t peak = ledger_.peak();
  const double before = cost(goal);
  std::optional<std::pair<double, size_t>> choice;
  const std::vector<Remedy> all = remedies();
  for (size_t k = 0; k < all.size(); ++k) {
    apply(all[k]);
    if (ledger_.apply_changes() && ledger_.peak() <= peak) {
      remember();
      const std::pair entry(cost(goal), k);
      // Intervals are dropped until there are none left. Variants can go round in circles, so a
      // change of a variant must lower the cost.
      const bool ends = all[k].part == Remedy::kInterval || entry.first < before;
      if (ends && (!choice || entry < *choice)) choice = entry;
    }
    ledger_.undo();
  }
  if (!choice) return false;
  apply(all[choice->second]);
  ledger_.apply_changes();
  ledger_.commit();
  return true;
}

// Gives each op in turn the variant that is cheapest while the rest of the schedule stays as it is.
void Annealer::tune(double rate, const SearchControl& control) {
  const SearchGoal goal = goal_of_repair(rate);
  const auto count = static_cast<int32_t>(model_.plain().size());
  for (int32_t position = 0; position < count && !control.out_of_time(); ++position) {
    if (!model_.active(ledger_.schedule(), model_.plain()[position].op)) continue;
    std::vector<Remedy> others;
    add_variants_of(position, others);
    double least = cost(goal);
    for (const Remedy& other : others) {
      apply(other);
      if (ledger_.apply_changes() && cost(goal) < least) {
        remember();
        least = cost(goal);
        ledger_.commit();
      } else {
        ledger_.undo();
      }
    }
  }
}

std::optional<FoundSchedule> Annealer::walk(const Schedule& schedule) {
  return assign(schedule) ? std::optional(found()) : std::nullopt;
}

std::optional<FoundSchedule> Annealer::repair(const Schedule& schedule, double rate,
                                              int64_t hopeless, const SearchControl& control) {
  if (!assign(schedule)) return std::nullopt;
  if (!params_.use.repair) return found();
  if (params_.use.tune) tune(rate, control);
  while (ledger_.peak() > budget_ && ledger_.time() < hopeless && !control.out_of_time()) {
    if (!drop_something(rate)) break;
  }
  return found();
}

// --- Annealing -------------------------------------------------------------------------------------

void Annealer::note_interval(int32_t interval) {
  const bool is_dropped = ledger_.schedule().intervals[interval] != Keeping::kKeep;
  int32_t& place = place_[interval];
  if (is_dropped == (place >= 0)) return;
  if (is_dropped) {
    place = static_cast<int32_t>(dropped_.size());
    dropped_.push_back(interval);
    return;
  }
  dropped_[place] = dropped_.back();
  place_[dropped_.back()] = place;
  dropped_.pop_back();
  place = -1;
}

// Notes which intervals of the schedule are dropped.
void Annealer::take_up() {
  dropped_.clear();
  std::fill(place_.begin(), place_.end(), -1);
  for (const int32_t interval : moves_.intervals) note_interval(interval);
}

void Annealer::anneal(const Schedule& from, const Course& course, const SearchControl& control) {
  if (!assign(from)) return;
  take_up();
  current_ = cost(course.goal);
  over_ = ledger_.peak() > course.goal.peak;
  const double cooling = std::pow(params_.cooling, 1 / static_cast<double>(course.steps));
  double temperature = course.hot;
  for (int64_t step_number = 0; step_number < course.steps; ++step_number) {
    if (step_number % 16 == 0 && control.out_of_time()) return;
    if (course.until_it_fits ? best_.has_value() : best_ && best_->time <= course.bound) return;
    step(course, temperature);
    temperature *= cooling;
  }
}

// Makes one proposal. Returns whether the schedule was changed.
bool Annealer::step(const Course& course, double temperature) {
  changing_.clear();
  propose(course);
  if (!ledger_.changed()) return false;
  // The cost that is still accepted is drawn first. Most proposals take too long, and then their
  // memory need not be looked at.
  const double allowed = current_ - temperature * std::log(1 - uniform());
  const double most = allowed / course.goal.time_weight;
  const bool has_limit = params_.use.reject_by_time && most < 9e18 && !large_;
  const int64_t limit = has_limit ? static_cast<int64_t>(most) : INT64_MAX;
  if (!ledger_.apply_changes(limit) || (large_ && !make_fit(course))) {
    ledger_.undo();
    return false;
  }
  remember();
  const double changed = cost(course.goal);
  if (changed > allowed) {
    ledger_.undo();
    return false;
  }
  ledger_.commit();
  for (const int32_t interval : changing_) note_interval(interval);
  current_ = changed;
  over_ = ledger_.peak() > course.goal.peak;
  return true;
}

}  // namespace reprise::internal::search
