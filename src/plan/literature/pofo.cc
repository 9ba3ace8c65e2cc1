// This planner combines rematerialization and offloading by dynamic programming over slots of memory:
// O. Beaumont, L. Eyraud-Dubois, A. Shilova, "Efficient combination of rematerialization and
// offloading for training DNNs", NeurIPS 2021 (POFO).
//
// Paper                          here
// slots of memory                the room of the device in kSlots parts; sizes are rounded up
// bandwidth, a fluid model       bytes a nanosecond of the first lane (lanes.h); no latency
// a stage: kept, with its saved  kept with its first option; what it saved moves where its input
//   tensors offloaded or not     moves
// a recomputed sequence          a swept segment with the exact recurrence of plan/chain
// copies at the loss             wait until both queues are empty
//
// A state says, before stage i runs forward, how many slots are kept until the backward (A), how many
// are decided to leave and have not left (dF), and how many must still come back, in mirrored time,
// when the backward of stage i ends (dB); and whether x_i moves. Its value is the least time of the
// forwards and backwards before i, with their waits. The best states at the loss become choices
// (choices.h), and the exact plan of each is the judge, so that a state is an estimate only.
//
// It is here to be compared with: `levels` rounds nothing, and decides for each value alone.
//
// Complexity: O(stages * states * kLongest), with at most kMostStates states at a boundary; beyond
// them the slowest are dropped. They are fewer where the time limit would not suffice.
//
// Assumes: every forward may run again. Not proven: nothing; the bound is that of `levels`.
//
// Tests: those of every planner; property/levels_test.cc (not faster than the bound, and `levels` is at
// least as good but for the luck of its search).
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/chain/cost_curve.h"
#include "plan/literature/planner.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/judge.h"
#include "plan/place/levels/planner.h"
#include "plan/place/levels/segments.h"

namespace reprise::internal::literature {

using levels::Choices;
using levels::Judge;
using levels::kSwept;
using levels::Segments;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSlots = 50;
constexpr size_t kLongest = 24;           // stages of a segment
constexpr size_t kMostStates = 2000;      // at a boundary
constexpr size_t kFewestStates = 20;      // if the time runs out
constexpr double kRecurrenceShare = 0.7;  // of the time limit, for the recurrence
constexpr size_t kJudged = 40;            // states at the loss whose exact plans are built

struct State {
  int64_t kept = 0, out = 0, in = 0;  // slots: A, dF, dB
  bool away = false;                  // whether x_i moves
  bool swept = false;                 // whether the last piece is a segment, or one kept stage
  double time = 0;                    // nanoseconds
  size_t before = 0;                  // the boundary where the last piece begins
  size_t from = 0;                    // the state there
};

class Slots {
 public:
  explicit Slots(const ChainProblem& problem)
      : chain_(problem.chain),
        limit_(static_cast<double>(problem.options.time_limit.count())),
        judge_(problem, std::min(kLongest, stages()), "pofo") {
    unit_ = std::max<int64_t>(1, (judge_.memory() + kSlots - 1) / kSlots);
    const Machine& machine = problem.options.machine;
    if (const auto& lanes = judge_.lane_times().lanes(); !lanes.empty()) {
      out_ = rate(machine, lanes[0].out);
      in_ = rate(machine, lanes[0].in);
    }
  }

  Answer run() {
    begin_ = Clock::now();
    if (judge_.memory() > 0) {
      states_.resize(stages() + 1);
      index_.resize(stages() + 1);
      add(0, {});
      for (size_t i = 0; i < stages(); ++i) {
        keep_to_time(i);
        drop_slowest(i);
        for (size_t s = 0; s < states_[i].size(); ++s) {
          keep(i, s);
          for (size_t end = i + 1; end <= std::min(stages(), i + kLongest); ++end) {
            sweep(i, s, end);
          }
        }
      }
      offer_best();
    }
    judge_.offer(Choices(stages()));  // says what a refusal needs, if nothing fits
    return judge_.answer();
  }

