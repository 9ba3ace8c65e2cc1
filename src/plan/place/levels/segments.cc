#include "plan/place/levels/segments.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::levels {

using chain::CostCurve;
using chain::Envelope;
using chain::KeepOption;
using chain::kInfeasible;

namespace {

constexpr double kWork = 2e7;  // stages * window^2, at most

// A Way is how a stretch begins: it keeps its first stage with an option, or sweeps to stage `at`,
// which it stores the input of.
struct Way {
  size_t at = 0;      // the sweep ends here; the first stage itself: it is kept
  size_t option = 0;  // of a kept stage
  int64_t from = 0;   // the least bytes
  int64_t time = 0;   // of the sweep, or of the kept stage forward and backward
  int64_t right = 0;  // bytes that the stages behind cannot use
  int64_t left = 0;   // bytes that the swept stages cannot use
};

}  // namespace

size_t longest_segment(size_t stages) {
  const auto most = static_cast<size_t>(std::sqrt(kWork / static_cast<double>(stages)));
  return std::min(stages, std::max<size_t>(most, 2));
}

Segments::Segments(const Chain& chain, const chain::ChainModel& model, size_t window,
                   int64_t memory)
    : chain_(chain), model_(model), window_(window), memory_(memory), sweeps_(1, 0) {
  for (size_t k = 0; k < model.stages; ++k) {
    sweeps_.push_back(sweeps_.back() + chain.stages[k].forward.time.count());
    sweep_bytes_.push_back(model.x[k] + model.x[k + 1] + chain.stages[k].forward.workspace.count());
  }
  find_equal();
  Envelope envelope;
  for (size_t length = 0; length < window_; ++length) {
    for (size_t first = 0; first + length < model.stages; ++first) {
      const size_t cell = cell_of(first, first + length);
      if (cell < curves_.size()) continue;
      curves_.push_back(compute(first, first + length, envelope));
    }
  }
}

// Numbers the different stretches, short ones first. Two stretches are equal if their stages and
// their first boundaries are.
void Segments::find_equal() {
  std::map<std::vector<int64_t>, size_t> kinds;
  std::vector<size_t> kind;
  for (size_t k = 0; k < model_.stages; ++k) {
    std::vector<int64_t> key{model_.x[k],
                             model_.x[k + 1],
                             model_.g[k],
                             model_.g[k + 1],
                             model_.weights(k, k),
                             sweep_bytes_[k],
                             sweeps_[k + 1] - sweeps_[k]};
    for (size_t o = 0; o < model_.options[k].size(); ++o) {
      const KeepOption& option = model_.options[k][o];
      key.insert(key.end(), {option.saved, option.forward, option.backward, option_time(k, o),
                             option.reads_output ? 1 : 0});
    }
    kind.push_back(kinds.try_emplace(key, kinds.size()).first->second);
  }
  cells_.resize(model_.stages);
  std::map<std::pair<size_t, size_t>, size_t> longer;  // a stretch and the stage behind it
  size_t cells = 0;
  for (size_t length = 0; length < window_; ++length) {
    for (size_t first = 0; first + length < model_.stages; ++first) {
      // Stretches of one stage are told apart by their stage, so that their numbers cannot clash.
      const size_t before = length == 0 ? kInfeasible : cells_[first].back();
      const auto [found, fresh] = longer.try_emplace({before, kind[first + length]}, cells);
      if (fresh) ++cells;
      cells_[first].push_back(found->second);
    }
  }
}

int64_t Segments::option_time(size_t stage, size_t option) const {
  const StageOption& kept = chain_.stages[stage].options[option];
  return (kept.forward.time + kept.backward.time).count();
}

// Lists all ways to begin the stretch. The swept part comes first in time, then what is behind it;
// in the backward it is the other way round.
template <class Visit>
void Segments::for_each_way(size_t first, size_t last, const Visit& visit) const {
  const int64_t held = model_.g[last + 1];
  for (size_t o = 0; o < model_.options[first].size(); ++o) {
    const KeepOption& option = model_.options[first][o];
    visit(Way{
        .at = first,
        .option = o,
        .from = std::max(held + option.forward, model_.weights(first + 1, last) + option.backward),
        .time = option_time(first, o),
        .right = option.saved + model_.x[first + 1]});
  }
  int64_t bytes = 0;
  for (size_t j = first + 1; j <= last; ++j) {
    // The input of the stretch is live outside its bytes.
    const int64_t input = j - 1 == first ? model_.x[first] : 0;
    bytes = std::max(bytes, sweep_bytes_[j - 1] - input);
    visit(Way{.at = j,
              .from = held + bytes,
              .time = sweep_time(first, j),
              .right = model_.x[j],
              .left = model_.weights(j, last)});
  }
}

CostCurve Segments::compute(size_t first, size_t last, Envelope& envelope) const {
  const chain::CurveView zero = chain::zero_function();
  envelope.reset(memory_ - (first > 0 ? model_.x[first] : 0), kInfeasible);
  for_each_way(first, last, [&](const Way& way) {
    if (way.at == first) {
      const bool more = first < last;
      envelope.add_sum({more ? curve(first + 1, last) : zero, more ? way.right : 0}, {zero, 0},
                       way.time, way.from);
    } else {
      envelope.add_sum({curve(way.at, last), way.right}, {curve(first, way.at - 1), way.left},
                       way.time, way.from);
    }
  });
  return envelope.function();
}

const std::vector<Run>& Segments::runs(size_t first, size_t last, size_t step) {
  const size_t key = first * window_ + (last - first);
  const auto [found, fresh] = runs_.try_emplace({key, step});
  if (fresh) trace(first, last, curve(first, last)[step].memory, found->second);
  return found->second;
}

void Segments::trace(size_t first, size_t last, int64_t memory, std::vector<Run>& runs) const {
  const ChainIndex index{model_.stages};
  const int64_t wanted = chain::cost_at(curve(first, last), memory);
  Way best;
  bool found = false;
  for_each_way(first, last, [&](const Way& way) {
    if (found || way.from > memory) return;
    int64_t time = way.time;
    const auto add = [&](size_t from, size_t to, int64_t less) {
      const int64_t part = chain::cost_at(curve(from, to), memory - less);
      time = part == kInfeasible || time == kInfeasible ? kInfeasible : time + part;
    };
    if (way.at > first) add(first, way.at - 1, way.left);
    if (way.at > first) add(way.at, last, way.right);
    if (way.at == first && first < last) add(first + 1, last, way.right);
    if (time != wanted) return;
    best = way;
    found = true;
  });
  if (!found) throw InternalError("a segment's table holds a plan that cannot be traced");
  if (best.at == first) {
    const auto option = static_cast<int32_t>(best.option);
    runs.push_back({index.forward(first), option + 1});
    if (first < last) trace(first + 1, last, memory - best.right, runs);
    runs.push_back({index.backward(first), option});
    return;
  }
  for (size_t k = first; k < best.at; ++k) runs.push_back({index.forward(k), 0});
  trace(best.at, last, memory - best.right, runs);
  trace(first, best.at - 1, memory - best.left, runs);
}

}  // namespace reprise::internal::levels
