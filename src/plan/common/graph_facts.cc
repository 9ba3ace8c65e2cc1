#include "plan/common/graph_facts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace reprise::internal::common {
namespace {

void keep_common(std::vector<ValueIndex>& list, const std::vector<ValueIndex>& other) {
  std::erase_if(list, [&](ValueIndex value) { return !contains(other, value); });
}

std::vector<ValueIndex> reads_of_every_first_run(const Op& op) {
  std::optional<std::vector<ValueIndex>> common;
  for (const Variant& variant : op.variants) {
    if (!can_be_first(variant)) continue;
    if (common) {
      keep_common(*common, variant.reads);
    } else {
      common = variant.reads;
    }
  }
  return common.value_or(std::vector<ValueIndex>());
}

Nanos time_of_first_run(const Op& op) {
  std::optional<Nanos> least;
  for (const Variant& variant : op.variants) {
    if (can_be_first(variant)) least = least ? std::min(*least, variant.time) : variant.time;
  }
  return least.value_or(Nanos());
}

// A Part says for an op which choice and which of its realizations the op belongs to.
struct Part {
  int32_t choice = -1;
  int32_t realization = -1;
};

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts(graph.ops.size());
  for (size_t c = 0; c < graph.choices.size(); ++c) {
    const auto& realizations = graph.choices[c].realizations;
    for (size_t r = 0; r < realizations.size(); ++r) {
      for (const OpIndex op : realizations[r].ops) {
        parts[op] = {static_cast<int32_t>(c), static_cast<int32_t>(r)};
      }
    }
  }
  return parts;
}

bool exclude_each_other(const Part& a, const Part& b) {
  return a.choice >= 0 && a.choice == b.choice && a.realization != b.realization;
}

void find_makers_and_readers(GraphFacts& facts, const std::vector<Part>& parts) {
  const Graph& graph = facts.graph;
  facts.makers.resize(graph.values.size());
  facts.readers.resize(graph.values.size());
  const auto add = [](std::vector<OpIndex>& ops, OpIndex op) {
    if (ops.empty() || ops.back() != op) ops.push_back(op);
  };
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const auto op = static_cast<OpIndex>(o);
    for (const Variant& variant : graph.ops[o].variants) {
      for (const ValueIndex value : variant.writes) add(facts.makers[value], op);
      for (const ValueIndex value : variant.reads) add(facts.readers[value], op);
    }
  }
  facts.one_maker.assign(graph.values.size(), 1);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const std::vector<OpIndex>& makers = facts.makers[v];
    for (size_t a = 0; a < makers.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (!exclude_each_other(parts[makers[a]], parts[makers[b]])) facts.one_maker[v] = 0;
      }
    }
  }
  facts.choice_of_makers.assign(graph.values.size(), -1);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const std::vector<OpIndex>& makers = facts.makers[v];
    if (makers.empty() || !facts.one_maker[v]) continue;
    const int32_t choice = parts[makers.front()].choice;
    const bool same = std::all_of(makers.begin(), makers.end(),
                                  [&](OpIndex maker) { return parts[maker].choice == choice; });
    if (same) facts.choice_of_makers[v] = choice;
  }
}

void find_sources(GraphFacts& facts) {
  for (const std::vector<OpIndex>& makers : facts.makers) {
    std::vector<ValueIndex>& sources = facts.made_from.emplace_back();
    for (size_t m = 0; m < makers.size(); ++m) {
      const std::vector<ValueIndex>& reads = facts.first_reads[makers[m]];
      if (m == 0) {
        sources = reads;
      } else {
        keep_common(sources, reads);
      }
    }
  }
}

// The time of the fastest re-run that makes a value.
Nanos time_to_make(const GraphFacts& facts, ValueIndex value) {
  std::optional<Nanos> least;
  for (const OpIndex maker : facts.makers[value]) {
    const Op& op = facts.graph.ops[maker];
    if (runs_once(op)) continue;
    for (const Variant& variant : op.variants) {
      if (!contains(variant.writes, value) || !can_be_rerun(variant)) continue;
      least = least ? std::min(*least, variant.time) : variant.time;
    }
  }
  return least.value_or(Nanos());
}

// Joins the values that one run can make in less time than the re-runs for each of them take.
void find_groups(GraphFacts& facts) {
  const Graph& graph = facts.graph;
  std::vector<ValueIndex>& group = facts.group;
  group.resize(graph.values.size());
  std::iota(group.begin(), group.end(), 0);
  const auto root = [&](ValueIndex value) {
    while (group[value] != value) value = group[value] = group[group[value]];
    return value;
  };
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) {
      __extension__ __int128 sum = 0;
      for (const ValueIndex value : variant.writes) sum += time_to_make(facts, value).count();
      if (sum <= variant.time.count()) continue;
      for (const ValueIndex value : variant.writes) {
        group[root(value)] = root(variant.writes.front());
      }
    }
  }
  for (size_t v = 0; v < group.size(); ++v) group[v] = root(static_cast<ValueIndex>(v));
}

