#include "plan/place/levels/choices.h"

#include <algorithm>
#include <optional>

namespace reprise::internal::levels {

Choices keep_everything(size_t stages) {
  return {.option = std::vector<int32_t>(stages, 0),
          .cut = std::vector<int32_t>(stages + 1, 0),
          .saved_lane = std::vector<int32_t>(stages, kStays),
          .input_lane = std::vector<int32_t>(stages + 1, kStays),
          .dearer = std::vector<int32_t>(stages, 0)};
}

Choices choices_of(const Graph& graph, const ChainIndex& index, const std::vector<Run>& runs) {
  Choices choices = keep_everything(index.stages);
  // A boundary is stored if a run behind the loss reads it before any run writes it.
  std::vector<char> written(index.stages + 1, 0);
  bool before_loss = true;
  for (const Run& run : runs) {
    if (run.op == index.loss()) before_loss = false;
    const auto op = static_cast<size_t>(run.op);
    if (before_loss) {
      choices.option[op] = run.variant == 0 ? kSwept : run.variant - 1;
      continue;
    }
    const Variant& variant = graph.ops[op].variants[static_cast<size_t>(run.variant)];
    const auto boundary = [&](ValueIndex v) { return static_cast<size_t>(v) <= index.stages; };
    for (const ValueIndex v : variant.reads) {
      if (boundary(v) && !written[static_cast<size_t>(v)]) choices.cut[static_cast<size_t>(v)] = 1;
    }
    for (const ValueIndex v : variant.writes) {
      if (boundary(v)) written[static_cast<size_t>(v)] = 1;
    }
  }
  return choices;
}

Scheduler::Scheduler(const chain::ChainModel& model, Segments& segments, int64_t memory)
    : model_(model), segments_(segments), memory_(memory), index_{model.stages} {
  auto next = static_cast<ValueIndex>(2 * (model.stages + 1) + model.stages);
  for (const auto& options : model.options) {
    first_saved_.push_back(next);
    next += static_cast<ValueIndex>(options.size());
  }
  values_ = static_cast<size_t>(next);
}

bool Scheduler::stored(const Choices& choices, size_t k) const {
  if (k == 0) return false;  // x_0 is the caller's.
  const auto option = [&](size_t stage) -> const chain::KeepOption* {
    const int32_t chosen = choices.option[stage];
    return chosen == kSwept ? nullptr : &model_.options[stage][static_cast<size_t>(chosen)];
  };
  const chain::KeepOption* before = option(k - 1);
  if (before != nullptr && before->reads_output) return true;
  if (k == model_.stages) return false;
  const chain::KeepOption* here = option(k);
  if (here != nullptr) return here->reads_input;
  return before != nullptr || choices.cut[k] != 0;
}

bool Scheduler::make(const Choices& choices, Schedule& schedule) {
  const size_t stages = model_.stages;
  schedule.runs.clear();
  schedule.lane_of.assign(values_, kStays);
  pieces_.clear();
  int64_t held = 0;
  for (size_t i = 0; i < stages;) {
    if (i > 0 && stored(choices, i)) {
      schedule.lane_of[static_cast<size_t>(index_.activation(i))] =
          static_cast<int8_t>(choices.input_lane[i]);
      if (choices.input_lane[i] == kStays) held += model_.x[i];
    }
    if (choices.option[i] == kSwept) {
      size_t end = i + 1;
      while (end < stages && choices.option[end] == kSwept && choices.cut[end] == 0) ++end;
      if (end - i > segments_.window()) return false;
      // The input counts for itself, wherever it is kept meanwhile.
      const bool counted = i > 0 && choices.input_lane[i] == kStays;
      pieces_.push_back({i, end, held - (counted ? model_.x[i] : 0)});
      for (; i < end; ++i) schedule.runs.push_back({index_.forward(i), 0});
      continue;
    }
    const int32_t option = choices.option[i];
    pieces_.push_back({i, i + 1, held});
    schedule.runs.push_back({index_.forward(i), option + 1});
    const auto saved = static_cast<size_t>(saved_value(i, static_cast<size_t>(option)));
    schedule.lane_of[saved] = static_cast<int8_t>(choices.saved_lane[i]);
    if (choices.saved_lane[i] == kStays) {
      held += model_.options[i][static_cast<size_t>(option)].saved;
    }
    ++i;
  }
  schedule.runs.push_back({index_.loss(), 0});
  for (size_t p = pieces_.size(); p-- > 0;) {
    const Piece& piece = pieces_[p];
    const int32_t option = choices.option[piece.first];
    if (option != kSwept) {
      schedule.runs.push_back({index_.backward(piece.first), option});
      continue;
    }
    const size_t first = piece.first, last = piece.end - 1;
    const int64_t input = first == 0 ? 0 : model_.x[first];
    // Gradients of weights behind the segment are there already.
    const int64_t room = memory_ - piece.held - input -
                         (piece.end < stages ? model_.weights(piece.end, stages - 1) : 0);
    const chain::CurveView curve = segments_.curve(first, last);
    const auto fitting = std::upper_bound(
        curve.begin(), curve.end(), room,
        [](int64_t bytes, const chain::CurvePoint& s) { return bytes < s.memory; });
    const auto fit = fitting - curve.begin();
    if (fit == 0) return false;
    const auto step = std::max<int64_t>(0, fit - 1 - choices.dearer[first]);
    const std::vector<Run>& runs = segments_.runs(first, last, static_cast<size_t>(step));
    schedule.runs.insert(schedule.runs.end(), runs.begin(), runs.end());
  }
  return true;
}

}  // namespace reprise::internal::levels
