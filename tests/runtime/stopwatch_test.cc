// Checks times by two clocks, and what a busy machine does to them.
#include "runtime/device/stopwatch.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "reprise/runtime/measure.h"

namespace reprise::runtime {

using internal::device::processor_clock;
using internal::device::processor_percent;
using internal::device::ProcessorWatch;
using internal::device::ThreadTimes;
using internal::device::time_run;
using internal::device::TimedRun;
using internal::device::typical_time;

namespace {

TimedRun run(int64_t wall, int64_t processor) { return {Nanos(wall), Nanos(processor)}; }

TEST(StopwatchTest, AQuietMachineTakesTheMedianOfTheWallTimes) {
  EXPECT_EQ(typical_time({run(100, 90), run(300, 290), run(90, 80)}, false), Nanos(100));
  EXPECT_EQ(typical_time({}, false), Nanos());
}

TEST(StopwatchTest, ABusyMachineLeavesOutInterruptions) {
  // Each run is interrupted: the wall times are wrong by factors.
  EXPECT_EQ(typical_time({run(4100, 100), run(8100, 101), run(210, 102)}, true), Nanos(100));
  EXPECT_EQ(typical_time({}, true), Nanos());
}

TEST(StopwatchTest, ABusyMachineLeavesOutRunsThatSpunForAHelper) {
  // Both clocks go on while a thread spins. Two of five runs were undisturbed.
  const std::vector<TimedRun> runs{run(4000, 4000), run(101, 101), run(5000, 5000), run(100, 100),
                                   run(4500, 4500)};
  EXPECT_EQ(typical_time(runs, false), Nanos(4000));
  EXPECT_EQ(typical_time(runs, true), Nanos(101));
}

TEST(StopwatchTest, TheProcessorTimeOfARunIsNeverTakenForLongerThanItsWallTime) {
  // The readings of the processor clock lie outside the readings of the wall clock.
  EXPECT_EQ(typical_time({run(100, 700)}, true), Nanos(100));
}

TEST(StopwatchTest, TheThreadThatWaitedMostCounts) {
  const ThreadTimes before{{1, {Nanos(1000), Nanos(500)}}, {2, {Nanos(0), Nanos(0)}}};
  const ThreadTimes after{{1, {Nanos(2000), Nanos(500)}},  // always had a processor
                          {2, {Nanos(600), Nanos(400)}},   // had one 60 % of the time
                          {3, {Nanos(900), Nanos(100)}},   // began meanwhile
                          {4, {Nanos(1), Nanos(98)}}};     // was hardly ever ready
  EXPECT_EQ(processor_percent(before, after, Nanos(1000)), 60);
  EXPECT_EQ(processor_percent(before, before, Nanos(1000)), 100);
  EXPECT_EQ(processor_percent({}, {}, Nanos(1000)), 100);
  EXPECT_EQ(processor_percent({}, {{1, {Nanos(0), Nanos(900)}}}, Nanos(1000)), 0);
}

TEST(StopwatchTest, OnlyABusyMachineIsExplained) {
  EXPECT_EQ(explain_busy_machine(100), "");
  const std::string text = explain_busy_machine(62);
  EXPECT_NE(text.find("the machine is busy"), std::string::npos) << text;
  EXPECT_NE(text.find("62 %"), std::string::npos) << text;
  EXPECT_NE(text.find("measure again"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// Takes the processor that the calling thread is bound to away from it, with three other threads.
class BusyProcessor {
 public:
  BusyProcessor() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);  // the threads below inherit it
    for (int k = 0; k < 3; ++k) {
      burners_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  ~BusyProcessor() {
    stop_ = true;
    for (std::thread& burner : burners_) burner.join();
    ::sched_setaffinity(0, sizeof(before_), &before_);
  }
  BusyProcessor(const BusyProcessor&) = delete;
  BusyProcessor& operator=(const BusyProcessor&) = delete;

 private:
  cpu_set_t before_ = {};
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> burners_;
};

TEST(StopwatchTest, AThreadWhoseProcessorIsTakenAwayNoticesAndMeasuresItsOwnTime) {
  constexpr Nanos kWork(5'000'000);  // of processor time, on any machine
  const auto work = [&] {
    const Nanos start = processor_clock();
    while (processor_clock() - start < kWork) {
    }
  };
  const BusyProcessor busy;
  const ProcessorWatch watch(c10::kCPU);
  std::vector<TimedRun> runs;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int64_t percent = 100;
  while ((runs.size() < 8 || percent == 100) && std::chrono::steady_clock::now() < deadline) {
    runs.push_back(time_run(c10::kCPU, work));
    percent = watch.percent();
  }
  ASSERT_LT(percent, 100);
  EXPECT_GE(typical_time(runs, true), kWork);
  EXPECT_LE(typical_time(runs, true), kWork * 2);
}

}  // namespace
}  // namespace reprise::runtime
