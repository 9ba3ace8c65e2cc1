#include "plan/graph_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "plan/graph_facts.h"

namespace reprise::internal {
namespace {

constexpr size_t kStarts = 4;  // that are annealed
constexpr size_t kTrials = 6;  // gaps that a repair tries before it drops one

}  // namespace

GraphSearch::GraphSearch(const Graph& graph, int64_t budget, SearchControl& control)
    : graph_(graph), walk_(graph), budget_(budget), control_(control) {
  double replays = 0;
  for (size_t g = 0; g < walk_.gaps().size(); ++g) {
    if (walk_.gaps()[g].fixed) continue;
    movable_.push_back(static_cast<int32_t>(g));
    replays += static_cast<double>(walk_.replay_time(walk_.gaps()[g].value));
  }
  for (size_t p = 0; p < walk_.plain().size(); ++p) {
    const Op& op = graph.ops[walk_.plain()[p].op];
    first_ways_.emplace_back();
    for (size_t k = 0; k < op.variants.size(); ++k) {
      if (can_be_first(op.variants[k])) first_ways_[p].push_back(static_cast<int32_t>(k));
    }
    const auto position = static_cast<int32_t>(p);
    if (first_ways_[p].size() > 1) flexible_.push_back(position);
    if (!runs_once(op) && op.variants.size() > 1) repeatable_.push_back(position);
    if (walk_.can_wait(position)) patient_.push_back(position);
  }
  evaluate(walk_.keep_all());
  rate_ = std::max(1e-9, replays / static_cast<double>(std::max<int64_t>(1, walk_.peak())));
}

bool GraphSearch::evaluate(const Schedule& schedule, int64_t most) {
  if (!walk_.walk(schedule, most)) return false;
  remember(schedule);
  return true;
}

void GraphSearch::remember(const Schedule& schedule) {
  const int64_t time = walk_.time(), peak = walk_.peak();
  const auto found = [&] { return Found{time, peak, schedule, walk_.runs()}; };
  if (smallest_.runs.empty() || std::tie(peak, time) < std::tie(smallest_.peak, smallest_.time)) {
    smallest_ = found();
  }
  if (peak > budget_) return;
  const size_t runs = walk_.runs().size();
  if (!best_ || std::tuple(time, runs) < std::tuple(best_->time, best_->runs.size())) {
    best_ = found();
  }
}

double GraphSearch::cost(const Goal& goal) const {
  const auto over = static_cast<double>(std::max<int64_t>(0, walk_.peak() - goal.peak));
  return goal.time_weight * static_cast<double>(walk_.time()) + goal.memory_weight * over;
}

// The gaps of the values that are live at the peak of the last walk and not touched there.
void GraphSearch::find_droppable() {
  droppable_.clear();
  const int32_t at = walk_.peak_run(), position = walk_.positions()[at];
  for (const Life& life : walk_.lives()) {
    if (life.first >= at || life.last <= at) continue;
    const int32_t gap = walk_.gap_at(life.value, position);
    if (gap >= 0 && !walk_.gaps()[gap].fixed) droppable_.push_back(gap);
  }
}

void GraphSearch::set_gap(Schedule& schedule, int32_t gap, Keeping keeping) {
  undo_.push_back({Part::kGap, gap, static_cast<int32_t>(schedule.gaps[gap])});
  schedule.gaps[gap] = keeping;
}

// Another variant of an op, and of those before it that would not write what it reads.
void GraphSearch::set_variant(Schedule& schedule, int32_t position) {
  const std::vector<int32_t>& ways = first_ways_[position];
  const int32_t chosen = ways[below(ways.size())];
  undo_.push_back({Part::kVariant, position, schedule.variant[position]});
  schedule.variant[position] = chosen;
  const Op& op = graph_.ops[walk_.plain()[position].op];
  const std::vector<ValueIndex>& reads = op.variants[chosen].reads;
  for (const int32_t p : flexible_) {
    if (p >= position) break;
    const Op& maker = graph_.ops[walk_.plain()[p].op];
    const auto writes_wanted = [&](int32_t way) {
      const std::vector<ValueIndex>& writes = maker.variants[way].writes;
      return std::count_if(writes.begin(), writes.end(),
                           [&](ValueIndex value) { return contains(reads, value); });
    };
    if (schedule.variant[p] == kPutOff) continue;
    const auto now = writes_wanted(schedule.variant[p]);
    for (const int32_t way : first_ways_[p]) {
      if (writes_wanted(way) <= now) continue;
      undo_.push_back({Part::kVariant, p, schedule.variant[p]});
      schedule.variant[p] = way;
      break;
    }
  }
}

void GraphSearch::set_on_demand(Schedule& schedule, int32_t position) {
  const size_t count = graph_.ops[walk_.plain()[position].op].variants.size();
  int32_t& variant = schedule.on_demand[position];
  undo_.push_back({Part::kOnDemand, position, variant});
  variant = static_cast<int32_t>(below(count + 1)) - 1;  // one of them, or the fastest
}

void GraphSearch::set_realization(Schedule& schedule) {
  const auto choice = static_cast<int32_t>(below(graph_.choices.size()));
  int32_t& realization = schedule.realization[choice];
  undo_.push_back({Part::kRealization, choice, realization});
  realization = static_cast<int32_t>(below(graph_.choices[choice].realizations.size()));
}

// A value of a gap is made before its time, or no longer.
void GraphSearch::change_early(Schedule& schedule) {
  early_before_ = schedule.early;
  undo_.push_back({Part::kEarly, 0, 0});
  if (!schedule.early.empty() && below(2) == 0) {
    schedule.early.erase(schedule.early.begin() +
                         static_cast<std::ptrdiff_t>(below(schedule.early.size())));
    return;
  }
  const bool dropped = !dropped_.empty() && below(4) != 0;
  const int32_t index =
      dropped ? dropped_[below(dropped_.size())] : movable_[below(movable_.size())];
  const Gap& gap = walk_.gaps()[index];
  const auto length = static_cast<size_t>(gap.end - gap.begin);
  const int32_t position = gap.begin + 1 + static_cast<int32_t>(below(length));
  const Early early{position, index};
  schedule.early.insert(std::lower_bound(schedule.early.begin(), schedule.early.end(), early),
                        early);
  if (schedule.gaps[index] != Keeping::kOnReplay) set_gap(schedule, index, Keeping::kOnReplay);
}

// Or no longer.
void GraphSearch::put_off(Schedule& schedule, int32_t position) {
  int32_t& variant = schedule.variant[position];
  undo_.push_back({Part::kVariant, position, variant});
  variant = variant == kPutOff ? walk_.plain()[position].variant : kPutOff;
}

void GraphSearch::undo(Schedule& schedule) {
  for (; !undo_.empty(); undo_.pop_back()) {
    const Undo& last = undo_.back();
    switch (last.part) {
      case Part::kGap:
        schedule.gaps[last.at] = static_cast<Keeping>(last.before);
        break;
      case Part::kVariant:
        schedule.variant[last.at] = last.before;
        break;
      case Part::kOnDemand:
        schedule.on_demand[last.at] = last.before;
        break;
      case Part::kRealization:
        schedule.realization[last.at] = last.before;
        break;
      case Part::kEarly:
        schedule.early = early_before_;
        break;
    }
  }
}

// Drops at the peak what frees most for the time it takes, as long as that does any good.
void GraphSearch::repair(Schedule& schedule) {
  const Goal goal{1, 4 * rate_, budget_};
  if (!evaluate(schedule)) return;
  while (walk_.peak() > budget_ && !control_.out_of_time()) {
    control_.report(-1);
    find_droppable();
    const auto worth = [&](int32_t gap) {
      const ValueIndex value = walk_.gaps()[gap].value;
      return static_cast<double>(graph_.values[value].bytes.count()) /
             (1 + static_cast<double>(walk_.replay_time(value)));
    };
    std::erase_if(droppable_, [&](int32_t gap) { return schedule.gaps[gap] == Keeping::kDrop; });
    std::stable_sort(droppable_.begin(), droppable_.end(),
                     [&](int32_t a, int32_t b) { return worth(a) > worth(b); });
    if (droppable_.size() > kTrials) droppable_.resize(kTrials);
    const int64_t peak = walk_.peak();
    std::optional<std::pair<double, int32_t>> choice;
    for (const int32_t gap : droppable_) {
      const auto next = static_cast<Keeping>(static_cast<int>(schedule.gaps[gap]) + 1);
      set_gap(schedule, gap, next);
      if (evaluate(schedule) && walk_.peak() <= peak) {
        const std::pair entry(cost(goal), gap);
        if (!choice || entry < *choice) choice = entry;
      }
      undo(schedule);
    }
    if (!choice) return;
    Keeping& keeping = schedule.gaps[choice->second];
    keeping = static_cast<Keeping>(static_cast<int>(keeping) + 1);
    evaluate(schedule);
  }
}

void GraphSearch::consider(Schedule schedule) {
  repair(schedule);
  if (!walk_.walk(schedule)) return;
  starts_.push_back({walk_.time(), walk_.peak(), std::move(schedule), {}});
}

void GraphSearch::consider_for_budget(Schedule schedule) {
  Found smallest = smallest_;
  consider(std::move(schedule));
  smallest_ = std::move(smallest);
}

// Where the next proposals begin.
void GraphSearch::look_around(const Schedule& schedule) {
  find_droppable();
  dropped_.clear();
  for (const int32_t gap : movable_) {
    if (schedule.gaps[gap] != Keeping::kKeep) dropped_.push_back(gap);
  }
}

// One step away: something is dropped at the peak, something is kept again, a value is treated
// otherwise, an op runs otherwise; or two of these at once.
void GraphSearch::propose(Schedule& schedule, bool over) {
  const auto other = [&](int32_t gap) {
    const auto now = static_cast<uint64_t>(schedule.gaps[gap]);
    return static_cast<Keeping>((now + 1 + below(2)) % 3);
  };
  const auto drop_at_peak = [&] {
    if (droppable_.empty()) return;
    const int32_t gap = droppable_[below(droppable_.size())];
    const bool kept = schedule.gaps[gap] == Keeping::kKeep;
    set_gap(schedule, gap, kept && below(4) != 0 ? Keeping::kOnReplay : Keeping::kDrop);
  };
  const auto keep_again = [&] {
    if (dropped_.empty()) return;
    const int32_t gap = dropped_[below(dropped_.size())];
    set_gap(schedule, gap, below(4) != 0 ? Keeping::kKeep : other(gap));
  };
  const double draw = uniform();
  if (!flexible_.empty() && draw < 0.15) {
    set_variant(schedule, flexible_[below(flexible_.size())]);
    if (below(2) == 0) return;
  }
  if (!repeatable_.empty() && uniform() < 0.1) {
    set_on_demand(schedule, repeatable_[below(repeatable_.size())]);
    if (below(2) == 0) return;
  }
  if (!movable_.empty() && uniform() < 0.1) {
    change_early(schedule);
    if (below(2) == 0) return;
  }
  if (!graph_.choices.empty() && uniform() < 0.1) {
    set_realization(schedule);
    if (below(2) == 0) return;
  }
  if (!patient_.empty() && uniform() < 0.1) {
    put_off(schedule, patient_[below(patient_.size())]);
    if (below(2) == 0) return;
  }
  if (over && uniform() < 0.6) {
    drop_at_peak();
  } else if (uniform() < 0.4) {
    keep_again();
  } else if (uniform() < 0.6) {
    keep_again();
    drop_at_peak();
  } else if (!movable_.empty()) {
    const int32_t gap = movable_[below(movable_.size())];
    set_gap(schedule, gap, other(gap));
  }
}

void GraphSearch::anneal(Schedule start, const Goal& goal, double hot, int64_t steps,
                         bool until_it_fits, int64_t bound) {
  if (!evaluate(start)) return;
  Schedule schedule = std::move(start);
  double current = cost(goal);
  bool over = walk_.peak() > goal.peak;
  look_around(schedule);
  const double cooling = std::pow(1e-3, 1 / static_cast<double>(steps));
  double temperature = hot;
  for (int64_t step = 0; step < steps; ++step, temperature *= cooling) {
    if (step % 16 == 0 && control_.out_of_time()) return;
    if (until_it_fits ? best_.has_value() : best_ && best_->time <= bound) return;
    control_.report(-1);
    propose(schedule, over);
    if (undo_.empty()) continue;
    const double most = (current + 20 * temperature) / goal.time_weight;
    const bool runs = evaluate(schedule, most < 9e18 ? static_cast<int64_t>(most) : INT64_MAX);
    const double changed = runs ? cost(goal) : 0;
    if (!runs || (changed > current && uniform() >= std::exp((current - changed) / temperature))) {
      undo(schedule);
      continue;
    }
    undo_.clear();
    current = changed;
    over = walk_.peak() > goal.peak;
    look_around(schedule);
  }
}

Bytes GraphSearch::memory() const {
  size_t bytes = 0;
  const auto add = [&](const Found& found) {
    bytes += found.schedule.gaps.capacity() * sizeof(Keeping) +
             (2 * found.schedule.variant.capacity() + found.schedule.realization.capacity()) * 4 +
             found.schedule.early.capacity() * sizeof(Early) + found.runs.capacity() * sizeof(Run);
  };
  for (const Found& start : starts_) add(start);
  if (best_) add(*best_);
  add(smallest_);
  return Bytes(static_cast<int64_t>(bytes));
}

// Rounds that bring nothing, before a search gives up.
int64_t GraphSearch::patience() const {
  return std::clamp<int64_t>(static_cast<int64_t>(movable_.size()) / 4, 8, 40);
}

int64_t GraphSearch::steps_of_a_round() const {
  const auto gaps = static_cast<int64_t>(std::min<size_t>(movable_.size(), 100));
  return std::max<int64_t>(500, 4 * gaps * gaps);
}

void GraphSearch::shrink(bool hopeless) {
  if (best_) return;
  random_.seed(1);
  const int64_t steps = std::min<int64_t>(steps_of_a_round(), 20000);
  const int64_t most_idle = hopeless ? 3 : patience();
  for (int64_t round = 0, idle = 0; idle < most_idle && !best_ && !control_.out_of_time();
       ++round) {
    const auto peak = static_cast<double>(smallest_.peak);
    const Goal goal{0.01 / std::max(rate_, 1e-9), 1, 0};
    const int64_t before = smallest_.peak;
    anneal(smallest_.schedule, goal, (round == 0 ? 0.05 : 0.02) * peak, steps, true, 0);
    idle = smallest_.peak < before ? 0 : idle + 1;
  }
}

void GraphSearch::improve(int64_t bound) {
  if (!best_) return;
  starts_.push_back(*best_);
  Goal goal{1, 4 * rate_, budget_};
  const auto rank = [&](const Found& found) {
    return static_cast<double>(found.time) +
           goal.memory_weight * static_cast<double>(std::max<int64_t>(0, found.peak - budget_));
  };
  std::stable_sort(starts_.begin(), starts_.end(),
                   [&](const Found& a, const Found& b) { return rank(a) < rank(b); });
  const int64_t steps = steps_of_a_round();
  const double runs = static_cast<double>(walk_.plain().size());
  const double mean = std::max(1.0, static_cast<double>(best_->time) / runs);
  const int64_t most_idle = patience();
  int64_t idle = 0;
  for (size_t round = 0; idle < most_idle; ++round) {
    if (control_.out_of_time() || best_->time <= bound) return;
    // The best starts, then what is best so far, now and then another start.
    const bool first = round < std::min(kStarts, starts_.size());
    const bool fresh = first || idle % 4 == 3;
    const size_t start = first ? round : below(starts_.size());
    const int64_t before = best_->time;
    const double hot = mean * (fresh ? 2 : round % 2 == 0 ? 0.3 : 1);
    anneal(fresh ? starts_[start].schedule : best_->schedule, goal, hot, steps, false, bound);
    idle = best_->time < before ? 0 : idle + 1;
    if (idle > 0) goal.memory_weight = rate_ * (idle % 2 == 0 ? 2 : 8);
  }
}

}  // namespace reprise::internal
