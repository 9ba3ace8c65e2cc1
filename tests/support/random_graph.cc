#include "support/random_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "reprise/model/errors.h"

namespace reprise::testing {
namespace {

int64_t between(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % (static_cast<uint64_t>(high - low) + 1));
}
bool coin(std::mt19937_64& random) { return (random() >> 32 & 1) != 0; }

class Maker {
 public:
  Maker(std::mt19937_64& random, const RandomGraphOptions& options)
      : random_(random), options_(options) {}

  Graph make() {
    graph_.name = "random";
    graph_.fixed = Bytes(number(options_.max_size));
    const int64_t inputs = between(random_, 1, 2);
    for (int64_t i = 0; i < inputs; ++i) available_.push_back(value(ValueKind::kInput));
    const int64_t forward = between(random_, options_.min_forward, options_.max_forward);
    for (int64_t i = 0; i < forward; ++i) add(Phase::kForward, ValueKind::kActivation);
    add(Phase::kLoss, ValueKind::kGradient);
    for (int64_t i = 0; i < forward; ++i) add(Phase::kBackward, ValueKind::kGradient);
    for (const Late& late : late_) add_late(late);
    add_results();
    return std::move(graph_);
  }

 private:
  int64_t number(int64_t most) { return between(random_, 0, most); }

  ValueIndex value(ValueKind kind) {
    const auto index = static_cast<ValueIndex>(graph_.values.size());
    graph_.values.push_back({fmt::format("v{}", index), Bytes(number(options_.max_size)), kind});
    return index;
  }

  std::vector<ValueIndex> some_available() {
    std::vector<ValueIndex> reads;
    const int64_t count = between(random_, 1, 3);
    for (int64_t k = 0; k < count; ++k) {
      const ValueIndex pick =
          available_[static_cast<size_t>(number(static_cast<int64_t>(available_.size()) - 1))];
      if (std::find(reads.begin(), reads.end(), pick) == reads.end()) reads.push_back(pick);
    }
    return reads;
  }

  Variant variant(std::vector<ValueIndex> reads, std::vector<ValueIndex> writes) {
    Variant result;
    result.time = Nanos(number(options_.max_time));
    result.workspace = Bytes(number(options_.max_size));
    result.reads = std::move(reads);
    result.writes = std::move(writes);
    return result;
  }

  // Makes the variant take what it can of what it reads. A value that can be reused is reused;
  // others are consumed.
  Variant taking(Variant variant) {
    std::vector<char> used(variant.writes.size(), 0);
    for (const ValueIndex read : variant.reads) {
      if (graph_.values[read].kind == ValueKind::kInput || coin(random_)) continue;
      size_t w = 0;
      while (w < variant.writes.size() &&
             (used[w] || graph_.values[variant.writes[w]].bytes != graph_.values[read].bytes)) {
        ++w;
      }
      if (w < variant.writes.size()) {
        used[w] = 1;
        variant.reuses.emplace_back(variant.writes[w], read);
      } else {
        variant.consumes.push_back(read);
      }
    }
    return variant;
  }

  // At least one variant takes nothing and may run at any time, so that plain training exists.
  std::vector<Variant> variants(const std::vector<ValueIndex>& reads,
                                const std::vector<ValueIndex>& writes) {
    std::vector<Variant> result;
    if (options_.takes && coin(random_)) result.push_back(taking(variant(reads, writes)));
    if (options_.roles && coin(random_)) {
      result.push_back(variant(reads, writes));
      result.back().role = coin(random_) ? Role::kFirst : Role::kReplay;
    }
    result.push_back(variant(reads, writes));
    if (options_.variants && coin(random_)) result.push_back(variant(some_available(), writes));
    for (size_t k = 0; k < result.size(); ++k) result[k].name = fmt::format("k{}", k);
    if (result.size() > 2) result.back().alternative = "other-reads";
    return result;
  }

  OpIndex op(Phase phase, const std::vector<ValueIndex>& reads,
             const std::vector<ValueIndex>& writes) {
    const auto index = static_cast<OpIndex>(graph_.ops.size());
    Op op;
    op.id = fmt::format("op{}", index);
    // An odd module owns some ops, and no module the others.
    if (index % 3 == 1) op.owner = fmt::format("layer{}.\"{}\"", index % 2, index);
    op.phase = phase;
    op.once = options_.once && number(5) == 0;
    op.random = coin(random_);
    op.variants = variants(reads, writes);
    graph_.ops.push_back(std::move(op));
    return index;
  }

