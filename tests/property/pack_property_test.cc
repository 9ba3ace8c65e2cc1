// Checks laws of packings on random blocks, on training steps, and on the plans of planners.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/pack/pack.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/plan.h"
#include "support/planner_questions.h"
#include "support/random_blocks.h"
#include "support/random_chain.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

PackOptions quick(Bytes alignment = Bytes(64)) {
  PackOptions options;
  options.alignment = alignment;
  options.steps = 40'000'000;  // what the runtime gives each placement
  return options;
}

// Counts how low the packings of one kind are, for the record.
struct Record {
  int64_t cases = 0, at_bound = 0, blocks = 0;
  double worst = 1;

  void add(const Packing& packing) {
    ++cases;
    blocks += static_cast<int64_t>(packing.offsets.size());
    at_bound += packing.height == packing.live_bytes;
    if (packing.live_bytes == Bytes(0)) return;
    worst = std::max(worst, static_cast<double>(packing.height.count()) /
                                static_cast<double>(packing.live_bytes.count()));
  }
  double share() const { return static_cast<double>(at_bound) / static_cast<double>(cases); }
  void print(const std::string& name) const {
    std::cout << fmt::format(
        "{}: {} cases of {} blocks on average, {:.1f} % at the live bytes, worst {:.4f} of them\n",
        name, cases, blocks / cases, 100 * share(), worst);
  }
};

// Compares blocks pair by pair, and uses neither verify_packing() nor its sweep.
void expect_apart(const std::vector<Block>& blocks, const Packing& packing) {
  for (size_t a = 0; a < blocks.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (std::max(blocks[a].begin, blocks[b].begin) >= std::min(blocks[a].end, blocks[b].end)) {
        continue;
      }
      const Bytes top_a = packing.offsets[a] + blocks[a].bytes;
      const Bytes top_b = packing.offsets[b] + blocks[b].bytes;
      ASSERT_TRUE(top_a <= packing.offsets[b] || top_b <= packing.offsets[a])
          << "blocks " << b << " and " << a;
    }
    ASSERT_LE(packing.offsets[a] + blocks[a].bytes, packing.height);
  }
}

Packing expect_laws(const std::vector<Block>& blocks, const PackOptions& options) {
  const Packing packing = pack(blocks, options);
  expect_apart(blocks, packing);
  EXPECT_LE(packing.live_bytes, packing.lower_bound);
  EXPECT_LE(packing.lower_bound, packing.height);
  EXPECT_EQ(packing.live_bytes, live_bytes(blocks, options.alignment));
  EXPECT_EQ(packing, pack(blocks, options)) << "another packing at the second run";
  return packing;
}

TEST(PackProperty, RandomBlocks) {
  const std::vector<std::pair<const char*, RandomBlocksOptions>> kinds = {
      {"small", {.blocks = 12, .times = 10, .max_time = 10, .max_bytes = 9, .empty = true}},
      {"short lives", {.blocks = 150, .times = 200, .max_time = 20, .max_bytes = 100'000}},
      {"long lives", {.blocks = 80, .times = 100, .max_time = 100, .max_bytes = 100'000}},
      {"two sizes", {.blocks = 100, .times = 60, .max_time = 20, .max_bytes = 2}},
  };
  for (const auto& [name, kind] : kinds) {
    constexpr uint64_t kSeed = 3;
    std::mt19937_64 random(kSeed);
    Record record;
    for (int number = 0; number < test_scale(25); ++number) {
      const std::vector<Block> blocks = random_blocks(random, kind);
      SCOPED_TRACE(fmt::format("{}, seed {}, case {}: {}", name, kSeed, number, describe(blocks)));
      record.add(expect_laws(blocks, quick(Bytes(number % 2 == 0 ? 1 : 64))));
      if (HasFailure()) return;
    }
    record.print(name);
    EXPECT_LE(record.worst, 1.1);
  }
}

TEST(PackProperty, TrainingStepsAreAtTheLiveBytes) {
  for (const int slots : {0, 1, 2, 4, 8}) {
    constexpr uint64_t kSeed = 4;
    std::mt19937_64 random(kSeed);
    Record record;
    for (int number = 0; number < test_scale(20); ++number) {
      const int stages = slots == 1 ? 15 : 10 + static_cast<int>(random() % 60);
      const std::vector<Block> blocks = training_blocks(random, stages, slots);
      SCOPED_TRACE(fmt::format("{} slots, seed {}, case {}", slots, kSeed, number));
      record.add(expect_laws(blocks, quick()));
      if (HasFailure()) return;
    }
    record.print(fmt::format("training, {} slots", slots));
    EXPECT_GE(record.share(), 0.95);
    EXPECT_LE(record.worst, 1.01);
  }
}

// The blocks are those of plans: the live bytes are the simulator's peak, and the packing needs no
// more.
TEST(PackProperty, PlansArePackedIntoTheirPeak) {
  Record record;
  RandomChainOptions chains;
  chains.min_stages = 8;
  chains.max_stages = 20;
  chains.max_size = 1000;
  // There are so many chains that even a tenth of them, as under sanitizers, give a meaningful
  // share.
  for_chains(5, 150, chains, [&](const Chain& chain, std::mt19937_64&) {
    const Graph graph = lower(chain);
    const Bytes plain = baseline(graph).peak;
    for (const int share : {100, 80, 60, 40}) {
      PlanOptions options = with("chain", Bytes(plain.count() / 100 * share));
      options.time_limit = Nanos(1'000'000'000);
      const PlanResult result = plan(chain, options);
      if (!found(result)) continue;
      const std::vector<Block> blocks = plan_blocks(graph, result.plan->actions);
      const Packing packing = expect_laws(blocks, quick(Bytes(1)));
      ASSERT_EQ(packing.live_bytes + graph.fixed, simulate(graph, *result.plan).peak);
      record.add(packing);
    }
  });
  record.print("plans of random chains");
  EXPECT_GE(record.share(), 0.95);
  EXPECT_LE(record.worst, 1.02);
}

TEST(PackProperty, MoreOfEverythingScales) {
  std::mt19937_64 random(6);
  for (int number = 0; number < test_scale(20); ++number) {
    std::vector<Block> blocks = training_blocks(random, 20, 3);
    const Packing before = pack(blocks, quick());
    for (Block& block : blocks) {
      block.bytes = block.bytes * 8;
      block.begin = 3 * block.begin - 100;
      block.end = 3 * block.end - 100;
    }
    Packing after = pack(blocks, quick(Bytes(512)));
    EXPECT_EQ(after.height, before.height * 8);
    EXPECT_EQ(after.live_bytes, before.live_bytes * 8);
  }
}

TEST(PackProperty, TenThousandBlocks) {
  std::mt19937_64 random(7);
  const std::vector<Block> blocks = random_blocks(
      random, {.blocks = 10'000, .times = 20'000, .max_time = 5000, .max_bytes = 100'000});
  PackOptions options;
  options.steps = 0;
  const Packing packing = pack(blocks, options);
  EXPECT_LE(packing.height.count(), packing.live_bytes.count() * 11 / 10);
}

}  // namespace
}  // namespace reprise::testing
