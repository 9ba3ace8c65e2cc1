#include "oracle/exhaustive.h"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reprise::testing {
namespace {

using Set = uint64_t;  // a set of values or of ops

struct Move {
  size_t op = 0;
  Set reads = 0, writes = 0, taken = 0;
  int64_t time = 0, workspace = 0;
  Role role = Role::kAny;
};

struct State {
  Set live = 0;
  Set ran = 0;    // among the ops that are followed
  int last = -1;  // the last ordered op that has run

  bool operator==(const State&) const = default;
};

struct StateHash {
  size_t operator()(const State& state) const {
    uint64_t h = state.live * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29 ^ state.ran) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 32 ^ static_cast<uint64_t>(state.last)) * 0x94D049BB133111EBu;
    return h ^ h >> 31;
  }
};

class Search {
 public:
  Search(const Graph& graph, int64_t budget, const std::vector<Condition>& conditions)
      : graph_(graph), budget_(budget), fixed_(graph.fixed.count()), conditions_(conditions) {
    if (graph.values.size() > 64 || graph.ops.size() > 64) {
      throw std::logic_error("too large for the oracle");
    }
    for (size_t v = 0; v < graph.values.size(); ++v) {
      bytes_.push_back(graph.values[v].bytes.count());
      if (graph.values[v].kind == ValueKind::kInput) inputs_ |= Set{1} << v;
    }
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      for (const Variant& variant : graph.ops[o].variants) {
        Move move{o,
                  set_of(variant.reads),
                  set_of(variant.writes),
                  set_of(variant.consumes),
                  variant.time.count(),
                  variant.workspace.count(),
                  variant.role};
        for (const auto& [written, read] : variant.reuses) move.taken |= Set{1} << read;
        moves_.push_back(move);
      }
    }
    results_ = set_of(graph.results);
    read_choices();
    find_followed();
    find_useful();
  }

  std::optional<int64_t> run() {
    if (bytes_of(inputs_) + fixed_ > budget_) return std::nullopt;
    reach({inputs_, 0, -1}, 0);
    while (!queue_.empty()) {
      const auto [time, state] = queue_.top();
      queue_.pop();
      if (best_.at(state) < time) continue;
      if (is_end(state)) return time;
      for (const Move& move : moves_) run_op(state, move, time);
      for (Set rest = state.live & ~inputs_; rest != 0; rest &= rest - 1) {
        reach({state.live & ~(rest & -rest), state.ran, state.last}, time);
      }
    }
    return std::nullopt;
  }

 private:
  using Entry = std::pair<int64_t, State>;
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const { return a.first > b.first; }
  };

  static Set set_of(const std::vector<int32_t>& list) {
    Set set = 0;
    for (const int32_t member : list) set |= Set{1} << member;
    return set;
  }

  int64_t bytes_of(Set set) const {
    int64_t sum = 0;
    for (; set != 0; set &= set - 1) {
      sum += bytes_[static_cast<size_t>(__builtin_ctzll(set))];
    }
    return sum;
  }

  bool ordered(size_t op) const {
    return graph_.ops[op].once || graph_.ops[op].phase != Phase::kForward;
  }

  void read_choices() {
    others_.assign(graph_.ops.size(), 0);
    for (const Choice& choice : graph_.choices) {
      Set all = 0;
      for (const auto& realization : choice.realizations) all |= set_of(realization.ops);
      if (choice.realizations.size() > 1) in_choice_ |= all;
      for (const auto& realization : choice.realizations) {
        for (const OpIndex op : realization.ops) others_[op] = all & ~set_of(realization.ops);
      }
    }
  }

  // Whether an op has run need not be known if it surely runs, unless its roles or its choice
  // depend on it. It surely runs if it alone writes a value that another such op, or a result,
  // needs.
  void find_followed() {
    Set sure = 0;
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (ordered(o) && (in_choice_ >> o & 1) == 0) sure |= Set{1} << o;
    }
    for (bool grown = true; grown;) {
      grown = false;
      Set needed = results_;
      for (size_t o = 0; o < graph_.ops.size(); ++o) {
        if ((sure >> o & 1) == 0) continue;
        Set reads = ~Set{0};
        for (const Move& move : moves_) {
          if (move.op == o) reads &= move.reads;
        }
        needed |= reads;
      }
      for (size_t o = 0; o < graph_.ops.size(); ++o) {
        Set own = 0, other = 0;
        for (const Move& move : moves_) (move.op == o ? own : other) |= move.writes;
        if ((sure >> o & 1) != 0 || (needed & own & ~other) == 0) continue;
        sure |= Set{1} << o;
        grown = true;
      }
    }
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (graph_.ops[o].random) random_ |= Set{1} << o;
    }
    followed_ = in_choice_ | random_;
    for (const Move& move : moves_) {
      const Set op = Set{1} << move.op;
      if (!ordered(move.op) && (move.role != Role::kAny || (sure & op) == 0)) followed_ |= op;
    }
  }

  // Finds the values that may still be read once an ordered op has run. All others can be freed at
  // once.
  void find_useful() {
    useful_.assign(graph_.ops.size() + 1, 0);
    for (size_t last = 0; last <= graph_.ops.size(); ++last) {
      Set useful = results_ | inputs_;
      for (const Condition& condition : conditions_) useful |= Set{1} << condition.value;
      for (bool grown = true; grown;) {
        grown = false;
        for (const Move& move : moves_) {
          if (ordered(move.op) && move.op < last) continue;
          const bool idle =
              !ordered(move.op) && (move.writes & useful) == 0 && (followed_ >> move.op & 1) == 0;
          if (idle || (move.reads & ~useful) == 0) continue;
          useful |= move.reads;
          grown = true;
        }
      }
      useful_[last] = useful;
    }
  }

  bool is_end(const State& state) const {
    if ((results_ & ~state.live) != 0) return false;
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if ((in_choice_ >> o & 1) != 0) continue;
      const bool missing =
          ordered(o) ? static_cast<int>(o) > state.last : (followed_ & ~state.ran) >> o & 1;
      if (missing) return false;
    }
    for (const Choice& choice : graph_.choices) {
      if (choice.realizations.size() == 1) continue;
      bool done = false;
      for (const auto& realization : choice.realizations) {
        done = done || (set_of(realization.ops) & ~state.ran) == 0;
      }
      if (!done) return false;
    }
    return true;
  }

  bool meets_conditions(const State& state, const Move& move) const {
    const Set live = state.live & ~move.taken;
    return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& one) {
      return static_cast<size_t>(one.op) != move.op || (live >> one.value & 1) == one.live;
    });
  }

  bool may_run(const State& state, const Move& move) const {
    if ((move.reads & ~state.live) != 0 || !meets_conditions(state, move)) return false;
    if ((state.ran & others_[move.op]) != 0) return false;  // another realization has begun
    const bool first = (state.ran >> move.op & 1) == 0;
    // The first runs of random ops keep their order.
    if (first && (random_ >> move.op & 1) != 0 && (state.ran & random_) >> move.op != 0)
      return false;
    if (!ordered(move.op))
      return move.role != (first ? Role::kReplay : Role::kFirst) || (followed_ >> move.op & 1) == 0;
    if (static_cast<int>(move.op) <= state.last || move.role == Role::kReplay) return false;
    // An ordered op that certainly runs cannot be passed over.
    for (size_t o = static_cast<size_t>(state.last + 1); o < move.op; ++o) {
      if (ordered(o) && (in_choice_ >> o & 1) == 0) return false;
    }
    return true;
  }

  void run_op(const State& state, const Move& move, int64_t time) {
    if (!may_run(state, move)) return;
    const Set op = Set{1} << move.op;
    const bool fresh = ordered(move.op) || (followed_ & ~state.ran & op) != 0;
    if (!fresh && (move.writes & ~state.live) == 0) return;  // nothing new
    const Set kept = state.live & ~move.taken;
    const int64_t during = fixed_ + bytes_of(kept) + bytes_of(move.writes) + move.workspace;
    if (during > budget_) return;
    reach({kept | move.writes, state.ran | (followed_ & op),
           ordered(move.op) ? static_cast<int>(move.op) : state.last},
          time + move.time);
  }

  void reach(State state, int64_t time) {
    state.live &= useful_[static_cast<size_t>(state.last + 1)];
    const auto [entry, fresh] = best_.try_emplace(state, time);
    if (!fresh && entry->second <= time) return;
    entry->second = time;
    queue_.push({time, state});
  }

  const Graph& graph_;
  int64_t budget_;
  int64_t fixed_;
  const std::vector<Condition>& conditions_;
  std::vector<int64_t> bytes_;
  std::vector<Move> moves_;
  Set inputs_ = 0, results_ = 0;
  Set in_choice_ = 0;        // ops in place of which others may run
  std::vector<Set> others_;  // by op: the ops that run instead
  Set random_ = 0;           // ops that draw random numbers
  Set followed_ = 0;         // ops for which it matters whether they have run
  std::vector<Set> useful_;  // by 1 + the last ordered op that has run
  std::unordered_map<State, int64_t, StateHash> best_;
  std::priority_queue<Entry, std::vector<Entry>, Later> queue_;
};

}  // namespace

std::optional<int64_t> least_time_of_any_plan(const Graph& graph, int64_t budget,
                                              const std::vector<Condition>& conditions) {
  return Search(graph, budget, conditions).run();
}

}  // namespace reprise::testing
