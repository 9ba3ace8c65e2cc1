#include "oracle/persistent.h"

#include <algorithm>

#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"

namespace reprise::testing {
namespace {

class Generator {
 public:
  Generator(const Chain& chain, size_t limit)
      : chain_(chain),
        graph_(lower(chain)),
        index_{chain.stages.size()},
        limit_(limit),
        stored_(chain.stages.size() + 1, false),
        kept_(chain.stages.size(), -1) {}

  bool run() {
    stored_[0] = true;
    pass(0, index_.stages, true);
    return count_ <= limit_;
  }

  std::vector<PeakAndTime> found;

 private:
  // Goes on from stage k in a pass that ends at stage `end`; the number of stages stands for the
  // loss. x_k is live, and it must be stored if stage k is swept and `must_store`.
  void pass(size_t k, size_t end, bool must_store) {
    if (count_ > limit_) return;
    if (k == index_.stages) {
      runs_.push_back({index_.loss(), 0});
      reverse_from(k);
      runs_.pop_back();
      return;
    }
    keep(k, end);
    if (k == end) return;  // its backward is next: sweeping it would lead nowhere
    const bool was_stored = stored_[k];
    for (const int32_t variant : sweep_variants(k)) {
      runs_.push_back({index_.forward(k), variant});
      stored_[k] = true;
      pass(k + 1, end, false);
      stored_[k] = was_stored;
      if (!must_store) pass(k + 1, end, false);
      runs_.pop_back();
    }
  }

  void keep(size_t k, size_t end) {
    const bool was_stored = stored_[k];
    for (size_t o = 0; o < chain_.stages[k].options.size(); ++o) {
      kept_[k] = static_cast<int32_t>(o);
      stored_[k] = false;
      runs_.push_back({index_.forward(k), kept_[k] + 1});
      if (k == end) {
        reverse_from(k + 1);
      } else {
        pass(k + 1, end, true);
      }
      runs_.pop_back();
      stored_[k] = was_stored;
      kept_[k] = -1;
    }
  }

  // Everything from stage `end` on is reversed. Runs the backwards that can run, then the next
  // pass.
  void reverse_from(size_t end) {
    const size_t before = runs_.size();
    size_t next = end;
    while (next > 0 && kept_[next - 1] >= 0) {
      --next;
      runs_.push_back({index_.backward(next), kept_[next]});
    }
    if (next == 0) {
      record();
    } else {
      size_t start = next - 1;
      while (!stored_[start]) --start;
      // Stages that were reversed stay marked as kept while the recursion is below. Nothing looks
      // at them there.
      pass(start, next - 1, true);
    }
    runs_.resize(before);
  }

  // Returns all variants but two kinds: those that another one beats in both time and memory, and
  // those that give back the input, which is stored or may be.
  std::vector<int32_t> sweep_variants(size_t k) const {
    const std::vector<Variant>& all = graph_.ops[k].variants;
    const auto memory = [&](const Variant& variant) {
      int64_t sum = variant.workspace.count();
      for (const ValueIndex value : variant.writes) {
        sum += graph_.values[static_cast<size_t>(value)].bytes.count();
      }
      return sum;
    };
    std::vector<int32_t> variants;
    for (size_t v = 0; v < all.size(); ++v) {
      bool beaten = !all[v].consumes.empty();
      for (size_t other = 0; other < all.size(); ++other) {
        if (!all[other].consumes.empty()) continue;
        const bool no_worse =
            all[other].time <= all[v].time && memory(all[other]) <= memory(all[v]);
        const bool better = all[other].time < all[v].time || memory(all[other]) < memory(all[v]);
        beaten = beaten || (no_worse && (better || other < v));
      }
      if (!beaten) variants.push_back(static_cast<int32_t>(v));
    }
    return variants;
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
  std::vector<Run> runs_;
  std::vector<bool> stored_;
  std::vector<int32_t> kept_;
};

}  // namespace

std::optional<std::vector<PeakAndTime>> persistent_frontier(const Chain& chain, size_t limit) {
  Generator generator(chain, limit);
  if (!generator.run()) return std::nullopt;
  std::vector<PeakAndTime>& all = generator.found;
  std::sort(all.begin(), all.end(), [](const PeakAndTime& a, const PeakAndTime& b) {
    return a.peak != b.peak ? a.peak < b.peak : a.time < b.time;
  });
  std::vector<PeakAndTime> best;
  for (const PeakAndTime& point : all) {
    if (best.empty() || point.time < best.back().time) best.push_back(point);
  }
  return best;
}

std::optional<int64_t> best_within(const std::vector<PeakAndTime>& frontier, int64_t budget) {
  std::optional<int64_t> best;
  for (const PeakAndTime& point : frontier) {
    if (point.peak <= budget) best = point.time;
  }
  return best;
}

}  // namespace reprise::testing
