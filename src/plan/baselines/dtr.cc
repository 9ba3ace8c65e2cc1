// Dynamic tensor rematerialization: M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J.
// Roesch, T. Chen, Z. Tatlock, "Dynamic Tensor Rematerialization", ICLR 2021, arXiv 2006.09616. The
// planner is a baseline to beat: it knows nothing of the ops to come.
//
// The planner runs plain training under the budget. If an op does not fit, the planner evicts the
// value with the least score, again and again until the op fits. If an op reads an evicted value,
// the value is recomputed first, with everything that this needs. A value is gone for good when no
// op of plain training reads it any more.
//
// | paper                        | here                                                          |
// |------------------------------|---------------------------------------------------------------|
// | c(S), m(S), s(S)             | time of the fastest maker, bytes, clock since the last touch  |
// | e*(S), evicted neighborhood  | evicted values that a value is made from, and that are made   |
// |                              | from it, over evicted values only                             |
// | h_DTR                        | (c + times of e*) / (m * s), kExact                           |
// | ~e*, h_DTR^eq                | union-find over evicted values, sums of times; a value that   |
// |                              | is made again leaves its set's sum, not the set: kSets        |
// | h_LRU                        | 1 / s                                                         |
//
// All three scores are tried, each with the whole budget and with less, because an op's own re-runs
// need room that a heuristic does not foresee. The fastest plan that fits is the answer. The
// planner never answers infeasible, because it proves nothing.
//
// Complexity: O(evictions * values) scores for a run, an exact neighborhood O(evicted values) each.
//
// Not handled: realizations but the first; re-runs that take what they read.
//
// Tests: every graph planner's in property/graph_planner_test.cc, which also compares with `graph`;
// property/simple_planners_test.cc. No test compares with an exhaustive search.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/common/candidates.h"
#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"

namespace reprise::internal::baselines {

using common::can_be_rerun;
using common::Candidates;
using common::contains;
using common::least_time;
using common::runs_once;
using common::SearchControl;
using common::takes;

namespace {

constexpr int32_t kDeepest = 20'000;  // depth of makers within makers that the stack can take

enum class Score { kExact, kSets, kLeastRecent };

// A Maker recomputes a value: the fastest variant that takes no value away.
struct Maker {
  OpIndex op = -1;
  int32_t variant = 0;
  double time = 0;
};

class Simulation {
 public:
  Simulation(const Graph& graph, const std::vector<Run>& plain, int64_t budget, Score score,
             SearchControl& control)
      : graph_(graph),
        plain_(plain),
        budget_(budget),
        score_(score),
        control_(control),
        values_(graph.values.size()),
        mark_(graph.values.size(), 0) {
    level_ = graph.fixed.count();
    for (size_t v = 0; v < values_.size(); ++v) {
      values_[v].input = graph.values[v].kind == ValueKind::kInput;
      values_[v].live = values_[v].input;
      values_[v].set = static_cast<ValueIndex>(v);
      if (values_[v].input) level_ += bytes(static_cast<ValueIndex>(v));
    }
    for (const ValueIndex result : graph.results) values_[result].reads_left = 1;
    for (const Run& run : plain) {
      const Op& op = graph.ops[run.op];
      for (const ValueIndex value : op.variants[run.variant].reads) ++values_[value].reads_left;
      if (!runs_once(op)) find_makers(run.op);
    }
  }

  // Returns nothing if some value that must be live does not fit, or if time is up.
  std::optional<std::vector<Run>> run() {
    for (const Run& run : plain_) {
      if (!perform(run)) return std::nullopt;
      const Variant& variant = graph_.ops[run.op].variants[run.variant];
      for (const ValueIndex value : variant.reads) release(value);
      for (const ValueIndex value : variant.writes) drop_if_done(value);
    }
    for (const ValueIndex result : graph_.results) {
      ++values_[result].locks;
      if (!values_[result].live && !make(result)) return std::nullopt;
    }
    return std::move(runs_);
  }

 private:
  struct State {
    bool input = false, live = false, evicted = false;
    int32_t reads_left = 0;  // reads to come, by ops of plain training and by the end
    int32_t locks = 0;       // held by runs that are being prepared
    double touched = 0;      // clock of the last touch
    Maker maker;
    std::vector<ValueIndex> made_from, makes;
    ValueIndex set = 0;   // union-find over evicted values
    double set_time = 0;  // sum of times, in the root of a set
  };

