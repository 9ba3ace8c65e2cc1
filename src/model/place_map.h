// Keeps something for places: values in memories.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::internal::model {

// Most values are ever in one memory or two, so that a machine with many memories costs no more.
template <class T>
class PlaceMap {
 public:
  explicit PlaceMap(size_t values) : few_(values) {}

  // Returns what is kept for the place; it is made if there is nothing.
  T& at(ValueIndex value, int32_t memory) {
    Few& few = few_[value];
    for (int k = 0; k < 2; ++k) {
      if (few.memories[k] == 0) few.memories[k] = memory + 1;
      if (few.memories[k] == memory + 1) return few.kept[k];
    }
    return others_[key(value, memory)];
  }
  // Returns a copy of it, or T() if there is nothing.
  T get(ValueIndex value, int32_t memory) const {
    const Few& few = few_[value];
    if (few.memories[0] == memory + 1) return few.kept[0];
    if (few.memories[1] == memory + 1) return few.kept[1];
    if (others_.empty()) return T();
    const auto found = others_.find(key(value, memory));
    return found == others_.end() ? T() : found->second;
  }
  // Calls f(value, memory, what) for each place, in no order.
  template <class F>
  void for_each(const F& f) const {
    for (size_t v = 0; v < few_.size(); ++v) {
      for (int k = 0; k < 2; ++k) {
        const int32_t memory = few_[v].memories[k] - 1;
        if (memory >= 0) f(static_cast<ValueIndex>(v), memory, few_[v].kept[k]);
      }
    }
    for (const auto& [place, kept] : others_) {
      f(static_cast<ValueIndex>(place & 0xffffffff), static_cast<int32_t>(place >> 32), kept);
    }
  }

 private:
  struct Few {
    int32_t memories[2];  // 1 + the first memories that were asked for, or 0
    T kept[2];
  };
  static int64_t key(ValueIndex value, int32_t memory) { return int64_t{memory} << 32 | value; }

  std::vector<Few> few_;                   // by value
  std::unordered_map<int64_t, T> others_;  // by other place
};

}  // namespace reprise::internal::model
