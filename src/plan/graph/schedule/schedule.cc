#include "plan/graph/schedule/schedule.h"

#include <algorithm>

#include "plan/common/graph_facts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::schedule {

using common::can_be_first;
using common::can_be_rerun;
using common::runs_once;

namespace {

// Returns a variant that takes nothing, if there is one.
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

ScheduleModel::ScheduleModel(const Graph& graph, bool in_turn)
    : graph_(graph), in_turn_(in_turn), plain_(runs_of_all(graph)) {
  choice_.assign(graph.ops.size(), -1);
  realization_.assign(graph.ops.size(), -1);
  for (size_t c = 0; c < graph.choices.size(); ++c) {
    const auto& realizations = graph.choices[c].realizations;
    for (size_t r = 0; r < realizations.size(); ++r) {
      for (const OpIndex op : realizations[r].ops) {
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
  add_op_variants();
  add_readers();
  add_intervals();
  find_lean();
}

void ScheduleModel::add_op_variants() {
  makers_.resize(bytes_.size());
  rerun_time_.assign(bytes_.size(), -1);
  first_op_variant_.assign(graph_.ops.size(), -1);
  has_roles_.assign(graph_.ops.size(), 0);
  const auto append = [&](const std::vector<ValueIndex>& list) {
    lists_.insert(lists_.end(), list.begin(), list.end());
    return static_cast<int32_t>(lists_.size());
  };
  for (const Run& run : plain_) {
    const Op& op = graph_.ops[run.op];
    if (op.random) random_.push_back(run.op);
    first_op_variant_[run.op] = static_cast<int32_t>(op_variants_.size());
    for (size_t k = 0; k < op.variants.size(); ++k) {
      const Variant& variant = op.variants[k];
      OpVariant op_variant{{run.op, static_cast<int32_t>(k)},
                           variant.time.count(),
                           variant.workspace.count(),
                           static_cast<int32_t>(lists_.size()),
                           0,
                           0,
                           0,
                           false,
                           false};
      op_variant.writes = append(variant.reads);
      op_variant.taken = append(variant.writes);
      append(variant.consumes);
      for (const auto& pair : variant.reuses) lists_.push_back(pair.second);
      op_variant.end = static_cast<int32_t>(lists_.size());
      const bool any_time = !runs_once(op);
      op_variant.first = any_time && can_be_first(variant);
      op_variant.again = any_time && can_be_rerun(variant);
      has_roles_[run.op] |= op_variant.first != op_variant.again;
      for (const ValueIndex value : variant.writes) {
        if (op_variant.again && (rerun_time_[value] < 0 || op_variant.time < rerun_time_[value])) {
          rerun_time_[value] = op_variant.time;
        }
        if (any_time) makers_[value].push_back(static_cast<int32_t>(op_variants_.size()));
      }
      op_variants_.push_back(op_variant);
    }
  }
  OpVariant last{{-1, 0}, 0, 0, static_cast<int32_t>(lists_.size()), 0, 0, 0, false, false};
  last.writes = last.taken = last.end = append(graph_.results);
  op_variants_.push_back(last);
}

void ScheduleModel::add_readers() {
  readers_.resize(bytes_.size());
  std::vector<char> is_taken(bytes_.size(), 0);
  for (const OpVariant& op_variant : op_variants_) {
    if (!op_variant.first && !op_variant.again) continue;
    for (const ValueIndex value : taken(op_variant)) is_taken[value] = 1;
  }
  for (size_t w = 0; w < op_variants_.size(); ++w) {
    if (!op_variants_[w].first && !op_variants_[w].again) continue;
    const List gone = taken(op_variants_[w]);
    for (const ValueIndex value : reads(op_variants_[w])) {
      if (!is_taken[value] || std::find(gone.begin(), gone.end(), value) != gone.end()) continue;
      readers_[value].push_back(static_cast<int32_t>(w));
    }
  }
}

void ScheduleModel::add_intervals() {
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
    first_interval_.push_back(static_cast<int32_t>(intervals_.size()));
    const auto value = static_cast<ValueIndex>(v);
    if (is_input_[v]) continue;
    for (size_t k = 0; k < positions[v].size(); ++k) {
      const bool is_last = k + 1 == positions[v].size();
      touches_[positions[v][k]].push_back({value, static_cast<int32_t>(intervals_.size())});
      intervals_.push_back(
          {value, positions[v][k], is_last ? end : positions[v][k + 1], rerun_time_[v] < 0});
    }
  }
  first_interval_.push_back(static_cast<int32_t>(intervals_.size()));
}

Schedule ScheduleModel::keep_all() const {
  Schedule schedule{std::vector<Keeping>(intervals_.size(), Keeping::kKeep),
                    {},
                    std::vector<int32_t>(plain_.size(), kFastest),
                    std::vector<int32_t>(graph_.choices.size(), 0),
                    {}};
  for (const Run& run : plain_) schedule.variant.push_back(run.variant);
  return schedule;
}

// Looks at one choice after the other. A realization is taken if neither time nor peak grow, and if
// less is held at all ops outside the choices, added up. Those ops run in every realization.
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
      if (ledger.apply_changes(time) && ledger.peak() <= peak && memory() < before) {
        ledger.commit();
      } else {
        ledger.undo();
      }
    }
  }
  lean_ = ledger.schedule();
}

int32_t ScheduleModel::interval_before(ValueIndex value, int32_t position) const {
  for (int32_t g = first_interval_[value + 1]; g-- > first_interval_[value];) {
    if (intervals_[g].begin < position) return g;
  }
  return -1;
}

int32_t ScheduleModel::interval_at(ValueIndex value, int32_t position) const {
  const auto first = intervals_.begin() + first_interval_[value],
             last = intervals_.begin() + first_interval_[value + 1];
  const auto interval =
      std::partition_point(first, last, [&](const Interval& g) { return g.end < position; });
  if (interval == last || interval->begin > position) return -1;
  return static_cast<int32_t>(interval - intervals_.begin());
}

bool ScheduleModel::can_wait(int32_t position) const {
  if (in_turn_) return false;
  const OpIndex op = plain_[position].op;
  const auto begin = op_variants_.begin() + first_op_variant_[op];
  const auto end = begin + static_cast<int32_t>(graph_.ops[op].variants.size());
  return std::any_of(begin, end, [](const OpVariant& op_variant) { return op_variant.first; });
}

}  // namespace reprise::internal::schedule