// Lists the values that the ordered ops of a realization read, each value once, and the first and
// the last of these ops.
std::optional<GraphFacts::Need> need_of(const GraphFacts& facts,
                                        const std::vector<OpIndex>& realization) {
  std::optional<GraphFacts::Need> need;
  for (const OpIndex op : realization) {
    if (!runs_once(facts.graph.ops[op])) continue;
    if (!need) need = GraphFacts::Need{op, op, {}};
    need->after = std::min(need->after, op);
    need->last = std::max(need->last, op);
    for (const ValueIndex value : facts.first_reads[op]) {
      if (!contains(need->values, value)) need->values.push_back(value);
    }
  }
  return need;
}

// Returns whether the value is made from `from`, and no op outside the realization touches it.
bool is_made_from(const GraphFacts& facts, const std::vector<OpIndex>& realization,
                  ValueIndex value, ValueIndex from) {
  const auto& makers = facts.makers[value];
  if (makers.empty() || contains(facts.graph.results, value)) return false;
  for (const OpIndex maker : makers) {
    for (const Variant& variant : facts.graph.ops[maker].variants) {
      if (contains(variant.writes, value) && !contains(variant.reads, from)) return false;
    }
  }
  const auto is_inside = [&](OpIndex op) {
    return std::find(realization.begin(), realization.end(), op) != realization.end();
  };
  return std::all_of(makers.begin(), makers.end(), is_inside) &&
         std::all_of(facts.readers[value].begin(), facts.readers[value].end(), is_inside);
}

Nanos time_of(const GraphFacts& facts, const std::vector<OpIndex>& realization) {
  Nanos time;
  for (const OpIndex op : realization) time += facts.first_time[op];
  return time;
}

// Finds a value that the first realization reads and some others do not, if each of these others
// has a value in its place. Returns only the largest such value: with several, their places would
// be counted twice.
std::optional<GraphFacts::Either> either_of(const GraphFacts& facts, const Choice& choice,
                                            const std::vector<GraphFacts::Need>& needs,
                                            OpIndex after, OpIndex last) {
  const std::vector<Value>& values = facts.graph.values;
  const auto place_of = [&](size_t r, ValueIndex value) {
    std::optional<ValueIndex> least;
    for (const ValueIndex other : needs[r].values) {
      if (!is_made_from(facts, choice.realizations[r].ops, other, value)) continue;
      if (!least || values[other].bytes < values[*least].bytes) least = other;
    }
    return least;
  };
  std::optional<GraphFacts::Either> best;
  for (const ValueIndex value : needs[0].values) {
    if (values[value].kind == ValueKind::kInput) continue;
    if (best && values[value].bytes <= values[best->value].bytes) continue;
    std::optional<GraphFacts::Either> either;
    bool holds = true;
    for (size_t r = 1; r < needs.size() && holds; ++r) {
      if (contains(needs[r].values, value)) continue;
      const std::optional<ValueIndex> place = place_of(r, value);
      holds = place.has_value();
      if (!holds) break;
      if (!either) either = GraphFacts::Either{after, last, value, {}};
      either->places.push_back(*place);
    }
    if (holds && either) best = either;
  }
  return best;
}

// A Reach is what a realization reads, and what can be made again from that by ops of its choice.
class Reach {
 public:
  Reach(const GraphFacts& facts, const Choice& choice, const GraphFacts::Need& need)
      : facts_(facts), need_(need) {
    for (const Realization& realization : choice.realizations) {
      ops_.insert(realization.ops.begin(), realization.ops.end());
    }
  }

  bool reads(ValueIndex value) const { return contains(need_.values, value); }
  bool has(ValueIndex value) {
    if (reads(value) || facts_.graph.values[value].kind == ValueKind::kInput) return true;
    const auto [known, fresh] = makes_.try_emplace(value, false);
    if (fresh && can_make(value)) makes_[value] = true;
    return makes_[value];
  }
  // The values that are not read, and that has() was asked for: whether they can be made.
  const std::map<ValueIndex, bool>& makes() const { return makes_; }

 private:
  bool can_make(ValueIndex value) {
    const auto is_inside = [&](OpIndex op) { return ops_.contains(op); };
    const std::vector<OpIndex>& makers = facts_.makers[value];
    if (makers.empty() || !std::ranges::all_of(makers, is_inside) ||
        !std::ranges::all_of(facts_.readers[value], is_inside) ||
        contains(facts_.graph.results, value)) {
      return false;
    }
    return std::ranges::all_of(makers, [&](OpIndex maker) {
      const Op& op = facts_.graph.ops[maker];
      if (runs_once(op)) return false;
      bool again = false;
      for (const Variant& variant : op.variants) {
        if (!contains(variant.writes, value)) continue;
        again = again || can_be_rerun(variant);
        if (!std::ranges::all_of(variant.reads, [&](ValueIndex read) { return has(read); })) {
          return false;
        }
      }
      return again;
    });
  }

  const GraphFacts& facts_;
  const GraphFacts::Need& need_;
  std::set<OpIndex> ops_;  // of the choice
  std::map<ValueIndex, bool> makes_;
};