  void add(Phase phase, ValueKind kind) {
    std::vector<ValueIndex> reads = some_available();
    std::optional<Mask> mask;
    if (phase == Phase::kBackward && !masks_.empty()) {
      mask = masks_.back();
      masks_.pop_back();
      if (std::find(reads.begin(), reads.end(), mask->of) == reads.end()) reads.push_back(mask->of);
    }
    std::vector<ValueIndex> writes = {value(kind)};
    if (coin(random_)) writes.push_back(value(ValueKind::kSaved));
    const OpIndex whole = op(phase, reads, writes);
    if (options_.masks && phase == Phase::kForward && coin(random_)) {
      const ValueIndex made = value(ValueKind::kSaved);
      masks_.push_back({writes[0], made, op(phase, {writes[0]}, {made})});
    }
    if (mask) {
      std::replace(reads.begin(), reads.end(), mask->of, mask->made);
      const OpIndex of_mask = op(phase, reads, writes);
      graph_.choices.push_back({fmt::format("choice{}", graph_.choices.size()),
                                {{"", {whole}}, {"mask", {mask->ask, of_mask}}}});
    } else if (options_.choices && phase != Phase::kLoss && number(3) == 0) {
      const ValueIndex between_parts = value(ValueKind::kActivation);
      const OpIndex first = op(phase, reads, {between_parts});
      const OpIndex second = op(phase, {between_parts}, writes);
      graph_.choices.push_back(
          {fmt::format("choice{}", graph_.choices.size()), {{"", {whole}}, {"", {first, second}}}});
    }
    if (options_.late && phase == Phase::kBackward && coin(random_)) {
      late_.push_back({whole, reads, writes});
    }
    for (const ValueIndex written : writes) available_.push_back(written);
  }

  // A mask is a value that a forward op makes of another value, for one backward op.
  struct Mask {
    ValueIndex of, made;
    OpIndex ask;
  };

  struct Late {
    OpIndex whole;
    std::vector<ValueIndex> reads, writes;
  };

  // Adds an op that does the same work behind all other ops, as a further realization of its
  // choice.
  void add_late(const Late& late) {
    const OpIndex again = op(Phase::kBackward, late.reads, late.writes);
    std::vector<Choice>& choices = graph_.choices;
    const auto its = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
      return choice.realizations[0].ops.front() == late.whole;
    });
    if (its != choices.end()) {
      its->realizations.push_back({"late", {again}});
    } else {
      choices.push_back(
          {fmt::format("choice{}", choices.size()), {{"", {late.whole}}, {"late", {again}}}});
    }
  }

  void add_results() {
    std::vector<char> taken(graph_.values.size(), 0);
    for (const Op& op : graph_.ops) {
      for (const Variant& variant : op.variants) {
        for (const ValueIndex value : variant.consumes) taken[value] = 1;
      }
    }
    for (const ValueIndex value : available_) {
      if (taken[value] || graph_.values[value].kind == ValueKind::kInput) continue;
      if (number(2) == 0) graph_.results.push_back(value);
    }
  }

  std::mt19937_64& random_;
  const RandomGraphOptions options_;
  Graph graph_;
  std::vector<ValueIndex> available_;
  std::vector<Late> late_;
  std::vector<Mask> masks_;
};

bool can_run(const Graph& graph, const std::vector<Run>& runs) {
  std::vector<char> ran(graph.ops.size(), 0);
  OpIndex last_random = -1;
  for (const Run& run : runs) {
    const Op& op = graph.ops[run.op];
    if (op.variants[run.variant].role == (ran[run.op] ? Role::kFirst : Role::kReplay)) return false;
    // First runs draw random numbers in the order of the graph.
    if (op.random && !ran[run.op]) {
      if (run.op < last_random) return false;
      last_random = run.op;
    }
    ran[run.op] = 1;
  }
  std::vector<char> live(graph.values.size(), 0);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    live[v] = graph.values[v].kind == ValueKind::kInput;
  }
  for (const Run& run : runs) {
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) {
      if (!live[value]) return false;
    }
    for (const ValueIndex value : variant.consumes) live[value] = 0;
    for (const auto& pair : variant.reuses) live[pair.second] = 0;
    for (const ValueIndex value : variant.writes) live[value] = 1;
  }
  return std::all_of(graph.results.begin(), graph.results.end(),
                     [&](ValueIndex value) { return live[value]; });
}

