#include "oracle/floating.h"

#include <cstdint>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"

namespace reprise::testing {
namespace {

class FloatingSchedules {
 public:
  FloatingSchedules(const Chain& chain, size_t limit)
      : chain_(chain),
        graph_(lower(chain)),
        index_{chain.stages.size()},
        limit_(limit),
        stored_(chain.stages.size() + 1, kNot),
        kept_(chain.stages.size(), -1) {}

  bool run() {
    stored_[0] = kFixed;
    pass(0, 0, chain_.stages.size(), true);
    return count_ <= limit_;
  }

  std::vector<PeakAndTime> found;

 private:
  enum Stored { kNot, kFree, kFixed };  // an activation that is stored free may be given up

  // Goes on from stage k of a pass that began at `start`. The pass ends with the forward of stage
  // `end`, or with the loss. With `fixed`, a kept stage has left x_k behind.
  void pass(size_t start, size_t k, size_t end, bool fixed) {
    if (count_ > limit_) return;
    if (k == index_.stages) {
      runs_.push_back({index_.loss(), 0});
      reverse(k);
      runs_.pop_back();
      return;
    }
    const Stored before = stored_[k];
    keep(k, k == end, [&] { k == end ? reverse(k + 1) : pass(start, k + 1, end, true); });
    if (k == end) return;
    for (const int32_t variant : sweep_variants(graph_, index_.forward(k), chain_.stages[k])) {
      runs_.push_back({index_.forward(k), variant});
      const Stored staying = fixed || before == kFixed ? kFixed : kFree;
      stored_[k] = staying;
      pass(start, k + 1, end, false);
      if (staying == kFree) {
        stored_[k] = kNot;
        pass(start, k + 1, end, false);
      }
      stored_[k] = before;
      runs_.pop_back();
    }
  }

  template <class GoOn>
  void keep(size_t k, bool stops, const GoOn& go_on) {
    const Stored before = std::exchange(stored_[k], kNot);
    for (size_t o = 0; o < chain_.stages[k].options.size(); ++o) {
      kept_[k] = static_cast<int32_t>(o);
      runs_.push_back(
          {index_.forward(k), stops ? stopped_variant(chain_.stages[k], o) : kept_[k] + 1});
      go_on();
      runs_.pop_back();
      kept_[k] = -1;
    }
    stored_[k] = before;
  }

  // Runs the backwards of the kept stages in front of `end`, then the next pass.
  void reverse(size_t end) {
    const size_t before = runs_.size();
    const std::vector<Stored> stored = stored_;
    size_t next = end;
    stored_[next] = kNot;
    while (next > 0 && kept_[next - 1] >= 0) {
      --next;
      runs_.push_back({index_.backward(next), kept_[next]});
      stored_[next] = kNot;
    }
    if (next == 0) {
      record();
    } else {
      size_t start = next - 1;
      while (stored_[start] == kNot) --start;
      const bool fixed = stored_[start] == kFixed;
      pass(start, start, next - 1, fixed);
    }
    runs_.resize(before);
    stored_ = stored;
  }

  void record() {
    if (++count_ > limit_) return;
    const Timeline timeline = simulate(graph_, with_frees(graph_, runs_));
    found.push_back({timeline.peak.count(), timeline.time.count()});
  }

  const Chain& chain_;
  Graph graph_;
  ChainIndex index_;
  size_t limit_;
  size_t count_ = 0;
  std::vector<reprise::Run> runs_;
  std::vector<Stored> stored_;
  std::vector<int32_t> kept_;
};

}  // namespace

std::optional<std::vector<PeakAndTime>> floating_frontier(const Chain& chain, size_t limit) {
  FloatingSchedules schedules(chain, limit);
  if (!schedules.run()) return std::nullopt;
  return unbeaten(std::move(schedules.found));
}

}  // namespace reprise::testing
