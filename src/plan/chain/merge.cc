#include "plan/chain/merge.h"

#include <algorithm>
#include <numeric>

#include "plan/chain/branches.h"
#include "reprise/model/lower.h"

namespace reprise::internal::chain {
namespace {

// The number of sets of stages that a block offers to run twice.
constexpr size_t kDropSteps = 7;

// Cuts at equal distances, and moves each cut by up to a quarter of a block to the smallest
// boundary.
std::vector<size_t> cut(const ChainModel& model, size_t blocks) {
  const size_t stages = model.stages;
  blocks = std::clamp<size_t>(blocks, 1, stages);
  const size_t slack = stages / blocks / 4;
  std::vector<size_t> starts{0};
  for (size_t b = 1; b < blocks; ++b) {
    const size_t middle = b * stages / blocks;
    const auto low = model.x.begin() + static_cast<std::ptrdiff_t>(middle - slack);
    const auto high = model.x.begin() + static_cast<std::ptrdiff_t>(middle + slack + 1);
    const auto at = static_cast<size_t>(std::min_element(low, high) - model.x.begin());
    if (at > starts.back() && at < stages) starts.push_back(at);
  }
  starts.push_back(stages);
  return starts;
}

// A BlockWalk counts the bytes of one way to keep the stages a..b-1. It goes op by op, as
// chain.cc's table does for one stage. Neighbouring stages that are not kept form a run: the
// boundary before the run stays, and the backward of the block recomputes the whole run at once.
class BlockWalk {
 public:
  BlockWalk(const ChainModel& model, size_t a, size_t b, const BlockOption& way)
      : model_(model), a_(a), b_(b), way_(way) {}

  KeepOption walk() {
    block_.reads_input = stays(a_);
    block_.reads_output = kept(b_ - 1) && option(b_ - 1).reads_output;
    forward();
    for (size_t end = b_; end > a_;) end = kept(end - 1) ? reverse(end - 1) : replay(end);
    return block_;
  }

 private:
  bool kept(size_t k) const { return way_.kept[k - a_]; }
  const KeepOption& option(size_t k) const { return model_.options[k][way_.option]; }
  // Returns whether x_k is needed after the forward of stage k.
  bool stays(size_t k) const {
    if (k > a_ && kept(k - 1) && option(k - 1).reads_output) return true;
    return kept(k) ? option(k).reads_input : k == a_ || kept(k - 1);
  }
  int64_t weights_behind(size_t k) const { return k + 1 < b_ ? model_.weights(k + 1, b_ - 1) : 0; }

  void forward() {
    int64_t level = 0;  // bytes that the stages so far leave, inner boundaries included
    for (size_t k = a_; k < b_; ++k) {
      const SweepVariant& sweep = model_.sweeps[k].back();
      block_.forward =
          std::max(block_.forward, level + (kept(k) ? option(k).forward : sweep.memory));
      block_.cost += option(k).cost + (kept(k) ? 0 : sweep.cost);
      if (k > a_ && !stays(k)) level -= model_.x[k];
      before_.push_back(level);
      level += model_.x[k + 1] + (kept(k) ? option(k).saved : 0);
    }
    block_.saved = level - model_.x[b_];
  }

  void need(int64_t bytes) { block_.backward = std::max(block_.backward, bytes); }

  size_t reverse(size_t k) {
    need(before_[k - a_] + option(k).backward + weights_behind(k));
    return k;
  }

  // Replays the run of stages that ends before `end`: forward again, keeping everything, then
  // backward.
  size_t replay(size_t end) {
    size_t start = end - 1;
    while (start > a_ && !kept(start - 1)) --start;
    const int64_t base = before_[start - a_];
    int64_t level = base;
    std::vector<int64_t> before;
    for (size_t k = start; k < end; ++k) {
      need(level + option(k).forward + model_.g[end] + weights_behind(end - 1));
      const bool held = option(k).reads_input || (k > start && option(k - 1).reads_output);
      if (k > start && !held) level -= model_.x[k];
      before.push_back(level);
      level += model_.x[k + 1] + option(k).saved;
    }
    for (size_t k = end; k-- > start;) {
      need(before[k - start] + option(k).backward + weights_behind(k));
    }
    return start;
  }

