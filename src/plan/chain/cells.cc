#include "plan/chain/cells.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace reprise::internal::chain {
namespace {

// With more stages or cells, the cells alone take more than some 300 MB.
constexpr size_t kMostStages = 8000;
constexpr size_t kMostSlots = 6'000'000;

// Stages with equal parameters get equal numbers. Stage L is the loss.
std::vector<int32_t> stage_classes(const ChainModel& model) {
  std::map<std::vector<int64_t>, int32_t> known;
  std::vector<int32_t> classes;
  for (size_t i = 0; i < model.stages; ++i) {
    std::vector<int64_t> key{model.x[i + 1], model.g[i + 1], model.weights(i, i)};
    for (const SweepVariant& way : model.sweeps[i]) {
      key.insert(key.end(), {way.memory, way.cost, way.variant});
    }
    key.push_back(-1);
    for (const KeepOption& option : model.options[i]) {
      key.insert(key.end(), {option.saved, option.forward, option.backward, option.cost,
                             option.stopped_forward, option.stopped_cost, option.stopped_variant,
                             option.reads_input, option.reads_output});
    }
    classes.push_back(known.try_emplace(key, static_cast<int32_t>(known.size())).first->second);
  }
  classes.push_back(static_cast<int32_t>(known.size()));
  return classes;
}

// Boundaries with equal sizes get equal numbers. Boundary 0 differs from all others, because its
// bytes are never given back.
std::vector<int32_t> boundary_classes(const ChainModel& model) {
  std::map<std::pair<int64_t, int64_t>, int32_t> known;
  std::vector<int32_t> classes{0};
  for (size_t k = 1; k <= model.stages; ++k) {
    const auto number = static_cast<int32_t>(known.size() + 1);
    classes.push_back(known.try_emplace({model.x[k], model.g[k]}, number).first->second);
  }
  return classes;
}

// A Repeat says where the longest common part of two suffixes first begins, and how long it is.
struct Repeat {
  size_t first = 0;
  size_t length = 0;
};

// Finds for each stage the longest repeat among all earlier stages behind an equal boundary. O(L^2)
// time, O(L) memory.
std::vector<Repeat> longest_repeats(const std::vector<int32_t>& stages,
                                    const std::vector<int32_t>& boundaries) {
  std::vector<Repeat> repeats(stages.size());
  std::vector<size_t> common(stages.size() +
                             1);  // common part of the suffixes from `second` and from here
  for (size_t second = stages.size(); second-- > 0;) {
    Repeat& longest = repeats[second];
    // common[first + 1] still belongs to second + 1.
    for (size_t first = 0; first < second; ++first) {
      common[first] = stages[first] == stages[second] ? common[first + 1] + 1 : 0;
      if (boundaries[first] == boundaries[second] && common[first] > longest.length) {
        longest = {first, common[first]};
      }
    }
  }
  return repeats;
}

// If most stages differ, most cells differ, and their number is known beforehand.
bool may_fit(const ChainModel& model) {
  const std::vector<int32_t> classes = stage_classes(model);
  const size_t different = static_cast<size_t>(classes.back());  // without the class of the loss
  return different * 2 < model.stages || model.stages * model.stages < kMostSlots;
}

}  // namespace

ChainCells::ChainCells(const ChainModel& model, bool share, Schedules schedules)
    : schedules_(schedules) {
  if (model.stages > kMostStages || !may_fit(model)) return;
  size_t cells = 0;
  for (size_t i = 0; i <= model.stages; ++i) {
    row_.push_back(cells);
    cells += model.stages - i + 1;
    depends_on_pin_.push_back(model.depends_on_pin(i));
  }
  classes_.resize(cells);
  if (classify(model, share)) list_cells(model);
}

