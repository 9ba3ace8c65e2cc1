#include "plan/place/levels/choices.h"

#include <algorithm>
#include <optional>

namespace reprise::internal::levels {

Choices choices_of(const Graph& graph, const ChainIndex& index, const std::vector<Run>& runs) {
  Choices choices(index.stages);
  // A boundary is stored if a run behind the loss reads it before any run writes it.
  std::vector<char> written(index.stages, 0);
  bool before_loss = true;
  for (const Run& run : runs) {
    if (run.op == index.loss()) before_loss = false;
    const auto op = static_cast<size_t>(run.op);
    if (before_loss) {
      choices[op].option = run.variant == 0 ? kSwept : run.variant - 1;
      continue;
    }
    const Variant& variant = graph.ops[op].variants[run.variant];
    const auto boundary = [&](ValueIndex v) { return static_cast<size_t>(v) < index.stages; };
    for (const ValueIndex v : variant.reads) {
      if (boundary(v) && !written[v]) choices[v].cut = 1;
    }
    for (const ValueIndex v : variant.writes) {
      if (boundary(v)) written[v] = 1;
    }
  }
  return choices;
}

Scheduler::Scheduler(const chain::ChainModel& model, const schedule::ScheduleModel& graph,
                     Segments& segments, int64_t memory)
    : model_(model), graph_(graph), segments_(segments), memory_(memory), index_{model.stages} {
  auto next = static_cast<ValueIndex>(2 * (model.stages + 1) + model.stages);
  for (const auto& options : model.options) {
    first_saved_.push_back(next);
    next += static_cast<ValueIndex>(options.size());
  }
  for (ValueIndex v = 0; v < next; ++v) around_loss_.push_back(graph.interval_at(v, index_.loss()));
}

bool Scheduler::stored(const Choices& choices, size_t k) const {
  if (k == 0) return false;  // x_0 is the caller's.
  const auto option = [&](size_t stage) -> const chain::KeepOption* {
    const int32_t chosen = choices[stage].option;
    return chosen == kSwept ? nullptr : &model_.options[stage][chosen];
  };
  const chain::KeepOption* before = option(k - 1);
  if (before != nullptr && before->reads_output) return true;
  if (k == model_.stages) return false;
  const chain::KeepOption* here = option(k);
  if (here != nullptr) return here->reads_input;
  return before != nullptr || choices[k].cut != 0;
}

// A run stands where the next backward does, which it serves.
void Scheduler::add_segment(const std::vector<Run>& runs, Schedule& schedule) const {
  for (const Run& run : runs) add(run, run.op, schedule);
  std::vector<int32_t>& positions = schedule.runs.positions;
  for (size_t r = positions.size(); r-- > positions.size() - runs.size();) {
    if (positions[r] < index_.loss()) positions[r] = positions[r + 1];
  }
}

void Scheduler::move(ValueIndex value, int32_t lane, Schedule& schedule) const {
  const int32_t interval = around_loss_[value];
  if (interval >= 0) schedule.lanes[interval] = static_cast<int8_t>(lane);
}

std::optional<size_t> Scheduler::step_of(const Choices& choices, const Piece& piece) const {
  const size_t first = piece.first, last = piece.end - 1;
  const int64_t input = first == 0 ? 0 : model_.x[first];
  // Gradients of weights behind the segment are there already.
  const int64_t room =
      memory_ - piece.held - input -
      (piece.end < model_.stages ? model_.weights(piece.end, model_.stages - 1) : 0);
  const chain::CurveView curve = segments_.curve(first, last);
  const auto fitting =
      std::upper_bound(curve.begin(), curve.end(), room,
                       [](int64_t bytes, const chain::CurvePoint& s) { return bytes < s.memory; });
  const auto fit = fitting - curve.begin();
  if (fit == 0) return std::nullopt;
  return static_cast<size_t>(std::max<int64_t>(0, fit - 1 - choices[first].dearer));
}

bool Scheduler::make(const Choices& choices, Schedule& schedule) {
  const size_t stages = model_.stages;
  schedule.runs.op_variants.clear();
  schedule.runs.positions.clear();
  schedule.lanes.assign(graph_.intervals().size(), kStays);
  pieces_.clear();
  int64_t held = 0;
  for (size_t i = 0; i < stages;) {
    if (i > 0 && stored(choices, i)) {
      move(index_.activation(i), choices[i].input_lane, schedule);
      if (choices[i].input_lane == kStays) held += model_.x[i];
    }
    if (choices[i].option == kSwept) {
      size_t end = i + 1;
      while (end < stages && choices[end].option == kSwept && choices[end].cut == 0) ++end;
      if (end - i > segments_.window()) return false;
      // The input counts for itself, wherever it is kept meanwhile.
      const bool counted = i > 0 && choices[i].input_lane == kStays;
      pieces_.push_back({i, end, held - (counted ? model_.x[i] : 0)});
      for (; i < end; ++i) add({index_.forward(i), 0}, index_.forward(i), schedule);
      continue;
    }
    const int32_t option = choices[i].option;
    pieces_.push_back({i, i + 1, held});
    add({index_.forward(i), option + 1}, index_.forward(i), schedule);
    move(first_saved_[i] + option, choices[i].saved_lane, schedule);
    if (choices[i].saved_lane == kStays) {
      held += model_.options[i][option].saved;
    }
    ++i;
  }
  add({index_.loss(), 0}, index_.loss(), schedule);
  for (size_t p = pieces_.size(); p-- > 0;) {
    const Piece& piece = pieces_[p];
    const int32_t option = choices[piece.first].option;
    if (option != kSwept) {
      add({index_.backward(piece.first), option}, index_.backward(piece.first), schedule);
      continue;
    }
    const std::optional<size_t> step = step_of(choices, piece);
    if (!step) return false;
    add_segment(segments_.runs(piece.first, piece.end - 1, *step), schedule);
  }
  return true;
}

}  // namespace reprise::internal::levels
