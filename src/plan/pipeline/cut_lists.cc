#include "plan/pipeline/cut_lists.h"

#include <algorithm>

namespace reprise::internal::pipeline {
namespace {

constexpr size_t kMostCuts = 20'000;
constexpr size_t kMostCaps = 64;

class CutLister {
 public:
  CutLister(PartCosts& costs, const common::SearchControl& control)
      : costs_(costs), control_(control), parts_(costs.parts()), stages_(costs.stages()) {}

  std::vector<CutChoice> list() {
    if (!costs_.given_cuts().empty()) {
      add(costs_.given_cuts());
    } else if (count_cuts() <= kMostCuts) {
      std::vector<size_t> cuts{0};
      extend(cuts);
    } else {
      add_by_cap();
    }
    std::ranges::stable_sort(choices_, {}, &CutChoice::least);
    return std::move(choices_);
  }

 private:
  void add(const std::vector<size_t>& cuts) {
    const Nanos least = costs_.least_time(cuts);
    if (least != kNoTime) choices_.push_back({cuts, least});
  }

  // Returns in how many ways the stages can be cut into parts: the binomial coefficient (stages -
  // 1) over (parts - 1). The count ends once it is above kMostCuts.
  size_t count_cuts() const {
    size_t count = 1;
    for (size_t q = 1; q < parts_; ++q) {
      count = count * (stages_ - q) / q;
      if (count > kMostCuts) return count;
    }
    return count;
  }

  void extend(std::vector<size_t>& cuts) {
    const size_t q = cuts.size() - 1;
    const bool last = q + 1 == parts_;
    for (size_t e = last ? stages_ : cuts.back() + 1; e + (parts_ - q - 1) <= stages_; ++e) {
      if (costs_.time(q, cuts.back(), e) == kNoTime) continue;
      cuts.push_back(e);
      if (last) {
        add(cuts);
      } else {
        extend(cuts);
      }
      cuts.pop_back();
    }
  }

  // Returns the times that a part can have, ascending: the caps that make a difference.
  std::vector<Nanos> list_caps() {
    std::vector<Nanos> caps;
    for (size_t q = 0; q < parts_; ++q) {
      for (size_t f = q; f < (q == 0 ? 1 : stages_) && !control_.out_of_time(); ++f) {
        for (size_t e = f + 1; e + (parts_ - q - 1) <= stages_; ++e) {
          if (q + 1 == parts_ && e < stages_) continue;
          const Nanos time = costs_.time(q, f, e);
          if (time != kNoTime) caps.push_back(time);
        }
      }
    }
    std::ranges::sort(caps);
    caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
    return caps;
  }

  // The least cap that has cuts at all comes first; those far above it are of no use.
  void add_by_cap() {
    const std::vector<Nanos> caps = list_caps();
    const auto least = std::ranges::partition_point(
        caps, [&](Nanos cap) { return !control_.out_of_time() && cuts_under(cap).empty(); });
    std::vector<size_t> before;
    for (auto cap = least; cap != caps.end(); ++cap) {
      if (control_.out_of_time() || cap - least >= static_cast<ptrdiff_t>(kMostCaps)) break;
      std::vector<size_t> cuts = cuts_under(*cap);
      if (cuts.empty() || cuts == before) continue;
      add(cuts);
      before = std::move(cuts);
    }
  }

  // Returns the cuts with the least sum of times of parts that are all within the cap, or nothing.
  std::vector<size_t> cuts_under(Nanos cap) {
    std::vector<Nanos> best(stages_ + 1, kNoTime);
    best[0] = Nanos(0);
    std::vector<std::vector<size_t>> from(parts_, std::vector<size_t>(stages_ + 1, 0));
    for (size_t q = 0; q < parts_; ++q) {
      std::vector<Nanos> next(stages_ + 1, kNoTime);
      for (size_t e = q + 1; e + (parts_ - q - 1) <= stages_; ++e) {
        for (size_t f = q; f < e; ++f) {
          const Nanos time = best[f] == kNoTime ? kNoTime : costs_.time(q, f, e);
          if (time == kNoTime || time > cap || best[f] + time >= next[e]) continue;
          next[e] = best[f] + time;
          from[q][e] = f;
        }
      }
      best = std::move(next);
    }
    if (best[stages_] == kNoTime) return {};
    std::vector<size_t> cuts(parts_ + 1, stages_);
    for (size_t q = parts_; q-- > 0;) cuts[q] = from[q][cuts[q + 1]];
    return cuts;
  }

  PartCosts& costs_;
  const common::SearchControl& control_;
  size_t parts_;
  size_t stages_;
  std::vector<CutChoice> choices_;
};

}  // namespace

std::vector<CutChoice> list_cuts(PartCosts& costs, const common::SearchControl& control) {
  return CutLister(costs, control).list();
}

}  // namespace reprise::internal::pipeline