// A segment is equal to an earlier one if that is so without its last stage, and for that stage.
ChainCells::ChainCells(const ChainModel& model, size_t longest)
    : longest_(std::max<size_t>(1, longest)), schedules_(Schedules::kPersistent), shared_(true) {
  const std::vector<int32_t> stages = stage_classes(model), boundaries = boundary_classes(model);
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  base_.push_back(0);
  for (size_t first = 0; first < model.stages; ++first) {
    row_.push_back(classes_.size());
    depends_on_pin_.push_back(model.depends_on_pin(first));
    int32_t shorter = -1 - boundaries[first];
    for (size_t last = first; last < std::min(model.stages, first + longest_); ++last) {
      const auto next = static_cast<int32_t>(base_.size() - 1);
      const auto [found, is_new] = known.try_emplace({shorter, stages[last]}, next);
      if (is_new) base_.push_back(base_.back() + 2);
      classes_.push_back(shorter = found->second);
    }
  }
  list_cells(model);
}

// A segment is equal to an earlier one if it is not longer than the longest common part of the
// stages from its first one on and from an earlier one on, behind an equal boundary. Returns false
// if there are too many different segments.
bool ChainCells::classify(const ChainModel& model, bool share) {
  std::vector<Repeat> repeats(model.stages + 1);
  if (share) repeats = longest_repeats(stage_classes(model), boundary_classes(model));
  base_.push_back(0);
  for (size_t first = 0; first <= model.stages; ++first) {
    const Repeat& repeat = repeats[first];
    int32_t* classes = &classes_[row_[first]];
    std::copy_n(&classes_[row_[repeat.first]], repeat.length, classes);
    shared_ = shared_ || repeat.length > 0;
    for (size_t last = first + repeat.length; last <= model.stages; ++last) {
      classes[last - first] = static_cast<int32_t>(base_.size() - 1);
      const bool drops = schedules_ == Schedules::kDroppedInputs && last < model.stages;
      base_.push_back(base_.back() + 2 + (drops ? 2 * model.options[last].size() : 0));
      if (base_.back() > kMostSlots) return false;
    }
  }
  return true;
}

// A segment behind a checkpoint is unpinned. A segment after a kept stage is pinned if an option of
// that stage reads its output. The whole chain's input is pinned. Dropping an input pays only if
// the backward reads it and another stage follows.
void ChainCells::list_cells(const ChainModel& model) {
  std::vector<bool> listed(slots(), false);
  const auto list = [&](size_t first, size_t last, bool pinned, int option) {
    const size_t where = slot(first, last, pinned, option);
    if (listed[where]) return;
    listed[where] = true;
    order_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last),
                      static_cast<int32_t>(where), static_cast<int16_t>(option), pinned});
  };
  const auto list_both = [&](size_t first, size_t last, bool pinned) {
    list(first, last, pinned, -1);
    if (schedules_ != Schedules::kDroppedInputs || last == model.stages) return;
    for (size_t o = 0; o < model.options[last].size(); ++o) {
      if (model.options[last][o].reads_input) list(first, last, pinned, static_cast<int>(o));
    }
  };
  const auto reads_output = [](const KeepOption& option) { return option.reads_output; };
  const size_t end = longest_ > 0 ? model.stages : model.stages + 1;
  for (size_t first = 0; first < end; ++first) {
    const bool pinned =
        longest_ > 0 || first == 0 ||
        std::any_of(model.options[first - 1].begin(), model.options[first - 1].end(), reads_output);
    const size_t behind = longest_ > 0 ? std::min(end, first + longest_) : end;
    for (size_t last = first; last < behind; ++last) {
      if (first > 0) list_both(first, last, false);
      if (pinned) list_both(first, last, true);
    }
  }
  sort_by_length(model.stages);
}

// The sort keeps the order of the cells of one length.
void ChainCells::sort_by_length(size_t stages) {
  length_ends_.assign(stages + 2, 0);
  for (const Cell& cell : order_) ++length_ends_[cell.length() + 1];
  std::partial_sum(length_ends_.begin(), length_ends_.end(), length_ends_.begin());
  std::vector<Cell> sorted(order_.size());
  for (const Cell& cell : order_) sorted[length_ends_[cell.length()]++] = cell;
  length_ends_.pop_back();
  order_ = std::move(sorted);
}

}  // namespace reprise::internal::chain