// Returns the plain runs, with other realizations of some choices.
std::vector<Run> choose(std::mt19937_64& random, const Graph& graph) {
  Graph changed = graph;
  for (Choice& choice : changed.choices) {
    const int64_t last = static_cast<int64_t>(choice.realizations.size()) - 1;
    std::swap(choice.realizations[0],
              choice.realizations[static_cast<size_t>(between(random, 0, last))]);
  }
  try {
    std::vector<Run> runs = plain_runs(changed);
    if (can_run(graph, runs)) return runs;
  } catch (const InputError&) {
    // A first realization has no valid run, so the choices stay as in plain training.
  }
  return plain_runs(graph);
}

}  // namespace

Graph random_graph(std::mt19937_64& random, const RandomGraphOptions& options) {
  return Maker(random, options).make();
}

std::vector<Run> random_runs(std::mt19937_64& random, const Graph& graph, int attempts) {
  std::vector<Run> runs = choose(random, graph);
  for (int k = 0; k < attempts; ++k) {
    std::vector<Run> changed = runs;
    const auto at = static_cast<size_t>(between(random, 0, static_cast<int64_t>(runs.size()) - 1));
    Run run = runs[at];
    const Op& op = graph.ops[run.op];
    run.variant =
        static_cast<int32_t>(between(random, 0, static_cast<int64_t>(op.variants.size()) - 1));
    if (op.once || op.phase != Phase::kForward || coin(random)) {
      changed[at] = run;  // another variant
    } else {
      const int64_t place =
          between(random, static_cast<int64_t>(at) + 1, static_cast<int64_t>(runs.size()));
      changed.insert(changed.begin() + place, run);
      if (coin(random))
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(at));  // put off
    }
    if (can_run(graph, changed)) runs = std::move(changed);
  }
  return runs;
}

std::string describe(const Graph& graph) {
  const auto names = [&](const std::vector<ValueIndex>& list) {
    std::vector<std::string> ids;
    for (const ValueIndex value : list) ids.push_back(graph.values[value].id);
    return fmt::format("{}", ids);
  };
  std::string values, ops, choices;
  for (const Value& value : graph.values) {
    values +=
        fmt::format(R"({}{{"id": "{}", "bytes": {}, "kind": "{}"}})", values.empty() ? "" : ", ",
                    value.id, value.bytes.count(), to_string(value.kind));
  }
  for (const Op& op : graph.ops) {
    std::string variants;
    for (const Variant& variant : op.variants) {
      std::vector<std::vector<std::string>> reuses;
      for (const auto& [written, read] : variant.reuses) {
        reuses.push_back({graph.values[written].id, graph.values[read].id});
      }
      variants += fmt::format(
          R"({}{{"name": "{}", "ns": {}, "workspace_bytes": {}, "reads": {}, "writes": {}, )"
          R"("reuses": {}, "consumes": {}, "role": "{}"}})",
          variants.empty() ? "" : ", ", variant.name, variant.time.count(),
          variant.workspace.count(), names(variant.reads), names(variant.writes), reuses,
          names(variant.consumes), to_string(variant.role));
    }
    ops += fmt::format(
        R"({}{{"id": "{}", "phase": "{}", "once": {}, "random": {}, "variants": [{}]}})",
        ops.empty() ? "" : ", ", op.id, to_string(op.phase), op.once, op.random, variants);
  }
  for (const Choice& choice : graph.choices) {
    std::vector<std::vector<std::string>> realizations;
    for (const auto& realization : choice.realizations) {
      realizations.emplace_back();
      for (const OpIndex op : realization.ops) realizations.back().push_back(graph.ops[op].id);
    }
    choices += fmt::format(R"({}{{"id": "{}", "realizations": {}}})", choices.empty() ? "" : ", ",
                           choice.id, realizations);
  }
  return fmt::format(
      R"({{"format": "reprise.graph", "version": 1, "name": "{}", "fixed_bytes": {}, )"
      R"("values": [{}], "ops": [{}], "choices": [{}], "results": {}}})",
      graph.name, graph.fixed.count(), values, ops, choices, names(graph.results));
}

std::string describe(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    text += text.empty() ? "[" : ", ";
    text += fmt::format(R"(["{}", "{}")", to_string(action.kind), action.id);
    for (const std::string& part : {action.variant, action.at, action.to}) {
      if (!part.empty()) text += fmt::format(R"(, "{}")", part);
    }
    text += "]";
  }
  return text + "]";
}

}  // namespace reprise::testing
