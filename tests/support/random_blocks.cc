#include "support/random_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace reprise::testing {
namespace {

int64_t between(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// Writes down the allocations and frees of a training step.
class Step {
 public:
  Step(std::mt19937_64& random, int stages) : random_(random) {
    for (int k = 0; k <= stages; ++k) {
      activation_.push_back(64 * between(random, 1, 2000));
      saved_.push_back(64 * between(random, 0, 4000));
    }
  }

  std::vector<Block> run(int stages, int slots) {
    const size_t input = allocate(activation_[0]);
    const size_t gradient = allocate(activation_[static_cast<size_t>(stages)]);
    if (slots == 0) {
      keep_all(0, stages, input, gradient);
    } else {
      reverse(0, stages, input, gradient, slots);
    }
    ++clock_;
    for (Block& block : blocks_) {
      if (block.end < 0) block.end = clock_;
    }
    return blocks_;
  }

 private:
  size_t allocate(int64_t bytes) {
    blocks_.push_back({Bytes(bytes), clock_, -1});
    return blocks_.size() - 1;
  }
  void release(size_t block) { blocks_[block].end = clock_; }

  // Adds an operation with up to three temporaries that come and go inside it.
  void operate() {
    ++clock_;
    std::vector<size_t> temporaries;
    for (int64_t k = between(random_, 0, 3); k > 0; --k) {
      temporaries.push_back(allocate(64 * between(random_, 1, 1500)));
      ++clock_;
    }
    for (const size_t temporary : temporaries) {
      release(temporary);
      ++clock_;
    }
  }

  size_t forward(int stage) {
    const size_t output = allocate(activation_[static_cast<size_t>(stage) + 1]);
    operate();
    return output;
  }
  // Returns the gradient of the stage's input.
  size_t backward(int stage, size_t output, size_t saved, size_t gradient) {
    const size_t next = allocate(activation_[static_cast<size_t>(stage)]);
    if (between(random_, 0, 1) == 0) allocate(64 * between(random_, 1, 500));  // of the weights
    operate();
    release(saved);
    release(output);
    release(gradient);
    ++clock_;
    return next;
  }

  size_t keep_all(int first, int end, size_t input, size_t gradient) {
    std::vector<size_t> outputs, saved;
    for (int k = first; k < end; ++k) {
      saved.push_back(allocate(saved_[static_cast<size_t>(k)]));
      outputs.push_back(forward(k));
    }
    (void)input;
    for (int k = end - 1; k >= first; --k) {
      const auto at = static_cast<size_t>(k - first);
      gradient = backward(k, outputs[at], saved[at], gradient);
    }
    return gradient;
  }

  size_t reverse(int first, int end, size_t input, size_t gradient, int slots) {
    if (end - first == 1) return keep_all(first, end, input, gradient);
    const int split = slots == 1 ? end - 1 : first + std::max(1, (end - first) / 2);
    size_t at = input;
    for (int k = first; k < split; ++k) {
      const size_t next = forward(k);
      if (at != input) release(at);
      ++clock_;
      at = next;
    }
    gradient = reverse(split, end, at, gradient, std::max(1, slots - 1));
    release(at);
    ++clock_;
    return reverse(first, split, input, gradient, slots);
  }

  std::mt19937_64& random_;
  std::vector<int64_t> activation_, saved_;
  std::vector<Block> blocks_;
  int64_t clock_ = 0;
};

}  // namespace

std::vector<Block> random_blocks(std::mt19937_64& random, const RandomBlocksOptions& options) {
  std::vector<Block> blocks;
  const int64_t least = options.empty ? 0 : 1;
  for (int k = 0; k < options.blocks; ++k) {
    Block block;
    block.bytes = Bytes(between(random, least, options.max_bytes));
    const int64_t time = between(random, least, std::min(options.max_time, options.times));
    block.begin = between(random, 0, options.times - time);
    block.end = block.begin + time;
    blocks.push_back(block);
  }
  return blocks;
}

std::vector<Block> full_blocks(std::mt19937_64& random, int64_t times, int64_t bytes,
                               int64_t max_time) {
  std::vector<Block> blocks;
  std::vector<int64_t> room(static_cast<size_t>(times), bytes);
  for (;;) {
    const auto begin = std::max_element(room.begin(), room.end());
    if (*begin == 0) return blocks;
    const int64_t most = between(random, 1, max_time);
    int64_t least_room = std::min<int64_t>(4, *begin);
    auto end = begin + 1;
    for (; end != room.end() && end - begin<most&& * end> 0; ++end) {
      least_room = std::min(least_room, *end);
    }
    const int64_t size = between(random, 1, least_room);
    for (auto at = begin; at != end; ++at) *at -= size;
    blocks.push_back({Bytes(size), begin - room.begin(), end - room.begin()});
  }
}

std::vector<Block> training_blocks(std::mt19937_64& random, int stages, int slots) {
  return Step(random, stages).run(stages, slots);
}

std::string describe(const std::vector<Block>& blocks) {
  std::string text = "[";
  for (const Block& block : blocks) {
    text += fmt::format("{}[{},{},{}]", text.size() > 1 ? "," : "", block.bytes.count(),
                        block.begin, block.end);
  }
  return text + "]";
}

}  // namespace reprise::testing
