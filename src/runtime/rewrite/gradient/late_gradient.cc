// Some gradients are made long before they are read, and are larger than the values that they are
// made from:
// - Gradients of weights, where activations are small, as in the last layers of a convolutional
//   network: no call reads them before the step is over.
// - The gradient of the input of a shortcut, in a residual block that changes the number of
//   channels: autograd runs the backward of the shortcut first and keeps its result until the other
//   branch has come to the same place.
// The same op leaves the same bits when it runs right before its result is read, or at the end of
// the step. Until then only its operands have to stay. P. Qi et al., "Zero Bubble Pipeline
// Parallelism", ICLR 2024 (arXiv 2401.10241), fill pipelines by the same fact: gradients of weights
// can wait, and those of activations cannot.
#include <algorithm>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

using step::values_read;

namespace {

// The least number of calls by which the work moves. Over a shorter distance there is no peak to
// avoid.
constexpr int32_t kLeastDistance = 4;

class Lateness {
 public:
  explicit Lateness(const Rewriter& rewriter)
      : rewriter_(rewriter),
        end_(static_cast<int32_t>(rewriter.recording().calls.size())),
        overwritten_(rewriter.recording().values.size(), -1) {
    const Recording& recording = rewriter.recording();
    for (size_t v = 0; v < recording.values.size(); ++v) {
      const StepValue& value = recording.values[v];
      if (value.previous >= 0) overwritten_[value.previous] = value.maker;
    }
  }

  // Returns the call after which the work of call c can run just as well, with fewer bytes held
  // until then; -1 if there is none.
  int32_t place_for(const Work& work, int32_t c) const {
    if (!can_wait(work)) return -1;
    const int32_t place = first_reader(work) - 1;
    if (place < c + kLeastDistance || place >= first_overwrite(work, c)) return -1;
    int64_t gain = 0;
    for (const Work::Made& made : work.made) gain += bytes(made.value);
    for (const int32_t v : values_read(work)) {
      if (last_reader_but(v, c) <= place) gain -= bytes(v);
    }
    return rewriter_.is_worthwhile(gain) ? place : -1;
  }

 private:
  // Returns whether nothing but its results depends on when the work runs. No update may consume
  // the results at once, and the work may not read a parameter that an update changes.
  bool can_wait(const Work& work) const {
    if (work.made.empty() || !work.overwrites.empty() || !work.effects.empty()) return false;
    for (const Work::Made& made : work.made) {
      if (rewriter_.is_used_up(made.value)) return false;
    }
    if (rewriter_.reads_written(work)) return false;
    for (const Argument& argument : work.arguments) {
      if (argument.shape_only) continue;
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kExternal && rewriter_.is_updated(ref.index)) return false;
      }
    }
    return true;
  }

  int32_t first_reader(const Work& work) const {
    int32_t first = end_;
    for (const Work::Made& made : work.made) {
      const auto& readers = rewriter_.readers(made.value);
      if (!readers.empty()) first = std::min(first, readers.front());
    }
    return first;
  }

  // Returns the first call after c that overwrites a value that the work reads.
  int32_t first_overwrite(const Work& work, int32_t c) const {
    int32_t first = end_;
    for (const int32_t v : values_read(work)) {
      const int32_t at = overwritten_[v];
      if (at > c) first = std::min(first, at);
    }
    return first;
  }

  int32_t last_reader_but(int32_t value, int32_t c) const {
    if (rewriter_.is_result(value)) return end_;
    const auto& readers = rewriter_.readers(value);
    const auto other =
        std::find_if(readers.rbegin(), readers.rend(), [&](int32_t reader) { return reader != c; });
    return other == readers.rend() ? -1 : *other;
  }

  int64_t bytes(int32_t value) const { return rewriter_.recording().values[value].bytes; }

  const Rewriter& rewriter_;
  const int32_t end_;                 // the position after all calls
  std::vector<int32_t> overwritten_;  // by value: the call that writes over it; -1: none
};

// Adds the realization with some of its pieces late: those whose bits in `which` are set. Adds
// nothing if one of these pieces has no later place.
void add_late(Rewriter& rewriter, const Lateness& lateness, CallRealization realization,
              size_t which) {
  realization.name = "late-gradient";
  for (size_t k = 0; k < realization.pieces.size(); ++k) {
    if ((which >> k & 1) == 0) continue;
    CallRealization::Piece& piece = realization.pieces[k];
    piece.after = lateness.place_for(rewriter.work(piece.works.front()), piece.after);
    if (piece.after < 0) return;
    piece.name = piece.name.empty() ? "late" : "late." + piece.name;
  }
  rewriter.add(std::move(realization));
}

// Adds the realization of a codec with its one reader late: what is decoded exists at the later place
// only.
void add_late_decoded(Rewriter& rewriter, const Lateness& lateness, CallRealization realization) {
  if (realization.calls.size() != 1) return;
  const int32_t c = realization.calls[0];
  const int32_t place = lateness.place_for(rewriter.work(c), c);
  if (place < 0) return;
  realization.name += "+late-gradient";
  for (CallRealization::Piece& piece : realization.pieces) {
    if (piece.after < c) continue;  // It encodes in the forward.
    piece.after = place;
    piece.name = "late." + piece.name;
  }
  rewriter.add(std::move(realization));
}

}  // namespace

void late_gradient(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  const Lateness lateness(rewriter);
  std::vector<bool> has_others(recording.calls.size(), false);
  const std::vector<CallRealization> before = rewriter.found().realizations;
  for (const CallRealization& realization : before) {
    if (realization.exactness == Exactness::kApproximate) {
      add_late_decoded(rewriter, lateness, realization);
      continue;
    }
    for (const int32_t c : realization.calls) has_others[c] = true;
    if (realization.name != "two-call-convolution") continue;
    for (const size_t which : {1, 2, 3}) add_late(rewriter, lateness, realization, which);
  }
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    if (call.phase != Phase::kBackward || call.random || has_others[c]) continue;
    const auto position = static_cast<int32_t>(c);
    add_late(rewriter, lateness,
             {.calls = {position}, .pieces = {{"", position, {position}, {"default"}}}}, 1);
  }
}

}  // namespace reprise::runtime::internal::rewrite
