// Small problems out of any bytes: what a fuzzer changes in the bytes changes the problem.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/pack/pack.h"

namespace reprise::fuzz {

// Numbers from bytes, zero when they have run out.
class Dice {
 public:
  explicit Dice(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  // 0..count-1; count is at most 256.
  int64_t below(int64_t count);
  bool coin() { return below(2) == 1; }
  // Mostly small; some as large as a sum of twenty of them still fits 64 bits.
  int64_t size();

 private:
  std::string_view bytes_;
};

Chain small_chain(Dice& dice);                // always valid, at most 4 stages of 3 options
Graph small_graph(Dice& dice);                // may be invalid: at most 6 ops
std::vector<Block> small_blocks(Dice& dice);  // may be invalid: at most 12

}  // namespace reprise::fuzz
