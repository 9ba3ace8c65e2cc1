#include "plan/join/labels.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace reprise::internal::join {

using common::SearchControl;

namespace {

constexpr size_t kMostStates = 4'000'000;
constexpr size_t kMostLabels = 8'000'000;
constexpr uint32_t kNone = UINT32_MAX;

// A Place is the boundary up to which a branch is put together, and whether the stage below reads
// that activation in its backward.
struct Place {
  size_t boundary = 0;
  bool pinned = true;
};

struct Label {
  int64_t time = 0;
  int64_t total = 0;                             // held by all branches
  std::array<int64_t, kMostBranches> held = {};  // by branch, without an activation not pinned
  // By branch: the most bytes that it holds on the way to the loss. A later branch also has those
  // of the branches before it, which are known at the end only.
  std::array<int64_t, kMostBranches> forward = {};
  uint32_t below = kNone;
  uint32_t state = 0;  // of this label
  uint8_t branch = 0;  // the step that led here
  Piece piece;
};

class LabelSearch {
 public:
  LabelSearch(const std::vector<std::unique_ptr<BranchPieces>>& branches, const LossLevel& loss,
              const Precedence& precedence, const LabelLimits& limits, SearchControl& control)
      : branches_(branches), precedence_(precedence), limits_(limits), control_(control) {
    for (const auto& branch : branches_) {
      strides_.push_back(states_);
      const size_t places = 2 * (branch->stages() + 1);
      states_ = states_ > kMostStates / places ? kMostStates + 1 : states_ * places;
      const size_t end = branch->stages();
      loss_need_ += branch->pending(end);
      least_loss_ += branch->pending(end);
      if (loss.consumes) loss_need_ -= branch->activation(end);
    }
    loss_need_ += loss.workspace;
    least_loss_ += loss.workspace;
  }

  LabelResult run() {
    LabelResult result;
    if (states_ > kMostStates) return result;
    by_state_.resize(states_);
    const uint32_t start = std::accumulate(strides_.begin(), strides_.end(), uint32_t{0},
                                           [](uint32_t sum, size_t stride) {
                                             return sum + static_cast<uint32_t>(stride);
                                           });  // every branch at boundary 0, pinned
    arena_.emplace_back().state = start;
    by_state_[start].push_back(0);
    for (size_t state = 0; state < states_; ++state) {
      if (by_state_[state].empty()) continue;
      const std::vector<Place> places = places_of(state);
      keep_the_best(by_state_[state]);
      if (is_end(places)) {
        for (const uint32_t label : by_state_[state]) finish(label, places);
      } else {
        for (const uint32_t label : by_state_[state]) extend(label, places);
      }
      std::vector<uint32_t>().swap(by_state_[state]);
      if (control_.out_of_time() || arena_.size() > kMostLabels) break;
      control_.report(static_cast<double>(state) / static_cast<double>(states_));
    }
    result.complete = !control_.out_of_time() && arena_.size() <= kMostLabels;
    result.memory = Bytes(
        static_cast<int64_t>(arena_.capacity() * sizeof(Label) + states_ * sizeof(by_state_[0])));
    if (best_ != kNone) {
      result.time = arena_[best_].time;
      result.steps = steps_to(best_);
    }
    return result;
  }

 private:
  std::vector<Place> places_of(size_t state) const {
    std::vector<Place> places;
    for (size_t b = 0; b < branches_.size(); ++b) {
      const size_t digit = state / strides_[b] % (2 * (branches_[b]->stages() + 1));
      places.push_back({digit / 2, digit % 2 == 1});
    }
    return places;
  }

  bool is_end(const std::vector<Place>& places) const {
    for (size_t b = 0; b < places.size(); ++b) {
      if (places[b].boundary < branches_[b]->stages()) return false;
    }
    return true;
  }

  // Returns the bytes in which a piece of this branch can be reversed, beyond what is held below:
  // the others wait with their gradients and what they hold.
  int64_t room(const Label& label, const std::vector<Place>& places, size_t branch) const {
    int64_t rest = limits_.memory - label.total;
    for (size_t b = 0; b < places.size(); ++b) {
      if (b != branch) rest -= branches_[b]->pending(places[b].boundary);
    }
    return rest;
  }

  bool is_better(const Label& a, const Label& b) const {
    if (a.time > b.time || a.total > b.total) return false;
    for (size_t k = 0; k + 1 < branches_.size(); ++k) {
      if (a.held[k] > b.held[k] || a.forward[k + 1] > b.forward[k + 1]) return false;
    }
    return true;
  }

  // Removes the labels that another one beats or equals in everything that counts later.
  void keep_the_best(std::vector<uint32_t>& labels) const {
    const auto order = [&](uint32_t a, uint32_t b) {
      const Label &x = arena_[a], &y = arena_[b];
      return std::tie(x.time, x.total, a) < std::tie(y.time, y.total, b);
    };
    std::sort(labels.begin(), labels.end(), order);
    size_t kept = 0;
    for (const uint32_t label : labels) {
      const bool beaten =
          std::any_of(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(kept),
                      [&](uint32_t other) { return is_better(arena_[other], arena_[label]); });
      if (!beaten) labels[kept++] = label;
    }
    labels.resize(kept);
  }