 private:
  size_t stages() const { return chain_.stages.size(); }
  static double rate(const Machine& machine, int32_t channel) {
    return static_cast<double>(machine.channels[channel].bytes_per_second) / 1e9;
  }
  bool moves() const { return out_ > 0; }
  int64_t slots(double bytes) const {
    return static_cast<int64_t>((bytes + static_cast<double>(unit_) - 1) /
                                static_cast<double>(unit_));
  }
  // Returns the bytes of slots that are left after `time` of copies.
  static double left(double bytes, double rate, double time) {
    return std::max(0.0, bytes - rate * time);
  }
  double bytes(int64_t count) const { return static_cast<double>(count * unit_); }
  double room(const State& state) const {
    return static_cast<double>(judge_.memory()) - bytes(state.kept);
  }

  void add(size_t boundary, const State& state) {
    if (state.kept > kSlots || state.out > 4 * kSlots || state.in > 4 * kSlots) return;
    const auto key = static_cast<uint64_t>(((state.kept * 256 + state.out) * 256 + state.in) * 2 +
                                           (state.away ? 1 : 0));
    const auto [found, fresh] = index_[boundary].emplace(key, states_[boundary].size());
    if (fresh) {
      states_[boundary].push_back(state);
    } else if (State& old = states_[boundary][found->second]; state.time < old.time) {
      old = state;
    }
  }

  // Halves the number of states while the boundaries so far took more than their share of the time.
  void keep_to_time(size_t boundary) {
    const double used = std::chrono::duration<double, std::nano>(Clock::now() - begin_).count();
    const double share =
        kRecurrenceShare * static_cast<double>(boundary + 1) / static_cast<double>(stages());
    if (used > share * limit_) most_ = std::max(kFewestStates, most_ / 2);
  }

  void drop_slowest(size_t boundary) {
    std::vector<State>& all = states_[boundary];
    index_[boundary].clear();
    if (all.size() <= most_) return;
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(most_), all.end(),
                     [](const State& a, const State& b) { return a.time < b.time; });
    all.resize(most_);
  }

  // A Piece is what a part of the chain adds to a state, in bytes and nanoseconds.
  struct Piece {
    size_t end = 0;  // the boundary behind it
    bool swept = false;
    double forward = 0, backward = 0;         // times, with waits
    double stays = 0, leaves = 0, comes = 0;  // bytes, without its output
  };

  // Adds the states behind a piece that begins at boundary i in state s, for both fates of its output.
  void follow(size_t i, size_t s, const Piece& piece) {
    const State& state = states_[i][s];
    const bool last = piece.end == stages();
    const auto output = last ? 0.0 : static_cast<double>(judge_.model().x[piece.end]);
    for (const bool away : {false, true}) {
      if (away && (!moves() || last)) continue;
      add(piece.end, {.kept = state.kept + slots(piece.stays + (away ? 0 : output)),
                      .out = slots(left(bytes(state.out), out_, piece.forward) + piece.leaves +
                                   (away ? output : 0)),
                      .in = slots(left(bytes(state.in), in_, piece.backward) + piece.comes),
                      .away = away,
                      .swept = piece.swept,
                      .time = state.time + piece.forward + piece.backward,
                      .before = i,
                      .from = s});
    }
  }

  void keep(size_t i, size_t s) {
    const State state = states_[i][s];
    const StageOption& option = chain_.stages[i].options[0];
    const chain::KeepOption& row = judge_.model().options[i][0];
    const auto input = state.away ? static_cast<double>(judge_.model().x[i]) : 0.0;
    const double forward = room(state) - static_cast<double>(row.forward);
    const double backward =
        room(state) - input - static_cast<double>(row.backward) - weights_behind(i + 1);
    if (forward < input || backward < 0) return;
    const double wait_out = moves() ? std::max(0.0, bytes(state.out) - forward) / out_ : 0;
    const double wait_in = moves() ? std::max(0.0, bytes(state.in) - backward) / in_ : 0;
    const auto saved = static_cast<double>(row.saved);
    follow(i, s,
           {.end = i + 1,
            .forward = static_cast<double>(option.forward.time.count()) + wait_out,
            .backward = static_cast<double>(option.backward.time.count()) + wait_in,
            .stays = state.away ? 0 : saved,
            .leaves = state.away ? saved : 0,
            .comes = state.away ? saved + input : 0});
  }

