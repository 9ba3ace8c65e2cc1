// Tests the check for missing synchronisation: planted bugs, each beside the program that has it
// right.
#include <functional>
#include <regex>

#include "fixture.h"

namespace {

using Order = SimTest;

struct Bench {  // what the programs below work on, all of it in order when they begin
  at::Tensor host = torch::full({1024}, 2.0F).pin_memory();
  at::Tensor host2 = torch::full({1024}, 3.0F).pin_memory();
  at::Tensor x = torch::zeros({1024}, on()), y = torch::zeros({1024}, on());
  at::Tensor far = torch::zeros({1024}, on(1));
  c10::Stream main = default_stream(), side = other_stream(), third = other_stream();

  Bench() {
    for (int d = 0; d < 2; ++d)
      at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(d));
  }
  // Puts what the function launches on the stream.
  static void run_on(c10::Stream stream, const std::function<void()>& launch) {
    const c10::StreamGuard guard(stream);
    launch();
  }
};

struct Planted {
  const char* name;
  // With false the program has the bug; with true it is right.
  std::function<void(Bench&, bool)> program;
  const char* report;  // an expression that the report matches
};

const std::vector<Planted> planted = {
    {"a kernel reads before the copy of another stream has landed",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
       if (right) order(b.side, b.main);
       b.y.add_(b.x);
     },
     "aten::add_.* reads what a copy on .* writes"},
    {"a kernel overwrites what a copy still reads",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
       if (right) order(b.side, b.main);
       b.x.fill_(5);
     },
     "aten::fill_.* overwrites what a copy on .* reads"},
    {"two streams write the same bytes",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
       if (right) order(b.side, b.third);
       b.run_on(b.third, [&] { b.x.copy_(b.host2, true); });
     },
     "a copy on .* overwrites what a copy on .* writes"},
    {"the event is recorded before the copy",
     [](Bench& b, bool right) {
       c10::Event landed(c10::DeviceType::PrivateUse1);
       if (!right) landed.record(b.side);
       b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
       if (right) landed.record(b.side);
       landed.block(b.main);
       b.y.add_(b.x);
     },
     "aten::add_.* reads what a copy on .* writes"},
    {"the wrong stream waits for the event",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
       order(b.side, right ? b.main : b.third);
       b.y.add_(b.x);
     },
     "aten::add_.* reads what a copy on .* writes"},
    {"the second of two copies is awaited by the event of the first",
     [](Bench& b, bool right) {
       c10::Event first(c10::DeviceType::PrivateUse1), second(c10::DeviceType::PrivateUse1);
       b.run_on(b.side, [&] {
         b.x.copy_(b.host, true);
         first.record(b.side);
         b.y.copy_(b.host2, true);
         second.record(b.side);
       });
       (right ? second : first).block(b.main);
       b.x.add(b.y);
     },
     "aten::add.* reads what a copy on .* writes"},
    {"a buffer is filled again while kernels of another stream read it",
     [](Bench& b, bool right) {
       b.y.add_(b.x);
       if (right) order(b.main, b.side);
       b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
     },
     "a copy on .* overwrites what aten::add_.* reads"},
    {"memory is freed while another stream uses it",
     [](Bench& b, bool right) {
       order(b.main, b.side);
       b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
       if (right) b.x.record_stream(b.side);
       b.x = at::Tensor();
     },
     "is freed while a copy on .* may use it: call record_stream"},
    {"record_stream names the wrong stream",
     [](Bench& b, bool right) {
       order(b.main, b.side);
       b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
       b.x.record_stream(right ? b.side : b.third);
       b.x = at::Tensor();
     },
     "is freed while a copy on .* may use it: call record_stream"},
    {"the host reads what a copy still writes",
     [](Bench& b, bool right) {
       b.host.copy_(b.x, true);
       if (right) b.main.synchronize();
       static_cast<void>(b.host[100].item<float>());
     },
     "the host reads pinned memory that a copy on .* still writes"},
    {"the host overwrites what a copy still reads",
     [](Bench& b, bool right) {
       b.x.copy_(b.host, true);
       if (right) b.main.synchronize();
       b.host.fill_(9);
     },
     "the host writes pinned memory that a copy on .* still reads"},
    {"the host waits for the wrong stream",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
       (right ? b.side : b.main).synchronize();
       static_cast<void>(b.host.sum());
     },
     "the host reads pinned memory that a copy on .* still writes"},
    {"two streams copy into the same pinned memory",
     [](Bench& b, bool right) {
       b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
       if (right) order(b.side, b.third);
       b.run_on(b.third, [&] { b.host.copy_(b.y, true); });
     },
     "a copy on .* overwrites what a copy on .* writes"},
    {"another stream of the second device reads what a copy from the first one writes",
     [](Bench& b, bool right) {
       const c10::Stream other = other_stream(1);
       b.far.copy_(b.x, true);
       if (right) order(default_stream(1), other);
       b.run_on(other, [&] { b.far.sum(); });
     },
     "aten::sum.* reads what a copy on stream 0 of sim:0 writes"},
};

