#include "plan/chain/bound.h"

#include <algorithm>

#include "plan/chain/cost_curve.h"

namespace reprise::internal::chain {
namespace {

using Wide = LossBound::Wide;

constexpr int kUnitBits = 40;  // lambda is a multiple of 2^-40
constexpr Wide kUnit = Wide{1} << kUnitBits;
constexpr Wide kNever = Wide{1} << 124;
constexpr Wide kLargest = Wide{1} << 120;

int64_t rounded_down(Wide price) { return static_cast<int64_t>(price >> kUnitBits); }

}  // namespace

// While the loss runs, the last boundary is live, unless the loss gives it back.
int64_t LossBound::boundary_bytes(size_t k) const {
  return k == model_.stages && model_.loss[0] != model_.loss[1] ? 0 : model_.x[k];
}

// Calls offer(from, to, cost, bytes) for all pairs of states of the boundaries before and behind
// stage k that this option allows.
template <class Offer>
void LossBound::for_each_option_step(size_t k, const KeepOption& option, const Offer& offer) const {
  const int64_t again = model_.sweeps[k].back().cost;
  const bool last = k + 1 == model_.stages;
  const int64_t output = boundary_bytes(k + 1);
  for (const State from : {kGone, kAgain, kLive}) {
    if (from != kGone) {
      // The saved bytes are not live: the stage runs before the loss, and again later with this
      // option, when it may stop early.
      offer(from, kLive, again + option.stopped_cost, output);
      if (!last) offer(from, kAgain, again + option.stopped_cost, int64_t{0});
    }
    // The saved bytes are live, and so are the values that the backward reads. Only the input may
    // be missing, if inputs may be dropped.
    const bool input_there =
        from == kLive || (from == kAgain && schedules_ == Schedules::kDroppedInputs);
    if (option.reads_input && !input_there) continue;
    offer(from, kLive, option.cost, option.saved + output);
    if (last || option.reads_output) continue;
    offer(from, kGone, option.cost, option.saved);
    if (from != kGone) offer(from, kAgain, again + option.cost, option.saved);
  }
}

template <class Offer>
void LossBound::for_each_step(size_t k, const Offer& offer) const {
  for (const KeepOption& option : model_.options[k]) for_each_option_step(k, option, offer);
}

LossBound::States LossBound::after_stage(size_t k, const States& before) const {
  States after;
  after.fill({kNever, 0});
  for_each_step(k, [&](State from, State to, int64_t cost, int64_t bytes) {
    const Wide price = before[from].price + cost * kUnit + price_ * bytes;
    if (price < after[to].price) after[to] = {price, before[from].bytes + bytes};
  });
  return after;
}

LossBound::States LossBound::before_stage(size_t k, const States& after) const {
  States before;
  before.fill({kNever, 0});
  for_each_step(k, [&](State from, State to, int64_t cost, int64_t bytes) {
    const Wide price = after[to].price + cost * kUnit + price_ * bytes;
    if (price < before[from].price) before[from] = {price, after[to].bytes + bytes};
  });
  return before;
}

// Finds the least cost + lambda * bytes.
LossBound::Value LossBound::shortest(Wide price) {
  price_ = price;
  States states;
  states.fill({kNever, 0});
  states[kLive] = {0, 0};  // x_0 is always live, and not counted
  for (size_t k = 0; k < model_.stages; ++k) states = after_stage(k, states);
  return states[kLive];
}

LossBound::LossBound(const ChainModel& model, Schedules schedules, int64_t memory)
    : model_(model), schedules_(schedules), memory_(memory - model.loss[1]), whole_memory_(memory) {
  Wide best_price = 0, best = shortest(0).price;
  const auto try_price = [&](Wide price) {
    const Value path = shortest(price);
    const Wide bound = path.price - price * memory_;
    if (bound > best) {
      best = bound;
      best_price = price;
    }
    return path.bytes > memory_;  // the path is too large: a higher price is better
  };
  Wide bytes = 1;
  for (size_t k = 0; k < model.stages; ++k) {
    int64_t saved = 0;
    for (const KeepOption& option : model.options[k]) saved = std::max(saved, option.saved);
    bytes += Wide{saved} + model.x[k + 1];
  }
  Wide low = 0, high = 1;
  while (high < kLargest / bytes && try_price(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > std::max<Wide>(1, high >> 20)) {
    const Wide middle = low + (high - low) / 2;
    (try_price(middle) ? low : high) = middle;
  }
  price_ = best_price;
  lower_ = std::max<int64_t>(0, rounded_down(best));
  tabulate_boundaries();
}

void LossBound::tabulate_boundaries() {
  States states;
  states.fill({kNever, 0});
  states[kLive] = {0, 0};
  from_start_.push_back(states);
  for (size_t k = 0; k < model_.stages; ++k) {
    from_start_.push_back(after_stage(k, from_start_.back()));
  }
  to_end_.resize(model_.stages + 1, states);
  for (size_t k = model_.stages; k-- > 0;) to_end_[k] = before_stage(k, to_end_[k + 1]);
}

// A segment that does not reach the loss runs after the loss. Its boundary is live by then, and its
// stages run once more.
LossBound::Wide LossBound::before(size_t first) const {
  const States& states = from_start_[first];
  return std::min(states[kAgain].price, states[kLive].price) - model_.least_sweeps[first] * kUnit;
}

LossBound::Wide LossBound::behind(size_t last, int option) const {
  const size_t end = last + 1;
  if (option < 0) {
    return std::min(to_end_[end][kAgain].price,
                    to_end_[end][kLive].price + price_ * boundary_bytes(end)) +
           model_.least_sweeps[end] * kUnit;
  }
  // In D, the last stage of the segment may have run before the loss.
  Wide rest = kNever;
  for_each_option_step(
      last, model_.options[last][option], [&](State from, State to, int64_t cost, int64_t bytes) {
        if (from == kGone) return;
        rest = std::min(rest, to_end_[end][to].price + cost * kUnit + price_ * bytes);
      });
  return rest + model_.least_sweeps[last] * kUnit;
}

void LossBound::tabulate(const ChainCells& cells) {
  const size_t stages = model_.stages;
  std::vector<std::vector<Wide>> rest(stages);  // by last stage, then by option + 1
  for (size_t last = 0; last < stages; ++last) {
    const bool drops = schedules_ == Schedules::kDroppedInputs;
    const int options = drops ? static_cast<int>(model_.options[last].size()) : 0;
    for (int option = -1; option < options; ++option) {
      rest[last].push_back(behind(last, option) - price_ * memory_);
    }
  }
  around_.assign(cells.slots(), kInfeasible);
  for (size_t first = 0; first < stages; ++first) {
    const Wide start = before(first);
    for (size_t last = first; last < stages; ++last) {
      // There are two slots for each option, and two for no option.
      int64_t* least = &around_[cells.slot(first, last, false)];
      for (const Wide end : rest[last]) {
        const int64_t bound = std::max<int64_t>(0, rounded_down(start + end));
        for (int pin = 0; pin < 2; ++pin, ++least) *least = std::min(*least, bound);
      }
    }
  }
}

int64_t LossBound::around(const Cell& cell) const {
  const auto first = static_cast<size_t>(cell.first), last = static_cast<size_t>(cell.last);
  if (last == model_.stages) return 0;
  if (!around_.empty()) return around_[cell.slot];
  const Wide bound = before(first) + behind(last, cell.option) - price_ * memory_;
  return std::max<int64_t>(0, rounded_down(bound));
}

int64_t LossBound::around(const Cell& cell, int64_t memory) const {
  const Wide held = Wide{whole_memory_} - memory;
  const auto i = static_cast<size_t>(cell.first);
  return std::max<int64_t>(0, rounded_down(from_start_[i][kLive].price - price_ * held));
}

LossBound::Wide LossBound::weigh(int64_t cost, int64_t bytes) const {
  return cost * kUnit + price_ * bytes;
}

LossBound::Wide LossBound::most_weight(size_t first, int64_t limit) const {
  return weigh(limit, whole_memory_) - from_start_[first][kLive].price;
}

}  // namespace reprise::internal::chain