  int64_t bytes(ValueIndex value) const { return graph_.values[value].bytes.count(); }

  void find_makers(OpIndex index) {
    const Op& op = graph_.ops[index];
    for (size_t k = 0; k < op.variants.size(); ++k) {
      const Variant& variant = op.variants[k];
      if (!can_be_rerun(variant) || !variant.consumes.empty() || !variant.reuses.empty()) continue;
      const auto time = static_cast<double>(variant.time.count());
      for (const ValueIndex value : variant.writes) {
        State& state = values_[value];
        if (state.maker.op >= 0 && (state.maker.op != index || state.maker.time <= time)) continue;
        state.maker = {index, static_cast<int32_t>(k), time};
        state.made_from = variant.reads;
      }
    }
    for (const ValueIndex value : written_by(op)) {
      if (values_[value].maker.op != index) continue;
      for (const ValueIndex read : values_[value].made_from) values_[read].makes.push_back(value);
    }
  }

  static std::vector<ValueIndex> written_by(const Op& op) {
    std::vector<ValueIndex> all;
    for (const Variant& variant : op.variants) {
      for (const ValueIndex value : variant.writes) {
        if (!contains(all, value)) all.push_back(value);
      }
    }
    return all;
  }

  bool make(ValueIndex value) {
    const Maker& maker = values_[value].maker;
    if (maker.op < 0 || depth_ == kDeepest) return false;
    ++depth_;
    const bool done = perform({maker.op, maker.variant});
    --depth_;
    return done;
  }

  // Makes what is missing, makes room, and runs the op. The recursion goes to earlier ops only.
  bool perform(const Run& run) {
    const Variant& variant = graph_.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) ++values_[value].locks;
    for (const ValueIndex value : variant.reads) {
      const bool earlier = values_[value].maker.op < run.op;
      if (!values_[value].live && !(earlier && make(value))) return false;
    }
    if (!make_room(variant)) return false;
    for (const ValueIndex value : variant.reads) {
      --values_[value].locks;
      values_[value].touched = clock_;
      if (takes(variant, value)) evict(value);
    }
    clock_ += static_cast<double>(variant.time.count()) + 1;
    runs_.push_back(run);
    if (runs_.size() > 100 * plain_.size()) return false;  // thrashing
    for (const ValueIndex value : variant.writes) {
      if (!values_[value].live) revive(value);
      values_[value].touched = clock_;
    }
    // A value may have no reader left by now: an output that was made along with the wanted value,
    // or an input of the run.
    for (const ValueIndex value : variant.reads) drop_if_done(value);
    return true;
  }

  bool make_room(const Variant& variant) {
    int64_t need = variant.workspace.count();
    for (const ValueIndex value : variant.writes) {
      // A second copy would count, but with_frees() frees the first copy before the run.
      if (!values_[value].live) need += bytes(value);
    }
    for (const ValueIndex value : variant.reads) {
      if (takes(variant, value)) need -= bytes(value);
    }
    while (level_ + need > budget_) {
      if (control_.out_of_time()) return false;
      const ValueIndex victim = find_victim(variant);
      if (victim < 0) return false;
      evict(victim);
    }
    return true;
  }

  ValueIndex find_victim(const Variant& variant) {
    ValueIndex victim = -1;
    double least = 0;
    for (size_t v = 0; v < values_.size(); ++v) {
      const State& state = values_[v];
      const auto value = static_cast<ValueIndex>(v);
      if (!state.live || state.input || state.locks > 0 || state.maker.op < 0) continue;
      if (bytes(value) == 0 || contains(variant.writes, value)) continue;
      const double rank = score(value);
      if (victim >= 0 && rank >= least) continue;
      victim = value;
      least = rank;
    }
    return victim;
  }

  double score(ValueIndex value) {
    const State& state = values_[value];
    const double stale = clock_ - state.touched + 1;
    if (score_ == Score::kLeastRecent) return 1 / stale;
    const double around = score_ == Score::kExact ? exact_neighborhood(value) : sets_around(value);
    return (state.maker.time + around) / (static_cast<double>(bytes(value)) * stale);
  }

