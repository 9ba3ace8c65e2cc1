// Tests the simulated clock, and when copies land.
#include "fixture.h"

namespace {

using Time = SimTest;
constexpr int64_t kFloats = 1 << 20;  // 4 MiB: 419,430 ns at the copies' 10 GB/s, and 5,000 beside

int64_t waited(const std::function<void()>& body) {
  at::accelerator::synchronizeDevice(0);
  const int64_t begun = sim::host_time_ns();
  body();
  at::accelerator::synchronizeDevice(0);
  return sim::host_time_ns() - begun;
}

TEST_F(Time, ACopyLandsWhenItIsWaitedForAndNotBefore) {
  const at::Tensor host = torch::zeros({16}).pin_memory(), x = torch::full({16}, 3.0F, on());
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(host[5].item<float>(), 0);  // too early
  EXPECT_NE(reports(), "");
  at::accelerator::synchronizeDevice(0);
  EXPECT_EQ(host[5].item<float>(), 3);
  EXPECT_EQ(reports(), "");
}

TEST_F(Time, AKernelBehindACopySeesIt) {
  const at::Tensor host = torch::full({16}, 3.0F).pin_memory(), x = torch::zeros({16}, on());
  x.copy_(host, true);
  EXPECT_EQ(x.sum().item<float>(), 48);
  EXPECT_EQ(reports(), "");
}

TEST_F(Time, ACopyTakesItsBytesOverItsRate) {
  const at::Tensor host = torch::zeros({kFloats}).pin_memory(), x = torch::empty({kFloats}, on());
  EXPECT_EQ(waited([&] { x.copy_(host, true); }), 5'000 + 419'430);
  EXPECT_EQ(waited([&] { host.copy_(x, true); }), 5'000 + 419'430);
}

TEST_F(Time, BothDirectionsAndKernelsRunAtOnce) {
  const at::Tensor in = torch::zeros({kFloats}).pin_memory(),
                   out = torch::zeros({kFloats}).pin_memory();
  const at::Tensor x = torch::empty({kFloats}, on()), y = torch::zeros({kFloats}, on());
  at::Tensor z = torch::ones({kFloats}, on());
  const c10::Stream up = other_stream(), down = other_stream();
  at::accelerator::synchronizeDevice(0);
  const sim::BusyTimes before = sim::busy_times(0);
  const int64_t together = waited([&] {
    {
      const c10::StreamGuard guard(up);
      x.copy_(in, true);
    }
    {
      const c10::StreamGuard guard(down);
      out.copy_(y, true);
    }
    for (int i = 0; i < 5; ++i) z.mul_(2);
  });
  const sim::BusyTimes after = sim::busy_times(0);
  const int64_t copy = after.to_device_ns - before.to_device_ns;
  EXPECT_EQ(copy, 424'430);
  EXPECT_EQ(after.to_host_ns - before.to_host_ns, copy);
  EXPECT_GT(after.kernels_ns - before.kernels_ns, 100'000);
  EXPECT_LT(together, copy + 10'000);
  EXPECT_EQ(reports(), "");
}

TEST_F(Time, TwoCopiesOfOneDirectionTakeTurns) {
  const at::Tensor host = torch::zeros({kFloats}).pin_memory();
  const at::Tensor x = torch::empty({kFloats}, on()), y = torch::empty({kFloats}, on());
  const c10::Stream other = other_stream();
  EXPECT_EQ(waited([&] {
              x.copy_(host, true);
              const c10::StreamGuard guard(other);
              order(default_stream(), other);
              y.copy_(host, true);
            }),
            2 * 424'430);
}

TEST_F(Time, EventsMeasureIt) {
  const at::Tensor host = torch::zeros({kFloats}).pin_memory(), x = torch::empty({kFloats}, on());
  c10::Event begun(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event ended(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  at::accelerator::synchronizeDevice(0);
  begun.record(default_stream());
  x.copy_(host, true);
  ended.record(default_stream());
  ended.synchronize();
  EXPECT_NEAR(begun.elapsedTime(ended), 0.42443, 1e-9);
}

TEST_F(Time, ALoopThatAsksAnEventEndsAndHasWaited) {
  const at::Tensor host = torch::zeros({kFloats}).pin_memory(), x = torch::ones({kFloats}, on());
  host.copy_(x, true);
  c10::Event landed(c10::DeviceType::PrivateUse1);
  landed.record(default_stream());
  int questions = 0;
  while (!landed.query()) ASSERT_LT(++questions, 10'000);
  EXPECT_GT(questions, 0);
  EXPECT_EQ(host[9].item<float>(), 1);
  EXPECT_EQ(reports(), "");
}

TEST_F(Time, TheSameCallsTakeTheSameTime) {
  const at::Tensor host = torch::zeros({kFloats}).pin_memory(), x = torch::empty({kFloats}, on());
  const auto body = [&] {
    x.copy_(host, true);
    x.add_(1);
    host.copy_(x, true);
  };
  EXPECT_EQ(waited(body), waited(body));
}

}  // namespace
