// Makes small problems out of any bytes. A fuzzer that changes the bytes changes the problem.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/pack/pack.h"

namespace reprise::fuzz {

// Dice draws numbers from bytes, and zero when the bytes have run out.
class Dice {
 public:
  explicit Dice(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  // Returns a number in 0..count-1; count is at most 256.
  int64_t below(int64_t count);
  bool coin() { return below(2) == 1; }
  // Most numbers are small. The largest ones still let a sum of twenty fit 64 bits.
  int64_t size();

 private:
  std::string_view bytes_;
};

Chain small_chain(Dice& dice);                // always valid, at most 4 stages of 3 options
Graph small_graph(Dice& dice);                // may be invalid: at most 6 ops
std::vector<Block> small_blocks(Dice& dice);  // may be invalid: at most 12

}  // namespace reprise::fuzz