// The excess of a realization pays for what its reach makes, each value in the same share of its
// time, and at most in full.
void limit_charges(GraphFacts& facts, const Reach& reach, Nanos excess) {
  __extension__ using Wide = __int128;
  Wide sum = 0;
  for (const auto& [value, made] : reach.makes()) {
    if (made) sum += time_to_make(facts, value).count();
  }
  for (const auto& [value, made] : reach.makes()) {
    if (!made) continue;
    Wide most = time_to_make(facts, value).count();
    if (sum > excess.count()) most = most * excess.count() / sum;
    facts.most_charge[value] =
        std::min(facts.most_charge[value], Nanos(static_cast<int64_t>(most)));
  }
}

// A value that a realization neither reads nor can make again costs the excess of the fastest such
// realization.
GraphFacts::Excess excess_of(GraphFacts& facts, const Choice& choice,
                             const std::vector<GraphFacts::Need>& needs,
                             const GraphFacts::Need& common) {
  std::vector<Nanos> left;
  for (const Realization& realization : choice.realizations) {
    left.push_back(time_of(facts, realization.ops));
  }
  const auto fastest = static_cast<size_t>(std::ranges::min_element(left) - left.begin());
  const Nanos least = left[fastest];
  std::vector<Reach> reaches;
  for (size_t r = 0; r < needs.size(); ++r) {
    left[r] -= least;
    Reach& reach = reaches.emplace_back(facts, choice, needs[r]);
    for (const ValueIndex value : needs[fastest].values) reach.has(value);
    limit_charges(facts, reach, left[r]);
  }
  for (size_t r = 0; r < needs.size(); ++r) {
    for (const auto& [value, made] : reaches[r].makes()) {
      if (made) left[r] -= facts.most_charge[value];
    }
  }
  std::map<Nanos, std::vector<ValueIndex>> by_extra;
  GraphFacts::Excess excess{common.after, common.last, {}, {}};
  for (const ValueIndex value : needs[fastest].values) {
    if (contains(common.values, value)) continue;
    std::optional<Nanos> extra;
    for (size_t r = 0; r < needs.size(); ++r) {
      if (!reaches[r].has(value)) extra = extra ? std::min(*extra, left[r]) : left[r];
    }
    if (!extra) {
      excess.always.push_back(value);
    } else if (*extra > Nanos()) {
      by_extra[*extra].push_back(value);
    }
  }
  for (auto& [extra, values] : by_extra) excess.steps.push_back({extra, std::move(values)});
  return excess;
}

void find_needs_of(GraphFacts& facts, const Choice& choice) {
  std::vector<GraphFacts::Need> needs;
  for (const Realization& realization : choice.realizations) {
    std::optional<GraphFacts::Need> need = need_of(facts, realization.ops);
    if (!need) return;
    needs.push_back(std::move(*need));
  }
  GraphFacts::Need common = needs[0];
  for (const GraphFacts::Need& need : needs) {
    keep_common(common.values, need.values);
    common.after = std::min(common.after, need.after);
    common.last = std::max(common.last, need.last);
  }
  if (const auto either = either_of(facts, choice, needs, common.after, common.last)) {
    facts.eithers.push_back(*either);
  }
  facts.excesses.push_back(excess_of(facts, choice, needs, common));
  facts.needs.push_back(std::move(common));
}

void find_needs(GraphFacts& facts) {
  const Graph& graph = facts.graph;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (!facts.certain[o] || !runs_once(graph.ops[o])) continue;
    const auto op = static_cast<OpIndex>(o);
    facts.needs.push_back({op, op, facts.first_reads[o]});
  }
  for (const Choice& choice : graph.choices) find_needs_of(facts, choice);
}

Nanos sum_of_first_runs(const GraphFacts& facts) {
  std::vector<char> in_choice(facts.graph.ops.size(), 0);
  Nanos sum;
  for (const Choice& choice : facts.graph.choices) {
    std::optional<Nanos> least;
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) in_choice[op] = 1;
      const Nanos time = time_of(facts, realization.ops);
      least = least ? std::min(*least, time) : time;
    }
    if (least) sum += *least;
  }
  for (size_t o = 0; o < in_choice.size(); ++o) {
    if (!in_choice[o]) sum += facts.first_time[o];
  }
  return sum;
}

}  // namespace

bool contains(const std::vector<ValueIndex>& list, ValueIndex value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool takes(const Variant& variant, ValueIndex value) {
  return contains(variant.consumes, value) ||
         std::any_of(variant.reuses.begin(), variant.reuses.end(),
                     [&](const auto& pair) { return pair.second == value; });
}

GraphFacts::GraphFacts(const Graph& whole) : graph(whole), certain(whole.ops.size(), 1) {
  for (const Choice& choice : graph.choices) {
    if (choice.realizations.size() == 1) continue;
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) certain[op] = 0;
    }
  }
  for (const Op& op : graph.ops) {
    first_reads.push_back(reads_of_every_first_run(op));
    first_time.push_back(time_of_first_run(op));
  }
  find_makers_and_readers(*this, parts_of(graph));
  find_sources(*this);
  find_groups(*this);
  most_charge.assign(graph.values.size(), kNoLimit);
  find_needs(*this);
  least_time = sum_of_first_runs(*this);
}

}  // namespace reprise::internal::common
