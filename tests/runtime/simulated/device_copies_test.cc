// These tests copy between devices by hand. Whoever waits for a copy sees its bytes, and whoever
// does not wait is reported.
#include "runtime/transfer/device_copies.h"

#include "device_models.h"

namespace reprise::runtime::testing {
namespace {

using internal::transfer::DeviceCopies;
using internal::transfer::measure_devices;

class DeviceCopiesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { sim::take_reports(); }

  static at::Tensor bytes(c10::Device device, int64_t value) {
    return at::full({4096}, value, at::TensorOptions(device).dtype(at::kByte));
  }
  // Says whether the program that the parameter stands for is the right one.
  bool waits() const { return GetParam(); }

  const c10::Device one_ = sim::device(0), two_ = sim::device(1);
  const Machine machine_ = measure_devices({one_, two_});
  DeviceCopies copies_{{one_, two_}, machine_};
};

TEST_P(DeviceCopiesTest, AReadBehindACopy) {
  const at::Tensor from = bytes(one_, 7), to = bytes(two_, 0);
  copies_.begin({.value = 3, .channel = find_channel(machine_, 0, 1), .from = 0, .to = 1}, from,
                to);
  if (waits()) copies_.wait(3, 1);
  const at::Tensor read = to + 1;
  EXPECT_EQ(sim::take_reports().empty(), waits());
  copies_.end();
  EXPECT_EQ((to + 1).cpu().min().item<int64_t>(), 8);
  EXPECT_EQ(copies_.take_moved().out, Bytes(4096));
}

TEST_P(DeviceCopiesTest, AWriteOverWhatACopyReads) {
  const at::Tensor from = bytes(one_, 7), to = bytes(two_, 0);
  copies_.begin({.value = 3, .channel = find_channel(machine_, 0, 1), .from = 0, .to = 1}, from,
                to);
  copies_.wait(3, 1);
  if (waits()) copies_.settle(3, 0);
  from.zero_();
  EXPECT_EQ(sim::take_reports().empty(), waits());
  const int64_t arrived = to.cpu().min().item<int64_t>();
  EXPECT_TRUE(arrived == 7 || !waits()) << arrived;
}

TEST_P(DeviceCopiesTest, ACopyOfWhatArrives) {
  const at::Tensor from = bytes(one_, 7), there = bytes(two_, 0), back = bytes(one_, 0);
  copies_.begin(
      {.action = 1, .value = 3, .channel = find_channel(machine_, 0, 1), .from = 0, .to = 1}, from,
      there);
  // A copy of the same value waits for what it reads. A copy of another value knows nothing of it,
  // unless it comes after it.
  copies_.begin({.action = 2,
                 .value = waits() ? 3 : 4,
                 .channel = find_channel(machine_, 1, 0),
                 .from = 1,
                 .to = 0},
                there, back);
  EXPECT_EQ(sim::take_reports().empty(), waits());
  const at::Tensor after = bytes(one_, 0);
  copies_.begin({.action = 3,
                 .value = 5,
                 .channel = find_channel(machine_, 1, 0),
                 .from = 1,
                 .to = 0,
                 .after = {1}},
                there, after);
  copies_.end();
  EXPECT_EQ(after.cpu().min().item<int64_t>(), 7);
  EXPECT_TRUE(sim::take_reports().empty());
}

INSTANTIATE_TEST_SUITE_P(Device, DeviceCopiesTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Waits" : "DoesNotWait"; });

// The CPU has no streams: copies from it and to it hold up the host.
TEST(DeviceCopiesOfTheCpu, ArriveInBothDirections) {
  const c10::Device device = sim::device(0);
  const Machine machine = measure_devices({c10::kCPU, device});
  EXPECT_EQ(machine.memories.at(0).name, "cpu");
  EXPECT_EQ(machine.memories.at(1).name, "sim:0");
  EXPECT_TRUE(has_devices(machine));
  DeviceCopies copies({c10::kCPU, device}, machine);
  const at::Tensor from = at::full({1000}, 5, at::kByte);
  const at::Tensor there = at::zeros({1000}, at::TensorOptions(device).dtype(at::kByte));
  const at::Tensor back = at::zeros({1000}, at::kByte);
  copies.begin({.value = 1, .channel = find_channel(machine, 0, 1), .from = 0, .to = 1}, from,
               there);
  copies.wait(1, 1);
  there.add_(1);
  copies.begin({.value = 2, .channel = find_channel(machine, 1, 0), .from = 1, .to = 0}, there,
               back);
  copies.wait(2, 0);
  EXPECT_EQ(back.min().item<int64_t>(), 6);
  EXPECT_EQ(back.max().item<int64_t>(), 6);
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