  void sweep(size_t i, size_t s, size_t end) {
    const State state = states_[i][s];
    const Segments& segments = judge_.segments();
    const auto input = state.away ? static_cast<double>(judge_.model().x[i]) : 0.0;
    double most = 0;
    for (size_t k = i; k < end; ++k) {
      most = std::max(most, static_cast<double>(segments.sweep_bytes(k)));
    }
    const double forward = room(state) - most;
    if (forward < 0) return;
    const double wait_out = moves() ? std::max(0.0, bytes(state.out) - forward) / out_ : 0;
    const double free = room(state) - input - weights_behind(end);
    double best = -1;
    for (const chain::CurvePoint& step : segments.curve(i, end - 1)) {
      const double idle = free - static_cast<double>(step.memory);
      if (idle < 0) continue;
      const double wait_in = moves() ? std::max(0.0, bytes(state.in) - idle) / in_ : 0;
      const int64_t runs = segments.time_of(i, end - 1, step.cost);
      const double time = static_cast<double>(runs) + wait_in;
      if (best < 0 || time < best) best = time;
    }
    if (best < 0) return;
    follow(i, s,
           {.end = end,
            .swept = true,
            .forward = static_cast<double>(segments.sweep_time(i, end)) + wait_out,
            .backward = best,
            .comes = input});
  }

  // Returns the bytes of the weight gradients that are there before the backward of stage end - 1.
  double weights_behind(size_t end) const {
    return static_cast<double>(judge_.model().weights(end, stages() - 1));
  }

  // Bytes that have still to leave, or have come back already in mirrored time, are there at the loss.
  bool fits_at_the_loss(const State& state) const {
    return room(state) - static_cast<double>(judge_.model().loss[0]) >=
           bytes(std::max(state.out, state.in));
  }

  // The paper waits at the loss until both queues are empty.
  double at_the_loss(const State& state) const {
    if (!moves()) return state.time;
    return state.time + bytes(state.out) / out_ + bytes(state.in) / in_;
  }

  void offer_best() {
    std::vector<size_t> order;
    for (size_t s = 0; s < states_.back().size(); ++s) {
      if (fits_at_the_loss(states_.back()[s])) order.push_back(s);
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return at_the_loss(states_.back()[a]) < at_the_loss(states_.back()[b]);
    });
    order.resize(std::min(order.size(), kJudged));
    for (const size_t s : order) {
      judge_.offer(choices_of_state(s));
      if (std::chrono::duration<double, std::nano>(Clock::now() - begin_).count() > limit_) return;
    }
  }

  Choices choices_of_state(size_t s) const {
    Choices choices(stages());
    size_t end = stages();
    while (end > 0) {
      const State& state = states_[end][s];
      const size_t begin = state.before;
      const State& before = states_[begin][state.from];
      if (state.swept) {
        for (size_t k = begin; k < end; ++k) choices[k].option = kSwept;
        choices[begin].cut = 1;
      } else if (before.away) {
        choices[begin].saved_lane = 0;
      }
      if (before.away) choices[begin].input_lane = 0;
      s = state.from;
      end = begin;
    }
    return choices;
  }

  const Chain& chain_;
  Clock::time_point begin_;  // of the recurrence
  const double limit_;       // nanoseconds
  size_t most_ = kMostStates;
  Judge judge_;
  int64_t unit_ = 1;                        // bytes of a slot
  double out_ = 0, in_ = 0;                 // bytes a nanosecond
  std::vector<std::vector<State>> states_;  // by boundary
  std::vector<std::unordered_map<uint64_t, size_t>> index_;
};

}  // namespace

Answer pofo_chain(const ChainProblem& problem) {
  // Where nothing can move, the paper's planner is that of persistent schedules.
  if (place::lanes_of(problem.options.machine).empty()) return levels::levels_chain(problem);
  return Slots(problem).run();
}

}  // namespace reprise::internal::literature
