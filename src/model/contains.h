// Says whether a short list of values has one of them.
#pragma once

#include <algorithm>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::internal::model {

inline bool contains(const std::vector<ValueIndex>& list, ValueIndex value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace reprise::internal::model
