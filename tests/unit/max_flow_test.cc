#include "plan/graph/bound/max_flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace reprise::internal {

using bound::MaxFlow;

namespace {

struct Arc {
  size_t from, to;
  int64_t capacity;
};

// Finds the least cut by trying every set of nodes.
int64_t least_cut(size_t nodes, const std::vector<Arc>& arcs) {
  int64_t least = INT64_MAX;
  for (uint32_t set = 0; set < uint32_t{1} << nodes; ++set) {
    if ((set & 1) == 0 || (set & 2) != 0) continue;
    int64_t sum = 0;
    for (const Arc& arc : arcs) {
      if ((set >> arc.from & 1) != 0 && (set >> arc.to & 1) == 0) sum += arc.capacity;
    }
    least = std::min(least, sum);
  }
  return least;
}

TEST(MaxFlow, EqualsTheLeastOfAllCuts) {
  std::mt19937_64 random(1);
  for (int number = 0; number < 2000; ++number) {
    const size_t nodes = 2 + random() % 7;
    MaxFlow flow(nodes);
    std::vector<Arc> arcs;
    for (size_t a = random() % (3 * nodes); a-- > 0;) {
      const Arc arc{random() % nodes, random() % nodes, static_cast<int64_t>(random() % 9)};
      if (arc.from == arc.to) continue;
      arcs.push_back(arc);
      flow.add_arc(arc.from, arc.to, arc.capacity);
    }
    const int64_t least = least_cut(nodes, arcs);
    ASSERT_TRUE(flow.cut(0, 1) == least) << "graph " << number;
    int64_t through = 0;
    for (const Arc& arc : arcs) {
      if (flow.on_source_side(arc.from) && !flow.on_source_side(arc.to)) through += arc.capacity;
    }
    ASSERT_EQ(through, least) << "graph " << number;
    ASSERT_TRUE(flow.cut(0, 1) == least) << "the second time, graph " << number;
  }
}

TEST(MaxFlow, SaysWhenNoCutExists) {
  MaxFlow flow(3);
  flow.add_arc(0, 2, MaxFlow::kInfinite);
  const size_t arc = flow.add_arc(2, 1, MaxFlow::kInfinite);
  EXPECT_TRUE(flow.cut(0, 1) == MaxFlow::kInfinite);
  flow.set_capacity(arc, 5);
  EXPECT_TRUE(flow.cut(0, 1) == 5);
}

}  // namespace
}  // namespace reprise::internal
