// The allocator counts every block, and its limit is sharp.
#include "reprise/runtime/allocator.h"

#include <ATen/Parallel.h>

#include <thread>
#include <vector>

#include "tight_step.h"

namespace reprise::runtime::testing {
namespace {

TEST(Allocator, CountsBlocksOf64BytesAndGivesThemBack) {
  install_cpu_allocator();
  install_cpu_allocator();
  EXPECT_TRUE(cpu_allocator_installed());
  const int64_t before = live();
  for (const int64_t bytes : {1, 63, 64, 65, 128, 4097}) {
    reset_peak(c10::kCPU);
    const at::Tensor block = at::empty({bytes}, at::kByte);
    EXPECT_EQ(live() - before, (bytes + 63) / 64 * 64);
    EXPECT_TRUE(cpu_allocator_owns(block.const_data_ptr()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.const_data_ptr()) % 64, 0u);
    EXPECT_EQ(memory_count(c10::kCPU).allocations, 1);
    EXPECT_EQ(memory_count(c10::kCPU).peak, live());
  }
  EXPECT_EQ(live(), before);
  const at::Tensor nothing = at::empty({0});
  EXPECT_EQ(live(), before);
  float host = 0;
  EXPECT_FALSE(cpu_allocator_owns(at::from_blob(&host, {1}).const_data_ptr()));
}

TEST(Allocator, TheLimitIsSharp) {
  install_cpu_allocator();
  const int64_t before = live();
  {
    MemoryLimitGuard limit(before + 1024);
    EXPECT_NO_THROW(at::empty({1024}, at::kByte));
    EXPECT_NO_THROW(at::empty({1000}, at::kByte));
  }
  {
    MemoryLimitGuard limit(before + 1023);
    try {
      at::empty({1000}, at::kByte);  // counts as 1024
      ADD_FAILURE() << "over the limit";
    } catch (const BudgetError& error) {
      EXPECT_EQ(error.budget(), before + 1023);
      EXPECT_EQ(error.live(), before);
      EXPECT_EQ(error.requested(), 1024);
    }
    EXPECT_NO_THROW(at::empty({960}, at::kByte));
  }
  EXPECT_EQ(memory_limit(), std::nullopt);
  EXPECT_EQ(live(), before);
}

// Each thread of this operation takes scratch memory of its own. When the threads meet, more is
// live at once than when one ends before the other begins. This depends on chance, and yet the
// count is the same in every run.
TEST(Allocator, ThreadsOfAnOperationCountAsIfTheyMet) {
  install_cpu_allocator();
  const int threads = at::get_num_threads();
  const at::Tensor q = at::ones({2, 2, 32, 16});
  const auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q);
  auto backward = [&, &output = output, &sums = sums] {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(q, q, q, q, output, sums, 0.0, false);
  };
  auto peak = [&] {
    const int64_t before = live();
    reset_peak(c10::kCPU);
    backward();
    EXPECT_EQ(live(), before);
    return memory_count(c10::kCPU).peak - before;
  };
  at::set_num_threads(2);
  take_cpu_workers_peak();
  const int64_t first = peak();
  for (int round = 0; round < 300; ++round) ASSERT_EQ(peak(), first) << "round " << round;
  EXPECT_EQ(take_cpu_workers_peak(), 128)
      << "one float a row: another operation may be needed here";
  EXPECT_EQ(take_cpu_workers_peak(), 0);
  MemoryLimitGuard limit(live() + first);
  EXPECT_NO_THROW(backward());
  set_memory_limit(*memory_limit() - 1);
  for (int round = 0; round < 300; ++round) ASSERT_THROW(backward(), BudgetError);
  at::set_num_threads(threads);
}

TEST(Allocator, ARefusalCanThrowAnotherException) {
  install_cpu_allocator();
  struct Other {
    int64_t requested;
  };
  set_refusal([](const BudgetError& error) { throw Other{error.requested()}; });
  {
    MemoryLimitGuard limit(live());
    try {
      at::empty({1000}, at::kByte);
      ADD_FAILURE() << "over the limit";
    } catch (const Other& other) {
      EXPECT_EQ(other.requested, 1024);
    }
  }
  set_refusal(nullptr);
  MemoryLimitGuard limit(live());
  EXPECT_THROW(at::empty({1000}, at::kByte), BudgetError);
}

TEST(Allocator, ManyThreads) {
  install_cpu_allocator();
  const int64_t before = live();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::vector<at::Tensor> held(16);
      for (int64_t i = 0; i < 2000; ++i) {
        held[static_cast<size_t>(i % 16)] = at::empty({(i * 37 + t) % 5000 + 1}, at::kByte);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live(), before);
}

}  // namespace
}  // namespace reprise::runtime::testing
