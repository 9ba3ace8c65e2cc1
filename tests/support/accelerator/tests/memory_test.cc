// Tests memory of devices: who may touch it, how much there is, and how it is counted.
#include "accelerator/holes.h"
#include "fixture.h"

namespace {

using Memory = SimTest;

struct Numbers {
  int64_t bytes = 0, requested = 0, blocks = 0;
  bool operator==(const Numbers&) const = default;
};
Numbers numbers(int device = 0) {
  const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  return {stats.allocated_bytes[0].current, stats.requested_bytes[0].current,
          stats.allocation[0].current};
}
Numbers operator-(const Numbers& a, const Numbers& b) {
  return {a.bytes - b.bytes, a.requested - b.requested, a.blocks - b.blocks};
}

class Capacity {  // bytes that are free on sim:0, until the end of the scope
 public:
  explicit Capacity(int64_t free) : before_(sim::capacity(0)) {
    sim::set_capacity(0, static_cast<size_t>(numbers().bytes + free));
  }
  ~Capacity() { sim::set_capacity(0, before_); }
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

 private:
  size_t before_;
};

TEST_F(Memory, TheHostCannotReadIt) {
  const at::Tensor x = torch::ones({4}, on());
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile float*>(x.const_data_ptr())),
               "the host touched memory of a device");
}

TEST_F(Memory, TheHostCannotWriteIt) {
  const at::Tensor x = torch::ones({4}, on());
  EXPECT_DEATH(*static_cast<volatile float*>(x.mutable_data_ptr()) = 1,
               "the host touched memory of a device");
}

TEST_F(Memory, StatisticsAreExactToTheGranule) {
  for (const int64_t bytes : {1, 511, 512, 513, 4000, 100'000}) {
    const Numbers before = numbers();
    at::Tensor x = torch::empty({bytes}, on().dtype(torch::kByte));
    EXPECT_EQ(numbers() - before, (Numbers{(bytes + 511) / 512 * 512, bytes, 1})) << bytes;
    x = at::Tensor();
    EXPECT_EQ(numbers(), before) << bytes;
  }
}

TEST_F(Memory, AResultAndItsPeakAreCountedOnTheDevicesAndNotOnTheOther) {
  const at::Tensor x = torch::ones({1000}, on(1));
  const Numbers before = numbers(1), other = numbers(0);
  at::accelerator::resetPeakStats(1);
  const at::Tensor y = x.add(x).add(x);  // two results of 4,096 bytes, one of which goes
  EXPECT_EQ((numbers(1) - before).bytes, 4096);
  EXPECT_EQ(at::accelerator::getDeviceStats(1).allocated_bytes[0].peak - before.bytes, 2 * 4096);
  EXPECT_EQ(numbers(0), other);
}

TEST_F(Memory, TheLastByteIsThereAndOneMoreIsOutOfMemory) {
  const Capacity capacity(8192);
  const int64_t failures = at::accelerator::getDeviceStats(0).num_ooms;
  { const at::Tensor all = torch::empty({8192}, on().dtype(torch::kByte)); }
  const Numbers before = numbers();
  try {
    const at::Tensor more = torch::empty({8193}, on().dtype(torch::kByte));
    FAIL() << "a device gave more memory than it has";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("sim:0 is out of memory: 8193 bytes"), std::string::npos) << text;
  }
  EXPECT_EQ(numbers(), before);
  EXPECT_EQ(at::accelerator::getDeviceStats(0).num_ooms, failures + 1);
}

TEST_F(Memory, AKernelThatFindsNoMemoryLeavesItsOperandsAlone) {
  const at::Tensor x = torch::ones({4096}, on());
  {
    const Capacity capacity(4096);
    EXPECT_THROW(x.add(1), c10::OutOfMemoryError);
  }
  EXPECT_TRUE(same_bits(x.add(1), torch::full({4096}, 2.0F)));
}

TEST_F(Memory, AChosenAllocationFailsOnce) {
  sim::fail_allocation(0, 2);
  const at::Tensor first = torch::empty({4}, on());
  EXPECT_THROW(torch::empty({4}, on()), c10::OutOfMemoryError);
  EXPECT_NO_THROW(torch::empty({4}, on()));
}

TEST_F(Memory, NewMemoryIsNaN) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    EXPECT_TRUE(torch::empty({100}, on().dtype(type)).isnan().all().item<bool>()) << type;
  }
}

TEST_F(Memory, FreedMemoryIsNaN) {
  at::Tensor x = torch::ones({100}, on());
  const at::Tensor stale = torch::from_blob(x.mutable_data_ptr(), {100}, on());
  EXPECT_EQ(stale[0].item<float>(), 1);
  x = at::Tensor();
  EXPECT_TRUE(stale.isnan().all().item<bool>());
}

TEST_F(Memory, AFreedBlockIsNotGivenOutWhileACopyUsesIt) {
  const at::Tensor host = torch::full({256}, 7.0F).pin_memory();
  at::Tensor x = torch::zeros({256}, on());
  const void* const place = x.const_data_ptr();
  x.copy_(host, /*non_blocking=*/true);
  x = at::Tensor();
  const at::Tensor y = torch::zeros({256}, on());
  EXPECT_NE(y.const_data_ptr(), place);
  at::accelerator::synchronizeDevice(0);
  EXPECT_EQ(y.sum().item<float>(), 0);
}

TEST_F(Memory, CopiesLandBeforeMemoryIsRefused) {
  const at::Tensor host = torch::ones({1024}).pin_memory();
  const Capacity capacity(4096);
  at::Tensor x = torch::empty({1024}, on());
  x.copy_(host, true);
  x = at::Tensor();
  EXPECT_NO_THROW(torch::empty({1024}, on()));
}

TEST_F(Memory, TheBestHoleIsTakenAndNeighboursAreOne) {
  sim::Holes holes(100);
  EXPECT_EQ(holes.take(40), 0u);
  EXPECT_EQ(holes.take(10), 40u);
  EXPECT_EQ(holes.take(20), 50u);
  holes.give_back(40, 10);
  EXPECT_EQ(holes.take(10), 40u);  // not of the 30 at the end
  EXPECT_EQ(holes.take(31), std::nullopt);
  holes.give_back(40, 10);
  holes.give_back(50, 20);
  EXPECT_EQ(holes.largest(), 60u);
  holes.give_back(0, 40);
  EXPECT_EQ(holes.take(100), 0u);
}

TEST_F(Memory, OtherOptionsAreRefusedOnceTheDevicesAreThere) {
  EXPECT_THROW(sim::install({.devices = 3}), c10::Error);
}

}  // namespace
