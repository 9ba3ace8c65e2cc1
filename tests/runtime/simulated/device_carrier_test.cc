// These tests copy between devices by hand. Whoever waits for a copy sees its bytes, and whoever
// does not wait is reported.
#include "runtime/transfer/device_carrier.h"

#include <map>
#include <utility>

#include "device_models.h"

namespace reprise::runtime::testing {
namespace {

using internal::transfer::DeviceCarrier;
using internal::transfer::measure_devices;
using internal::transfer::Resident;

// The storages of values, by value and memory.
class Places final : public internal::transfer::Residency {
 public:
  Places(c10::Device first, c10::Device second) : devices_{first, second} {}

  std::vector<Resident> residents(ValueIndex value, int32_t memory) override {
    return {all_.at({value, memory}).storage()};
  }
  void arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) override {
    all_[{value, memory}] = at::empty({kBytes}, options(memory));
    all_[{value, memory}].storage().set_data_ptr(std::move(blocks.at(0)));
  }
  const at::Tensor& fill(ValueIndex value, int32_t memory, int64_t number) {
    return all_[{value, memory}] = at::full({kBytes}, number, options(memory));
  }
  // Lets another value lie in the same memory on the second device.
  void share(ValueIndex value, const at::Tensor& memory) { all_[{value, 1}] = memory; }
  const at::Tensor& tensor(ValueIndex value, int32_t memory) const {
    return all_.at({value, memory});
  }

 private:
  static constexpr int64_t kBytes = 4096;
  at::TensorOptions options(int32_t memory) const {
    return at::TensorOptions(devices_.at(memory)).dtype(at::kByte);
  }

  const std::vector<c10::Device> devices_;
  std::map<std::pair<ValueIndex, int32_t>, at::Tensor> all_;
};

class DeviceCarrierTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { sim::take_reports(); }

  // Says whether the program that the parameter stands for is the right one.
  bool waits() const { return GetParam(); }
  void copy(int64_t action, ValueIndex value, int32_t from, std::vector<int64_t> after = {}) {
    carrier_.copy({.action = action,
                   .value = value,
                   .channel = find_channel(machine_, from, 1 - from),
                   .from = from,
                   .to = 1 - from,
                   .after = std::move(after)});
  }

  const c10::Device one_ = sim::device(0), two_ = sim::device(1);
  const Machine machine_ = measure_devices({one_, two_});
  Places places_{one_, two_};
  DeviceCarrier carrier_{{one_, two_}, machine_, places_};
};

TEST_P(DeviceCarrierTest, AReadBehindACopy) {
  places_.fill(3, 0, 7);
  copy(0, 3, 0);
  if (waits()) carrier_.wait(3, 1);
  const at::Tensor read = places_.tensor(3, 1) + 1;
  EXPECT_EQ(sim::take_reports().empty(), waits());
  carrier_.end();
  EXPECT_EQ((places_.tensor(3, 1) + 1).cpu().min().item<int64_t>(), 8);
  EXPECT_EQ(carrier_.take_moved().out, Bytes(4096));
}

TEST_P(DeviceCarrierTest, AWriteOverWhatACopyReads) {
  const at::Tensor from = places_.fill(3, 0, 7);
  copy(0, 3, 0);
  carrier_.wait(3, 1);
  if (waits()) carrier_.free(3, 0);
  from.zero_();
  EXPECT_EQ(sim::take_reports().empty(), waits());
  const int64_t arrived = places_.tensor(3, 1).cpu().min().item<int64_t>();
  EXPECT_TRUE(arrived == 7 || !waits()) << arrived;
}

TEST_P(DeviceCarrierTest, ACopyOfWhatArrives) {
  const at::Tensor from = places_.fill(3, 0, 7);
  copy(1, 3, 0);
  // A copy of the same value waits for what it reads. A copy of another value knows nothing of it,
  // unless it comes after it.
  const at::Tensor there = places_.tensor(3, 1);
  places_.share(4, there);
  places_.share(5, there);
  copy(2, waits() ? 3 : 4, 1);
  EXPECT_EQ(sim::take_reports().empty(), waits());
  copy(3, 5, 1, {1});
  carrier_.end();
  EXPECT_EQ(places_.tensor(5, 0).cpu().min().item<int64_t>(), 7);
  EXPECT_TRUE(sim::take_reports().empty());
}

INSTANTIATE_TEST_SUITE_P(Device, DeviceCarrierTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Waits" : "DoesNotWait"; });

// The CPU has no streams: copies from it and to it hold up the host.
TEST(DeviceCarrierOfTheCpu, ArriveInBothDirections) {
  const c10::Device device = sim::device(0);
  const Machine machine = measure_devices({c10::kCPU, device});
  EXPECT_EQ(machine.memories.at(0).name, "cpu");
  EXPECT_EQ(machine.memories.at(1).name, "sim:0");
  EXPECT_TRUE(has_devices(machine));
  Places places(c10::kCPU, device);
  DeviceCarrier carrier({c10::kCPU, device}, machine, places);
  places.fill(1, 0, 5);
  carrier.copy({.value = 1, .channel = find_channel(machine, 0, 1), .from = 0, .to = 1});
  carrier.wait(1, 1);
  places.tensor(1, 1).add_(1);
  places.share(2, places.tensor(1, 1));
  carrier.copy({.value = 2, .channel = find_channel(machine, 1, 0), .from = 1, .to = 0});
  carrier.wait(2, 0);
  EXPECT_EQ(places.tensor(2, 0).min().item<int64_t>(), 6);
  EXPECT_EQ(places.tensor(2, 0).max().item<int64_t>(), 6);
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