  void extend(uint32_t from, const std::vector<Place>& places) {
    for (size_t b = 0; b < branches_.size(); ++b) {
      const Place& place = places[b];
      if (place.boundary == branches_[b]->stages()) continue;
      const int64_t memory = room(arena_[from], places, b);
      branches_[b]->for_each_extension(place.boundary, place.pinned, memory,
                                       [&](const BranchPieces::Extension& extension) {
                                         if (may_stand(places, b, extension.piece.end))
                                           add(from, place, b, extension);
                                       });
    }
  }

  // Returns whether the branches before branch b stand high enough for it to stand at `end`.
  bool may_stand(const std::vector<Place>& places, size_t b, size_t end) const {
    const std::vector<size_t>& least = precedence_[b][end];
    for (size_t c = 0; c < b; ++c) {
      if (places[c].boundary < least[c]) return false;
    }
    return true;
  }

  void add(uint32_t from, const Place& place, size_t b, const BranchPieces::Extension& extension) {
    Label label = arena_[from];
    label.time += limits_.any_time ? 0 : extension.time;
    if (label.time >= limits_.time) return;
    const int64_t forward = label.held[b] + extension.forward;
    if (forward > limits_.memory) return;
    const int64_t more = extension.held + limits_.grid - 1;
    label.held[b] += more - more % limits_.grid;
    label.total += more - more % limits_.grid;
    if (label.total + least_loss_ > limits_.memory) return;
    // The loss tells as much as a forward that holds no more than it.
    if (b > 0) {
      label.forward[b] = std::max({label.forward[b], forward, label.held[b] + loss_need_});
    }
    const size_t digit = 2 * extension.piece.end + (extension.pinned ? 1 : 0);
    const size_t before = 2 * place.boundary + (place.pinned ? 1 : 0);
    label.state = static_cast<uint32_t>(arena_[from].state + (digit - before) * strides_[b]);
    label.below = from;
    label.branch = static_cast<uint8_t>(b);
    label.piece = extension.piece;
    by_state_[label.state].push_back(static_cast<uint32_t>(arena_.size()));
    arena_.push_back(label);
  }

  // Tests what only the whole plan tells: the forwards of the later branches, and the loss.
  void finish(uint32_t index, const std::vector<Place>& places) {
    const Label& label = arena_[index];
    int64_t before = 0;
    for (size_t b = 0; b < places.size(); ++b) {
      if (b > 0 && before + label.forward[b] > limits_.memory) return;
      before +=
          label.held[b] + (places[b].pinned ? 0 : branches_[b]->activation(places[b].boundary));
    }
    if (before + loss_need_ > limits_.memory) return;
    if (best_ == kNone || label.time < arena_[best_].time) best_ = index;
  }

  std::vector<Step> steps_to(uint32_t label) const {
    std::vector<Step> steps;
    for (; arena_[label].below != kNone; label = arena_[label].below) {
      const Label &top = arena_[label], &below = arena_[top.below];
      const std::vector<Place> places = places_of(below.state);
      steps.push_back({.branch = top.branch,
                       .piece = top.piece,
                       .pinned = places[top.branch].pinned,
                       .memory = room(below, places, top.branch)});
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  const std::vector<std::unique_ptr<BranchPieces>>& branches_;
  const Precedence& precedence_;
  const LabelLimits& limits_;
  SearchControl& control_;
  std::vector<size_t> strides_;
  size_t states_ = 1;
  int64_t loss_need_ = 0;   // bytes at the loss beyond what is held and the last activations
  int64_t least_loss_ = 0;  // bytes that it has beyond what is held
  std::vector<Label> arena_;
  std::vector<std::vector<uint32_t>> by_state_;
  uint32_t best_ = kNone;
};

}  // namespace

Precedence precedence_of(const Join& join) {
  Precedence least;
  for (size_t b = 0; b < join.branches.size(); ++b) {
    least.emplace_back(join.branches[b].stages.size() + 1, std::vector<size_t>(b));
  }
  for (const SharedWeights& uses : join.shared) {
    for (const StagePlace& use : uses) {
      for (const StagePlace& other : uses) {
        for (size_t k = use.stage + 1; other.branch < use.branch && k < least[use.branch].size();
             ++k) {
          size_t& boundary = least[use.branch][k][other.branch];
          boundary = std::max(boundary, other.stage + 1);
        }
      }
    }
  }
  return least;
}

LabelResult search_labels(const std::vector<std::unique_ptr<BranchPieces>>& branches,
                          const LossLevel& loss, const Precedence& precedence,
                          const LabelLimits& limits, SearchControl& control) {
  return LabelSearch(branches, loss, precedence, limits, control).run();
}

}  // namespace reprise::internal::join
