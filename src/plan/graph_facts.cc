#include "plan/graph_facts.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace reprise::internal {
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

// Choices by op: which of them, and which of its realizations.
struct Part {
  int32_t choice = -1;
  int32_t realization = -1;
};

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts(graph.ops.size());
  for (size_t c = 0; c < graph.choices.size(); ++c) {
    const auto& realizations = graph.choices[c].realizations;
    for (size_t r = 0; r < realizations.size(); ++r) {
      for (const OpIndex op : realizations[r]) {
        parts[op] = {static_cast<int32_t>(c), static_cast<int32_t>(r)};
      }
    }
  }
  return parts;
}

bool exclude_each_other(const Part& a, const Part& b) {
  return a.choice >= 0 && a.choice == b.choice && a.realization != b.realization;
}

void find_makers(GraphFacts& facts, const std::vector<Part>& parts) {
  const Graph& graph = facts.graph;
  facts.makers.resize(graph.values.size());
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const Variant& variant : graph.ops[o].variants) {
      for (const ValueIndex value : variant.writes) {
        std::vector<OpIndex>& makers = facts.makers[value];
        const auto op = static_cast<OpIndex>(o);
        if (makers.empty() || makers.back() != op) makers.push_back(op);
      }
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
}

void find_groups(GraphFacts& facts) {
  std::vector<OpIndex>& group = facts.group;
  group.resize(facts.graph.ops.size());
  std::iota(group.begin(), group.end(), 0);
  const auto root = [&](OpIndex op) {
    while (group[op] != op) op = group[op] = group[group[op]];
    return op;
  };
  for (const std::vector<OpIndex>& makers : facts.makers) {
    for (const OpIndex maker : makers) group[root(maker)] = root(makers.front());
  }
  for (size_t o = 0; o < group.size(); ++o) group[o] = root(static_cast<OpIndex>(o));
}

// What every realization reads, if all ops of the choice run once.
std::optional<GraphFacts::Need> need_of(const GraphFacts& facts, const Choice& choice) {
  std::optional<GraphFacts::Need> need;
  for (const std::vector<OpIndex>& realization : choice.realizations) {
    std::vector<ValueIndex> reads;
    OpIndex first = realization.front();
    for (const OpIndex op : realization) {
      if (!runs_once(facts.graph.ops[op])) return std::nullopt;
      first = std::min(first, op);
      for (const ValueIndex value : facts.first_reads[op]) {
        if (!contains(reads, value)) reads.push_back(value);
      }
    }
    if (need) {
      keep_common(need->values, reads);
      need->after = std::min(need->after, first);
    } else {
      need = GraphFacts::Need{first, reads};
    }
  }
  return need;
}

void find_needs(GraphFacts& facts) {
  const Graph& graph = facts.graph;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (!facts.certain[o] || !runs_once(graph.ops[o])) continue;
    facts.needs.push_back({static_cast<OpIndex>(o), facts.first_reads[o]});
  }
  for (const Choice& choice : graph.choices) {
    if (std::optional<GraphFacts::Need> need = need_of(facts, choice)) facts.needs.push_back(*need);
  }
}

Nanos sum_of_first_runs(const GraphFacts& facts) {
  std::vector<char> in_choice(facts.graph.ops.size(), 0);
  Nanos sum;
  for (const Choice& choice : facts.graph.choices) {
    std::optional<Nanos> least;
    for (const std::vector<OpIndex>& realization : choice.realizations) {
      Nanos time;
      for (const OpIndex op : realization) {
        time += facts.first_time[op];
        in_choice[op] = 1;
      }
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
    for (const std::vector<OpIndex>& realization : choice.realizations) {
      for (const OpIndex op : realization) certain[op] = 0;
    }
  }
  for (const Op& op : graph.ops) {
    first_reads.push_back(reads_of_every_first_run(op));
    first_time.push_back(time_of_first_run(op));
  }
  find_makers(*this, parts_of(graph));
  find_groups(*this);
  find_needs(*this);
  least_time = sum_of_first_runs(*this);
}

}  // namespace reprise::internal
