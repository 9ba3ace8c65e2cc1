#include "oracle/exhaustive.h"

#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reprise::testing {
namespace {

using Set = uint64_t;  // of values

struct Move {
  Set reads = 0, writes = 0, consumes = 0;
  int64_t time = 0, workspace = 0;
};

// A state: which values are live, and how many of the loss and backward ops have run.
struct State {
  Set live = 0;
  size_t done = 0;

  uint64_t key() const { return live << 6 | done; }
};

class Search {
 public:
  Search(const Graph& graph, int64_t budget) : budget_(budget), fixed_(graph.fixed.count()) {
    if (graph.values.size() > 58) throw std::logic_error("too many values for the oracle");
    for (const Value& value : graph.values) bytes_.push_back(value.bytes.count());
    for (const Op& op : graph.ops) {
      std::vector<Move> ways;
      for (const Variant& variant : op.variants) {
        Move move{set_of(variant.reads), set_of(variant.writes), set_of(variant.consumes),
                  variant.time.count(), variant.workspace.count()};
        ways.push_back(move);
      }
      if (op.phase == Phase::kForward) {
        for (const Move& move : ways) {
          forwards_.push_back(move);
          recomputable_ |= move.writes;
        }
      } else {
        ordered_.push_back(ways);
      }
    }
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].kind == ValueKind::kInput) inputs_ |= Set{1} << v;
    }
    results_ = set_of(graph.results);
    find_useful();
  }

  std::optional<int64_t> run() {
    if (bytes_of(inputs_) + fixed_ > budget_) return std::nullopt;
    reach({inputs_, 0}, 0);
    while (!queue_.empty()) {
      const auto [time, state] = queue_.top();
      queue_.pop();
      if (best_.at(state.key()) < time) continue;
      if (state.done == ordered_.size()) return time;
      for (const Move& move : forwards_) run_op(state, move, time, 0);
      for (const Move& move : ordered_[state.done]) run_op(state, move, time, 1);
      for (Set rest = state.live & recomputable_ & ~inputs_; rest != 0; rest &= rest - 1) {
        reach({state.live & ~(rest & -rest), state.done}, time);
      }
    }
    return std::nullopt;
  }

 private:
  using Entry = std::pair<int64_t, State>;
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const { return a.first > b.first; }
  };

  static Set set_of(const std::vector<ValueIndex>& values) {
    Set set = 0;
    for (const ValueIndex value : values) set |= Set{1} << value;
    return set;
  }

  int64_t bytes_of(Set set) const {
    int64_t sum = 0;
    for (; set != 0; set &= set - 1) {
      sum += bytes_[static_cast<size_t>(__builtin_ctzll(set))];
    }
    return sum;
  }

  // What may still be read once so many ordered ops have run. Anything else can be freed at once.
  void find_useful() {
    useful_.assign(ordered_.size() + 1, results_ | inputs_);
    for (size_t done = ordered_.size(); done-- > 0;) {
      Set useful = useful_[done + 1];
      for (const Move& move : ordered_[done]) useful |= move.reads;
      for (bool grown = true; grown;) {
        grown = false;
        for (const Move& move : forwards_) {
          if ((move.writes & useful) == 0 || (move.reads & ~useful) == 0) continue;
          useful |= move.reads;
          grown = true;
        }
      }
      useful_[done] = useful;
    }
  }

  void run_op(const State& state, const Move& move, int64_t time, size_t ordered) {
    if ((move.reads & ~state.live) != 0) return;
    if (ordered == 0 && (move.writes & ~state.live) == 0) return;  // nothing new
    const Set kept = state.live & ~move.consumes;
    const int64_t during = fixed_ + bytes_of(kept) + bytes_of(move.writes) + move.workspace;
    if (during > budget_) return;
    reach({kept | move.writes, state.done + ordered}, time + move.time);
  }

  void reach(State state, int64_t time) {
    state.live &= useful_[state.done];
    const auto [entry, fresh] = best_.try_emplace(state.key(), time);
    if (!fresh && entry->second <= time) return;
    entry->second = time;
    queue_.push({time, state});
  }

  int64_t budget_;
  int64_t fixed_;
  std::vector<int64_t> bytes_;
  std::vector<Move> forwards_;
  std::vector<std::vector<Move>> ordered_;
  Set inputs_ = 0, results_ = 0, recomputable_ = 0;
  std::vector<Set> useful_;
  std::unordered_map<uint64_t, int64_t> best_;
  std::priority_queue<Entry, std::vector<Entry>, Later> queue_;
};

}  // namespace

std::optional<int64_t> least_time_of_any_plan(const Graph& graph, int64_t budget) {
  return Search(graph, budget).run();
}

}  // namespace reprise::testing
