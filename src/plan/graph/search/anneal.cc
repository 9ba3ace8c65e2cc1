#include "plan/graph/search/anneal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "plan/common/graph_facts.h"

namespace reprise::internal::search {

using common::SearchControl;
using common::can_be_first;
using common::runs_once;
using schedule::Keeping;
using schedule::Schedule;
using schedule::ScheduleModel;
using schedule::kPutOff;

namespace {

constexpr size_t kTrials = 6;  // intervals that a repair tries before it drops one

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

Annealer::Annealer(const ScheduleModel& model, const ScheduleMoves& moves, int64_t budget)
    : model_(model), moves_(moves), budget_(budget), ledger_(model) {
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

// --- Repair ----------------------------------------------------------------------------------------

// Bytes for the time of the maker alone.
double Annealer::worth_of_dropping(ValueIndex value) const {
  return static_cast<double>(model_.bytes(value)) /
         (1 + static_cast<double>(model_.rerun_time(value)));
}

// Intervals of values that are in memory throughout the position of the peak, those first that free most
// for the time they take.
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
  const size_t count = std::min(ranked.size(), kTrials);
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                    ranked.end());
  std::vector<int32_t> intervals;
  for (size_t k = 0; k < count; ++k) intervals.push_back(ranked[k].second);
  return intervals;
}

// What can be done about the peak: something dropped there, or the op there runs otherwise.
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

// Of what the op makes that is there throughout the peak.
int64_t Annealer::bytes_at_peak(OpIndex op) const {
  if (!model_.active(ledger_.schedule(), op)) return 0;
  int64_t bytes = 0;
  for (const ValueIndex value : model_.graph().ops[op].variants.front().writes) {
    if (ledger_.passes(value, ledger_.peak_position())) bytes += model_.bytes(value);
  }
  return bytes;
}

// Other ways to make what is there throughout the peak: of the choices that make most of it.
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
  const size_t count = std::min(held.size(), kTrials);
  std::partial_sort(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count), held.end());
  for (size_t k = 0; k < count; ++k) add_realizations_of(held[k].second, found);
}

void Annealer::add_variants_of(int32_t position, std::vector<Remedy>& found) const {
  const Schedule& now = ledger_.schedule();
  if (now.variant[position] != kPutOff) {
    for (const int32_t way : moves_.first_variants[position]) {
      if (way != now.variant[position]) found.push_back({Remedy::kVariant, position, way});
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
  const SearchGoal goal{1, 4 * rate, budget_};
  const int64_t peak = ledger_.peak();
  const double before = cost(goal);
  std::optional<std::pair<double, size_t>> choice;
  const std::vector<Remedy> all = remedies();
  for (size_t k = 0; k < all.size(); ++k) {
    apply(all[k]);
    if (ledger_.apply_changes() && ledger_.peak() <= peak) {
      remember();
      const std::pair entry(cost(goal), k);
      // Intervals are dropped one after the other until there are none; ways can go round in circles.
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

// Every op runs as is cheapest, as long as the rest stays as it is.
void Annealer::tune(double rate, const SearchControl& control) {
  const SearchGoal goal{1, 4 * rate, budget_};
  const auto count = static_cast<int32_t>(model_.plain().size());
  for (int32_t position = 0; position < count && !control.out_of_time(); ++position) {
    if (!model_.active(ledger_.schedule(), model_.plain()[position].op)) continue;
    std::vector<Remedy> ways;
    add_variants_of(position, ways);
    double least = cost(goal);
    for (const Remedy& way : ways) {
      apply(way);
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
  tune(rate, control);
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

// Where the proposals begin.
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
  const double cooling = std::pow(1e-3, 1 / static_cast<double>(course.steps));
  double temperature = course.hot;
  for (int64_t step_number = 0; step_number < course.steps; ++step_number) {
    if (step_number % 16 == 0 && control.out_of_time()) return;
    if (course.until_it_fits ? best_.has_value() : best_ && best_->time <= course.bound) return;
    step(course, temperature);
    temperature *= cooling;
  }
}

// Whether the schedule was changed.
bool Annealer::step(const Course& course, double temperature) {
  changing_.clear();
  propose(course);
  if (!ledger_.changed()) return false;
  // What is accepted is drawn first: most proposals take too long, and their memory need not be
  // looked at.
  const double allowed = current_ - temperature * std::log(1 - uniform());
  const double most = allowed / course.goal.time_weight;
  const int64_t limit = most < 9e18 && !large_ ? static_cast<int64_t>(most) : INT64_MAX;
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
