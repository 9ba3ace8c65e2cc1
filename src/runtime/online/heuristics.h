// These are the heuristics by which online mode chooses what to evict.
//
// M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J. Roesch, T. Chen, Z. Tatlock, "Dynamic
// Tensor Rematerialization", ICLR 2021, arXiv 2006.09616, section 4.1 and appendices C and D.
//
// | paper                     | here                                                              |
// |---------------------------|-------------------------------------------------------------------|
// | c(t), m(t), s(t)          | modelled cost of the maker, bytes, modelled time since the last use|
// | e*(t), evicted            | absent values that a value is made from, and that are made from   |
// | neighborhood              | it, over absent values only: kExact                               |
// | ~e*, approximate          | union-find over evicted values with sums of costs (appendix C.2); |
// | neighborhood              | a value that is made again leaves its set's sum, not the set: kSets|
// | h_DTR, h_DTR^eq           | (c + costs of the neighborhood) / (m s)                           |
// | h_DTR^local, h_LRU, h_size| c / (m s), 1 / s, 1 / m                                           |
//
// The value with the least score is evicted. A call that makes several values counts once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/online/record.h"

namespace reprise::runtime::internal::online {

enum class Neighborhood { kNone, kExact, kSets };

struct Heuristic {
  const char* name;
  const char* description;
  Neighborhood neighborhood;
  bool by_cost, by_size, by_staleness;
};

// Returns the heuristic of this name. Throws InputError with all names if there is none.
const Heuristic& heuristic_named(const std::string& name);

// An EvictedSet is a set of evicted values that are made from each other, in a union-find
// structure.
struct EvictedSet {
  std::shared_ptr<EvictedSet> parent;
  double cost = 0;  // of all values in it, if it is a root
  uint64_t mark = 0;
};

// Scores values.
class Scorer {
 public:
  explicit Scorer(const Heuristic& heuristic) : heuristic_(heuristic) {}

  // Returns the score without the neighborhood, which is never above the score. `now` is the clock.
  double base(const Value& value, double now) const;
  // Returns the score.
  double score(const Value& value, double now);

  // Must be called when a value has been evicted, and before one is made again.
  void evicted(Value& value);
  void made_again(Value& value);

 private:
  double weight(const Value& value, double cost, double now) const;
  double exact_neighborhood(const Value& value);
  double sets_around(const Value& value);

  const Heuristic& heuristic_;
  uint64_t walk_ = 0;
};

}  // namespace reprise::runtime::internal::online
