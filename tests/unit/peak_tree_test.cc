#include "plan/graph/schedule/peak_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace reprise::internal {

using schedule::PeakTree;

namespace {

TEST(PeakTree, IsWhatAListOfNumbersIs) {
  std::mt19937_64 random(1);
  for (const size_t count : {1, 2, 3, 7, 8, 9, 100}) {
    PeakTree tree(count, -5);
    std::vector<int64_t> numbers(count, -5);
    for (int draw = 0; draw < 200; ++draw) {
      const size_t a = random() % count, b = random() % count;
      const auto amount = static_cast<int64_t>(random() % 21) - 10;
      tree.add(std::min(a, b), std::max(a, b), amount);
      for (size_t k = std::min(a, b); k <= std::max(a, b); ++k) numbers[k] += amount;
      const auto largest = std::max_element(numbers.begin(), numbers.end());
      ASSERT_EQ(tree.largest(), *largest);
      ASSERT_EQ(tree.where(), static_cast<size_t>(largest - numbers.begin()));
      ASSERT_EQ(tree.numbers(count), numbers);
      const auto limit = static_cast<int64_t>(random() % 41) - 20;
      int64_t excess = 0;
      for (const int64_t number : numbers) excess += std::max<int64_t>(0, number - limit);
      ASSERT_EQ(tree.excess(limit), static_cast<double>(excess));
    }
  }
}

}  // namespace
}  // namespace reprise::internal