  // Sums the times of the evicted values that this value is made from, and of those that are made
  // from it.
  double exact_neighborhood(ValueIndex value) {
    double sum = 0;
    ++search_;
    const auto follow = [&](std::vector<ValueIndex> State::*next) {
      open_.assign(1, value);
      while (!open_.empty()) {
        const ValueIndex from = open_.back();
        open_.pop_back();
        for (const ValueIndex to : values_[from].*next) {
          if (!values_[to].evicted || mark_[to] == search_) continue;
          mark_[to] = search_;
          sum += values_[to].maker.time;
          open_.push_back(to);
        }
      }
    };
    follow(&State::made_from);
    follow(&State::makes);
    return sum;
  }

  ValueIndex root(ValueIndex value) {
    while (values_[value].set != value) {
      values_[value].set = values_[values_[value].set].set;
      value = values_[value].set;
    }
    return value;
  }

  double sets_around(ValueIndex value) {
    double sum = 0;
    open_.clear();
    for (const auto* list : {&values_[value].made_from, &values_[value].makes}) {
      for (const ValueIndex other : *list) {
        if (!values_[other].evicted || contains(open_, root(other))) continue;
        open_.push_back(root(other));
        sum += values_[root(other)].set_time;
      }
    }
    return sum;
  }

  void evict(ValueIndex value) {
    State& state = values_[value];
    if (!state.live) return;
    state.live = false;
    level_ -= bytes(value);
    state.evicted = true;
    values_[root(value)].set_time += state.maker.time;
    for (const auto* list : {&state.made_from, &state.makes}) {
      for (const ValueIndex other : *list) {
        if (!values_[other].evicted || root(other) == root(value)) continue;
        values_[root(value)].set_time += values_[root(other)].set_time;
        values_[root(other)].set = root(value);
      }
    }
  }

  void revive(ValueIndex value) {
    State& state = values_[value];
    state.live = true;
    level_ += bytes(value);
    if (!state.evicted) return;
    state.evicted = false;
    State& before = values_[root(value)];
    before.set_time = std::max(0.0, before.set_time - state.maker.time);
  }

  void release(ValueIndex value) {
    --values_[value].reads_left;
    drop_if_done(value);
  }

  void drop_if_done(ValueIndex value) {
    const State& state = values_[value];
    if (!state.input && state.reads_left == 0 && state.locks == 0) evict(value);
  }

  const Graph& graph_;
  const std::vector<Run>& plain_;
  const int64_t budget_;
  const Score score_;
  SearchControl& control_;
  std::vector<State> values_;
  int64_t level_ = 0;
  double clock_ = 0;
  std::vector<Run> runs_;
  std::vector<int64_t> mark_;  // by value: the last search that met it
  int64_t search_ = 0;
  int32_t depth_ = 0;
  std::vector<ValueIndex> open_;
};

}  // namespace

bool consider_dtr(const Graph& graph, Bytes budget, Candidates& candidates,
                  SearchControl& control) {
  const std::vector<Run> plain = plain_runs(graph);
  for (const Score score : {Score::kExact, Score::kSets, Score::kLeastRecent}) {
    for (const int64_t part : {32, 31, 30, 28}) {
      if (control.out_of_time()) return false;
      control.report(-1);
      const auto room = static_cast<int64_t>(static_cast<__int128>(budget.count()) * part / 32);
      std::optional<std::vector<Run>> runs = Simulation(graph, plain, room, score, control).run();
      if (runs) candidates.consider(std::move(*runs));
    }
  }
  return true;
}

Answer dtr_graph(const GraphProblem& problem) {
  SearchControl control(problem.options, "dtr");
  control.report(-1);
  const auto answer_within = [&](Bytes budget) {
    Candidates candidates(problem.graph, budget);
    candidates.consider(plain_runs(problem.graph));
    if (!candidates.fits()) consider_dtr(problem.graph, budget, candidates, control);
    return candidates.answer(least_time(problem.graph), false);
  };
  Answer answer = answer_within(problem.goal());
  return answer.runs.empty() && problem.goal() < problem.budget ? answer_within(problem.budget)
                                                                : answer;
}

}  // namespace reprise::internal::baselines
