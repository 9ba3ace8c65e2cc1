#include "published_solver.h"

#include <algorithm>
#include <limits>

#include "reprise/model/lower.h"

namespace reprise::bench {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr long kKeep = -1;

// This is the chain in slots. Index L is the loss. Everything behind it is 0.
struct Slots {
  size_t stages = 0;
  std::vector<long> x, kept, forward_space, backward_space;  // kept[i + 1]: saved and output of i
  std::vector<double> forward, backward;
};

Slots in_slots(const Chain& chain, int64_t unit) {
  // The loops over memory read the plane at m - x_j. With a size of 0 they would read the plane
  // that they are filling.
  const auto slots = [unit](Bytes bytes) {
    return std::max<long>(1, (bytes.count() + unit - 1) / unit);
  };
  const auto space = [unit](Bytes bytes) -> long { return (bytes.count() + unit - 1) / unit; };
  Slots s;
  s.stages = chain.stages.size();
  s.x.push_back(slots(chain.input.bytes));
  s.kept.push_back(0);
  for (const Stage& stage : chain.stages) {
    const StageOption& option = stage.options.front();
    s.x.push_back(slots(stage.output));
    s.kept.push_back(slots(stage.output + option.saved));
    s.forward_space.push_back(space(option.forward.workspace));
    s.backward_space.push_back(space(option.backward.workspace));
    s.forward.push_back(static_cast<double>(option.forward.time.count()));
    s.backward.push_back(static_cast<double>(option.backward.time.count()));
  }
  s.x.push_back(0);
  s.kept.push_back(0);
  s.forward_space.push_back(0);
  s.backward_space.push_back(space(chain.loss.cost.workspace));
  s.forward.push_back(0);
  s.backward.push_back(0);
  return s;
}

class Tables {
 public:
  Tables(const Slots& s, long memory)
      : s_(s),
        side_(s.stages + 1),
        opt_(static_cast<size_t>(memory + 1) * side_ * side_),
        what_(static_cast<size_t>(memory + 1) * side_ * side_) {
    for (size_t i = 0; i < side_; ++i) {
      sums_.push_back(i == 0 ? 0 : sums_.back() + s.forward[i - 1]);
    }
    for (long m = 0; m <= memory; ++m) {
      for (size_t i = side_; i-- > 0;) {
        long sweep = 0;  // the largest forward of stages i..l-1, without the gradient
        for (size_t l = i; l < side_; ++l) {
          if (l > i) {
            const size_t k = l - 1;
            sweep = std::max(sweep, (k > i ? s.x[k] : 0) + s.x[k + 1] + s.forward_space[k]);
          }
          solve(m, i, l, sweep);
        }
      }
    }
  }

  double time(long m, size_t i, size_t l) const { return opt_[at(m, i, l)]; }

  // The recursion is as published.
  void schedule(long m, size_t i, size_t l, std::vector<Run>& runs) const {
    const ChainIndex index{s_.stages};
    const long what = what_[at(m, i, l)];
    if (i == s_.stages) {
      runs.push_back({index.loss(), 0});
    } else if (what == kKeep) {
      runs.push_back({index.forward(i), 1});
      if (i < l) schedule(m - s_.kept[i + 1], i + 1, l, runs);
      runs.push_back({index.backward(i), 0});
    } else {
      const auto j = static_cast<size_t>(what);
      for (size_t k = i; k < j; ++k) runs.push_back({index.forward(k), 0});
      schedule(m - s_.x[j], j, l, runs);
      schedule(m, i, j - 1, runs);
    }
  }

 private:
  size_t at(long m, size_t i, size_t l) const {
    return (static_cast<size_t>(m) * side_ + i) * side_ + l;
  }

  long base(size_t i) const {
    return std::max(s_.x[i + 1] + s_.kept[i + 1] + s_.forward_space[i],
                    s_.x[i] + s_.x[i + 1] + s_.kept[i + 1] + s_.backward_space[i]);
  }

  void solve(long m, size_t i, size_t l, long sweep) {
    double best = kInfinite;
    long what = kKeep;
    if (i == l) {
      if (m >= base(i)) best = s_.forward[i] + s_.backward[i];
    } else if (m >= s_.x[l + 1] + sweep) {
      for (size_t j = i + 1; j <= l; ++j) {
        if (m < s_.x[j]) continue;
        const double time =
            sums_[j] - sums_[i] + opt_[at(m - s_.x[j], j, l)] + opt_[at(m, i, j - 1)];
        if (time < best) best = time, what = static_cast<long>(j);
      }
      if (m >= base(i) && m >= s_.kept[i + 1]) {
        const double time = s_.forward[i] + s_.backward[i] + opt_[at(m - s_.kept[i + 1], i + 1, l)];
        if (time < best) best = time, what = kKeep;
      }
    }
    opt_[at(m, i, l)] = best;
    what_[at(m, i, l)] = what;
  }

  const Slots& s_;
  size_t side_;
  std::vector<double> opt_;
  std::vector<long> what_;
  std::vector<double> sums_;
};

}  // namespace

PublishedCost published_cost(const Chain& chain, int64_t slots) {
  const auto side = static_cast<int64_t>(chain.stages.size()) + 1;
  const auto points = static_cast<double>(slots + 1);
  return {Bytes(side * side) * (slots + 1) * static_cast<int64_t>(sizeof(double) + sizeof(long)),
          points * static_cast<double>(side) * static_cast<double>(side * side) / 6};
}

std::optional<std::vector<Run>> published_solver(const Chain& chain, Bytes budget, int64_t slots) {
  Bytes limit = budget - chain.fixed;
  for (const Stage& stage : chain.stages) limit -= stage.weight_gradient;
  const int64_t unit = limit.count() / slots;
  if (unit <= 0) return std::nullopt;
  const Slots s = in_slots(chain, unit);
  const long memory = slots - s.x[0];
  if (memory <= 0) return std::nullopt;
  const Tables tables(s, memory);
  if (tables.time(memory, 0, s.stages) == kInfinite) return std::nullopt;
  std::vector<Run> runs;
  tables.schedule(memory, 0, s.stages, runs);
  return runs;
}

}  // namespace reprise::bench
