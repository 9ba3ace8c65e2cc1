#include "plan/graph/schedule/schedule.h"

#include <algorithm>

#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::schedule {

using common::can_be_first;
using common::can_be_replay;
using common::runs_once;

namespace {

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

ScheduleModel::ScheduleModel(const Graph& graph) : graph_(graph), plain_(runs_of_all(graph)) {
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
  add_readers();
  add_gaps();
  find_lean();
}

void ScheduleModel::add_ways() {
  makers_.resize(bytes_.size());
  replay_time_.assign(bytes_.size(), -1);
  first_way_.assign(graph_.ops.size(), -1);
  has_roles_.assign(graph_.ops.size(), 0);
  const auto append = [&](const std::vector<ValueIndex>& list) {
    lists_.insert(lists_.end(), list.begin(), list.end());
    return static_cast<int32_t>(lists_.size());
  };
  for (const Run& run : plain_) {
    const Op& op = graph_.ops[run.op];
    if (op.random) random_.push_back(run.op);
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
      has_roles_[run.op] |= way.first != way.again;
      for (const ValueIndex value : variant.writes) {
        if (way.again && (replay_time_[value] < 0 || way.time < replay_time_[value])) {
          replay_time_[value] = way.time;
        }
        if (any_time) makers_[value].push_back(static_cast<int32_t>(ways_.size()));
      }
      ways_.push_back(way);
    }
  }
  Way last{{-1, 0}, 0, 0, static_cast<int32_t>(lists_.size()), 0, 0, 0, false, false};
  last.writes = last.taken = last.end = append(graph_.results);
  ways_.push_back(last);
}

void ScheduleModel::add_readers() {
  readers_.resize(bytes_.size());
  std::vector<char> is_taken(bytes_.size(), 0);
  for (const Way& way : ways_) {
    if (!way.first && !way.again) continue;
    for (const ValueIndex value : taken(way)) is_taken[value] = 1;
  }
  for (size_t w = 0; w < ways_.size(); ++w) {
    if (!ways_[w].first && !ways_[w].again) continue;
    const List gone = taken(ways_[w]);
    for (const ValueIndex value : reads(ways_[w])) {
      if (!is_taken[value] || std::find(gone.begin(), gone.end(), value) != gone.end()) continue;
      readers_[value].push_back(static_cast<int32_t>(w));
    }
  }
}

void ScheduleModel::add_gaps() {
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

Schedule ScheduleModel::keep_all() const {
  Schedule schedule{std::vector<Keeping>(gaps_.size(), Keeping::kKeep),
                    {},
                    std::vector<int32_t>(plain_.size(), kFastest),
                    std::vector<int32_t>(graph_.choices.size(), 0),
                    {}};
  for (const Run& run : plain_) schedule.variant.push_back(run.variant);
  return schedule;
}

// One choice after the other; what counts are time and peak, and then the memory at all ops that are in no
// choice, which run whatever is chosen.
void ScheduleModel::find_lean() {
  lean_ = keep_all();
  if (graph_.choices.empty()) return;
  ScheduleLedger ledger(*this);
  if (!ledger.assign(lean_)) return;
  const auto memory = [&] {
    const std::vector<int64_t> levels = ledger.levels();
    double sum = 0;
    for (size_t p = 0; p < plain_.size(); ++p) {
      if (choice_[plain_[p].op] < 0) sum += static_cast<double>(levels[p]);
    }
    return sum;
  };
  for (size_t c = 0; c < graph_.choices.size(); ++c) {
    for (size_t r = 1; r < graph_.choices[c].realizations.size(); ++r) {
      const int64_t time = ledger.time(), peak = ledger.peak();
      const double before = memory();
      ledger.set_realization(static_cast<int32_t>(c), static_cast<int32_t>(r));
      if (ledger.settle(time) && ledger.peak() <= peak && memory() < before) {
        ledger.commit();
      } else {
        ledger.undo();
      }
    }
  }
  lean_ = ledger.schedule();
}

int32_t ScheduleModel::gap_before(ValueIndex value, int32_t position) const {
  for (int32_t g = first_gap_[value + 1]; g-- > first_gap_[value];) {
    if (gaps_[g].begin < position) return g;
  }
  return -1;
}

int32_t ScheduleModel::gap_at(ValueIndex value, int32_t position) const {
  const auto first = gaps_.begin() + first_gap_[value],
             last = gaps_.begin() + first_gap_[value + 1];
  const auto gap =
      std::partition_point(first, last, [&](const Gap& g) { return g.end < position; });
  if (gap == last || gap->begin > position) return -1;
  return static_cast<int32_t>(gap - gaps_.begin());
}

bool ScheduleModel::can_wait(int32_t position) const {
  const OpIndex op = plain_[position].op;
  const auto begin = ways_.begin() + first_way_[op];
  const auto end = begin + static_cast<int32_t>(graph_.ops[op].variants.size());
  return std::any_of(begin, end, [](const Way& way) { return way.first; });
}

}  // namespace reprise::internal::schedule