TEST_F(Order, AtLeastTenBugsArePlanted) { EXPECT_GE(planted.size(), 10u); }

TEST_F(Order, EachPlantedBugIsReported) {
  for (const Planted& bug : planted) {
    Bench bench;
    sim::take_reports();
    bug.program(bench, /*right=*/false);
    const std::string found = reports();
    EXPECT_TRUE(std::regex_search(found, std::regex(bug.report))) << bug.name << ": " << found;
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 1) << bug.name << ": " << found;
  }
}

TEST_F(Order, NoneOfTheRightProgramsIsReported) {
  for (const Planted& bug : planted) {
    Bench bench;
    sim::take_reports();
    bug.program(bench, /*right=*/true);
    EXPECT_EQ(reports(), "") << "the right program for: " << bug.name;
  }
}

TEST_F(Order, AMissingEventShowsTheOldBytesInEveryRun) {
  for (int run = 0; run < 5; ++run) {
    Bench b;
    b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
    EXPECT_EQ(b.x.sum().item<float>(), 0);
    order(b.side, b.main);
    EXPECT_EQ(b.x.sum().item<float>(), 2048);
    EXPECT_NE(reports(), "");
  }
}

TEST_F(Order, WaitingGoesOverSeveralStreams) {
  Bench b;
  b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
  order(b.side, b.third);
  order(b.third, b.main);
  EXPECT_EQ(b.x.sum().item<float>(), 2048);
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, WhatTheHostHasWaitedForIsOverForEveryStream) {
  Bench b;
  b.run_on(b.side, [&] { b.x.copy_(b.host, true); });
  b.side.synchronize();
  b.run_on(b.third, [&] { b.y.copy_(b.x); });
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, StreamsMayShareATensorWhoseBytesTheyDoNotShare) {
  Bench b;
  const at::Tensor wide = torch::zeros({64, 64}, on());
  at::accelerator::synchronizeDevice(0);
  b.run_on(b.side, [&] { wide.slice(1, 0, 32).fill_(1); });
  b.run_on(b.third, [&] { wide.slice(1, 32, 64).fill_(2); });
  EXPECT_EQ(reports(), "");
  b.run_on(b.main, [&] { wide.slice(1, 31, 33).fill_(2); });
  EXPECT_NE(reports(), "");
}

TEST_F(Order, TwoStreamsMayReadTheSameBytes) {
  Bench b;
  b.run_on(b.side, [&] { b.host.copy_(b.x, true); });
  b.run_on(b.third, [&] { b.host2.copy_(b.x, true); });
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, TheHostMayReadWhatACopyReads) {
  Bench b;
  b.x.copy_(b.host, true);
  EXPECT_EQ(b.host.sum().item<float>(), 2048);
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, TheHostMayUseTheRestOfPinnedMemory) {
  Bench b;
  b.host.narrow(0, 0, 512).copy_(b.x.narrow(0, 0, 512), true);
  b.host.narrow(0, 512, 512).fill_(4);
  EXPECT_EQ(b.host[700].item<float>(), 4);
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, PinnedMemoryMayBeFreedWhileACopyReadsIt) {
  Bench b;
  b.x.copy_(b.host, true);
  b.host = torch::full({1024}, 8.0F).pin_memory();  // takes the same place
  EXPECT_EQ(b.x.sum().item<float>(), 2048);
  EXPECT_EQ(reports(), "");
}

TEST_F(Order, AnOverlappedLoopWithTwoBuffersIsNotReported) {
  Bench b;
  std::vector<at::Tensor> hosts = {b.host, b.host2}, buffers = {b.x, b.y};
  c10::Event landed(c10::DeviceType::PrivateUse1), used(c10::DeviceType::PrivateUse1);
  at::Tensor sum = torch::zeros({}, on());
  const auto fetch = [&](size_t i) {
    const c10::StreamGuard guard(b.side);
    used.block(b.side);
    buffers[i % 2].copy_(hosts[i % 2], true);
    landed.record(b.side);
  };
  fetch(0);
  for (size_t i = 0; i < 6; ++i) {
    landed.block(b.main);
    if (i + 1 < 6) fetch(i + 1);
    sum.add_(buffers[i % 2].sum());
    used.record(b.main);
  }
  EXPECT_EQ(sum.item<float>(), 3 * 2048 + 3 * 3072);
  EXPECT_EQ(reports(), "");
}

}  // namespace
