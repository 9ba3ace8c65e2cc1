// Measures times on a machine that may be busy with other work.
//
// Wall time goes on while other programs have the processor. A busy machine makes wall times longer
// by factors, and not all of them by the same factor: a long run is always interrupted, a short run
// only now and then. The processor time of the thread stands still meanwhile, so two clocks tell
// more than one.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reprise/model/units.h"
#include "runtime/device/device.h"

namespace reprise::runtime::internal::device {

// The time of one run by two clocks. On a device that is not the CPU, both are the wall time.
struct TimedRun {
  Nanos wall;
  Nanos processor;  // time in which the calling thread had a processor

  bool operator==(const TimedRun&) const = default;
};

Nanos wall_clock();
Nanos processor_clock();  // of the calling thread

// Runs `work` and waits until the device is done.
template <class Work>
TimedRun time_run(c10::Device device, Work&& work) {
  synchronize(device);
  // The clock of the processor takes longer to read, so its readings lie outside.
  const Nanos processor = processor_clock();
  const Nanos wall = wall_clock();
  work();
  synchronize(device);
  TimedRun run{.wall = wall_clock() - wall, .processor = {}};
  run.processor = device.is_cpu() ? processor_clock() - processor : run.wall;
  return run;
}

// The estimate of one time from several runs of the same work. On a quiet machine it is the median
// of the wall times. On a busy machine it is the lower quartile of the shorter of both times:
// processor time leaves out interruptions, and a low quantile leaves out the runs in which the
// thread had its processor and waited for a helper thread that had none. A work that waits for
// something other than a processor is estimated too short on a busy machine. Returns 0 if there
// are no runs.
Nanos typical_time(const std::vector<TimedRun>& runs, bool busy);

std::vector<Nanos> wall_times(const std::vector<TimedRun>& runs);

// A ThreadTime is the time in which a thread ran, and the time in which it was ready and waited for
// a processor.
struct ThreadTime {
  Nanos ran, waited;
};
using ThreadTimes = std::map<int64_t, ThreadTime>;  // by number of the thread

// Reads the times of all threads of this process from /proc; empty if the system does not say them.
ThreadTimes thread_times();

// Returns the share of time, in percent, in which a thread that was ready had a processor. The
// thread with the smallest share counts, because the others wait for it at the end of an operation.
// Threads that were ready for less than a tenth of `elapsed` do not count.
int64_t processor_percent(const ThreadTimes& before, const ThreadTimes& after, Nanos elapsed);

// Below this share a machine is busy.
inline constexpr int64_t kQuietPercent = 90;

// Watches from its construction on whether the threads of this process have their processors. Where
// the system does not count waiting threads, the two clocks of the calling thread answer instead.
class ProcessorWatch {
 public:
  explicit ProcessorWatch(c10::Device device);

  // Returns the share of processor_percent() for a busy machine, and 100 for a quiet machine. A
  // profile records this number.
  int64_t percent() const;
  bool busy() const { return percent() < 100; }

 private:
  c10::Device device_;
  Nanos wall_, processor_;
  ThreadTimes threads_;
};

}  // namespace reprise::runtime::internal::device