  const ChainModel& model_;
  size_t a_, b_;
  const BlockOption& way_;
  KeepOption block_;
  std::vector<int64_t> before_;  // by stage: bytes that earlier stages keep, and x_k if it stays
};

// The first option keeps everything. In each further option more stages run twice; the stages that
// hold the most bytes for their time come first.
std::vector<BlockOption> block_options(const ChainModel& model, size_t a, size_t b, size_t o) {
  std::vector<size_t> order(b - a);
  std::iota(order.begin(), order.end(), a);
  const auto worth = [&](size_t k) {
    const auto bytes = static_cast<double>(model.options[k][o].saved + model.x[k + 1]);
    return bytes / static_cast<double>(std::max<int64_t>(1, model.sweeps[k].back().cost));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t p, size_t q) { return worth(p) > worth(q); });
  std::vector<BlockOption> ways{{o, std::vector<bool>(b - a, true)}};
  const size_t steps = std::min(kDropSteps, b - a);
  for (size_t step = 1; step <= steps; ++step) {
    BlockOption& way = ways.emplace_back(ways.back());
    for (size_t n = (step - 1) * (b - a) / steps; n < step * (b - a) / steps; ++n) {
      way.kept[order[n] - a] = false;
    }
  }
  return ways;
}

// A block is swept in as many ways as its stages together; way v is variant -1 - v.
std::vector<SweepVariant> sweep_block(const ChainModel& model, size_t a, size_t b) {
  Sweep sweep(model, a);
  while (sweep.end() < b) sweep.extend();
  std::vector<SweepVariant> ways;
  for (const CurvePoint& step : sweep.steps()) {
    ways.push_back({step.memory, step.cost, -1 - static_cast<int32_t>(ways.size())});
  }
  return ways;
}

void add_block(const ChainModel& model, size_t a, size_t b, MergedChain& merged) {
  std::vector<KeepOption>& options = merged.model.options.emplace_back();
  std::vector<BlockOption>& ways = merged.options.emplace_back();
  size_t common = model.options[a].size();
  for (size_t k = a; k < b; ++k) common = std::min(common, model.options[k].size());
  for (size_t o = 0; o < common; ++o) {
    for (BlockOption& way : block_options(model, a, b, o)) {
      KeepOption& kept = options.emplace_back(BlockWalk(model, a, b, way).walk());
      kept.stopped_forward = kept.forward;
      kept.stopped_cost = kept.cost;
      kept.stopped_variant = static_cast<int32_t>(options.size());
      ways.push_back(std::move(way));
    }
  }
  merged.model.sweeps.push_back(sweep_block(model, a, b));
}

}  // namespace

MergedChain merge_stages(const ChainModel& model, size_t blocks) {
  MergedChain merged;
  merged.starts = cut(model, blocks);
  ChainModel& whole = merged.model;
  whole.stages = merged.starts.size() - 1;
  whole.fixed = model.fixed;
  std::copy(std::begin(model.loss), std::end(model.loss), std::begin(whole.loss));
  whole.least_time = model.least_time;
  whole.time_unit = model.time_unit;
  whole.time_weight = model.time_weight;
  whole.rerun_weight = model.rerun_weight;
  whole.cost_unit = model.cost_unit;
  for (const size_t start : merged.starts) {
    whole.x.push_back(model.x[start]);
    whole.g.push_back(model.g[start]);
    whole.weight_gradients.push_back(model.weight_gradients[start]);
    whole.least_sweeps.push_back(model.least_sweeps[start]);
  }
  whole.g.push_back(0);
  whole.weight_gradients.push_back(model.weight_gradients.back());
  for (size_t block = 0; block < whole.stages; ++block) {
    add_block(model, merged.starts[block], merged.starts[block + 1], merged);
  }
  return merged;
}

namespace {

class Splitter {
 public:
  Splitter(const ChainModel& model, const MergedChain& merged)
      : model_(model), merged_(merged), index_{model.stages} {}

  std::vector<Run> split(const std::vector<Run>& runs) {
    const ChainIndex blocks{merged_.model.stages};
    for (const Run& run : runs) {
      const auto op = static_cast<size_t>(run.op);
      if (run.op == blocks.loss()) {
        runs_.push_back({index_.loss(), run.variant});
      } else if (run.op > blocks.loss()) {
        backward(2 * blocks.stages - op, static_cast<size_t>(run.variant));
      } else if (run.variant < 0) {
        sweep(op, merged_.model.sweeps[op][-1 - run.variant].memory);
      } else {
        forward(op, static_cast<size_t>(run.variant - 1));
      }
    }
    return std::move(runs_);
  }

 private:
  void sweep(size_t block, int64_t memory) {
    for (size_t k = merged_.starts[block]; k < merged_.starts[block + 1]; ++k) {
      const int64_t room = memory - (k == merged_.starts[block] ? 0 : model_.x[k]);
      const SweepVariant* best = nullptr;
      for (const SweepVariant& way : model_.sweeps[k]) {
        if (way.memory <= room) best = &way;
      }
      runs_.push_back({index_.forward(k), best->variant});
    }
  }

  void keep(size_t k, const BlockOption& way) {
    runs_.push_back({index_.forward(k), static_cast<int32_t>(way.option) + 1});
  }

  void forward(size_t block, size_t option) {
    const BlockOption& way = merged_.options[block][option];
    for (size_t n = 0; n < way.kept.size(); ++n) {
      const size_t k = merged_.starts[block] + n;
      if (way.kept[n]) {
        keep(k, way);
      } else {
        runs_.push_back({index_.forward(k), model_.sweeps[k].back().variant});
      }
    }
  }

  void backward(size_t block, size_t option) {
    const BlockOption& way = merged_.options[block][option];
    const size_t a = merged_.starts[block];
    size_t replayed = way.kept.size();  // from here on everything is live
    for (size_t n = way.kept.size(); n-- > 0;) {
      if (!way.kept[n] && n < replayed) {
        replayed = n;
        while (replayed > 0 && !way.kept[replayed - 1]) --replayed;
        for (size_t k = replayed; k <= n; ++k) keep(a + k, way);
      }
      runs_.push_back({index_.backward(a + n), static_cast<int32_t>(way.option)});
    }
  }

  const ChainModel& model_;
  const MergedChain& merged_;
  ChainIndex index_;
  std::vector<Run> runs_;
};

}  // namespace

Trace split_blocks(const ChainModel& model, const MergedChain& merged, const Trace& plan) {
  return {Splitter(model, merged).split(plan.runs), plan.cost};
}

}  // namespace reprise::internal::chain
