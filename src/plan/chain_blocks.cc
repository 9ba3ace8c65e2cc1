#include "plan/chain_blocks.h"

#include <algorithm>

#include "reprise/model/lower.h"

namespace reprise::internal {
namespace {

size_t fastest(const Stage& stage) {
  const auto time = [](const StageOption& o) { return o.forward.time + o.backward.time; };
  const auto best = std::min_element(
      stage.options.begin(), stage.options.end(),
      [&](const StageOption& a, const StageOption& b) { return time(a) < time(b); });
  return static_cast<size_t>(best - stage.options.begin());
}

const StageOption& kept_option(const Stage& stage) { return stage.options[fastest(stage)]; }

// Stages first..end-1 as one stage.
class Block {
 public:
  Block(const Chain& chain, size_t first, size_t end) : chain_(chain), first_(first), end_(end) {}

  Stage merged() const {
    Stage block;
    block.name = chain_.stages[first_].name;
    block.output = boundary_bytes(chain_, end_);
    block.output_gradient = boundary_gradient_bytes(chain_, end_);
    StageOption option;
    option.reads_input = kept_option(chain_.stages[first_]).reads_input;
    option.reads_output = kept_option(chain_.stages[end_ - 1]).reads_output;
    for (size_t k = first_; k < end_; ++k) {
      const StageOption& kept = kept_option(chain_.stages[k]);
      block.weight_gradient += chain_.stages[k].weight_gradient;
      block.forward.time += chain_.stages[k].forward.time;
      option.forward.time += kept.forward.time;
      option.backward.time += kept.backward.time;
      option.saved += kept.saved;
      if (k > first_) option.saved += stored(k);
    }
    block.forward.workspace = beyond(sweep_peak(), block.output);
    option.forward.workspace = beyond(forward_peak(), block.output + option.saved);
    const Bytes at_end = *block.output_gradient + option.saved +
                         (option.reads_output ? block.output : Bytes()) +
                         boundary_gradient_bytes(chain_, first_) + block.weight_gradient;
    option.backward.workspace = beyond(backward_peak(), at_end);
    block.options.push_back(option);
    return block;
  }

 private:
  static Bytes beyond(Bytes peak, Bytes counted) { return std::max(peak - counted, Bytes()); }

  // Boundary k, if a backward on either side of it reads it.
  Bytes stored(size_t k) const {
    const bool read =
        kept_option(chain_.stages[k - 1]).reads_output || kept_option(chain_.stages[k]).reads_input;
    return read ? boundary_bytes(chain_, k) : Bytes();
  }

  Bytes sweep_peak() const {
    Bytes peak;
    for (size_t k = first_; k < end_; ++k) {
      const Bytes input = k > first_ ? boundary_bytes(chain_, k) : Bytes();
      peak = std::max(peak, input + chain_.stages[k].output + chain_.stages[k].forward.workspace);
    }
    return peak;
  }

  Bytes forward_peak() const {
    Bytes peak, held;  // by the stages before k
    for (size_t k = first_; k < end_; ++k) {
      const StageOption& kept = kept_option(chain_.stages[k]);
      const Bytes input = k > first_ ? boundary_bytes(chain_, k) : Bytes();
      peak = std::max(peak,
                      held + input + chain_.stages[k].output + kept.saved + kept.forward.workspace);
      held += kept.saved;
      if (k > first_) held += stored(k);
    }
    return peak;
  }

  Bytes backward_peak() const {
    Bytes held;  // by stages first_..k
    for (size_t k = first_; k < end_; ++k) {
      held += kept_option(chain_.stages[k]).saved;
      if (k > first_) held += stored(k);
    }
    Bytes peak, weights;  // weights: of the stages behind k
    for (size_t k = end_; k-- > first_;) {
      const StageOption& kept = kept_option(chain_.stages[k]);
      const Bytes output = kept.reads_output ? chain_.stages[k].output : Bytes();
      const Bytes level = boundary_gradient_bytes(chain_, k + 1) + held + output + weights;
      peak = std::max(peak, level + boundary_gradient_bytes(chain_, k) +
                                chain_.stages[k].weight_gradient + kept.backward.workspace);
      weights += chain_.stages[k].weight_gradient;
      held -= kept.saved;
      if (k > first_) held -= stored(k);
    }
    return peak;
  }

  const Chain& chain_;
  size_t first_, end_;
};

}  // namespace

std::vector<size_t> block_borders(const Chain& chain, size_t blocks) {
  const size_t stages = chain.stages.size();
  std::vector<size_t> borders{0};
  for (size_t b = 1; b < blocks; ++b) {
    // Around the border of blocks of equal length, up to a quarter of a block to either side.
    const size_t middle = b * stages / blocks, reach = stages / blocks / 4;
    size_t best = middle;
    for (size_t k = middle - reach; k <= middle + reach; ++k) {
      if (boundary_bytes(chain, k) < boundary_bytes(chain, best)) best = k;
    }
    borders.push_back(best);
  }
  borders.push_back(stages);
  return borders;
}

Chain merge_blocks(const Chain& chain, const std::vector<size_t>& borders) {
  Chain merged;
  merged.name = chain.name;
  merged.fixed = chain.fixed;
  merged.input = chain.input;
  merged.loss = chain.loss;
  for (size_t b = 0; b + 1 < borders.size(); ++b) {
    merged.stages.push_back(Block(chain, borders[b], borders[b + 1]).merged());
  }
  return merged;
}

std::vector<Run> expand_blocks(const Chain& chain, const std::vector<size_t>& borders,
                               const std::vector<Run>& runs) {
  const ChainIndex index{chain.stages.size()}, blocks{borders.size() - 1};
  std::vector<Run> expanded;
  for (const Run& run : runs) {
    if (run.op < blocks.loss()) {
      const auto b = static_cast<size_t>(run.op);
      for (size_t k = borders[b]; k < borders[b + 1]; ++k) {
        const auto kept = static_cast<int32_t>(fastest(chain.stages[k]) + 1);
        expanded.push_back({index.forward(k), run.variant == 0 ? 0 : kept});
      }
    } else if (run.op == blocks.loss()) {
      expanded.push_back({index.loss(), 0});
    } else {
      const size_t b = 2 * blocks.stages - static_cast<size_t>(run.op);
      for (size_t k = borders[b + 1]; k-- > borders[b];) {
        expanded.push_back({index.backward(k), static_cast<int32_t>(fastest(chain.stages[k]))});
      }
    }
  }
  return expanded;
}

}  // namespace reprise::internal
