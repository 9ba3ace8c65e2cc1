#include "runtime/device/stopwatch.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "reprise/runtime/busy_machine.h"
#include "runtime/device/median.h"

namespace reprise::runtime::internal::device {

namespace {

Nanos read_clock(clockid_t clock) {
  timespec now = {};
  ::clock_gettime(clock, &now);
  return Nanos(int64_t{now.tv_sec} * 1'000'000'000 + int64_t{now.tv_nsec});
}

Nanos lower_quartile(std::vector<Nanos> times) {
  if (times.empty()) return {};
  const auto rank = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 4);
  std::nth_element(times.begin(), rank, times.end());
  return *rank;
}

}  // namespace

Nanos wall_clock() { return read_clock(CLOCK_MONOTONIC); }

Nanos processor_clock() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

std::vector<Nanos> wall_times(const std::vector<TimedRun>& runs) {
  std::vector<Nanos> times;
  times.reserve(runs.size());
  for (const TimedRun& run : runs) times.push_back(run.wall);
  return times;
}

Nanos typical_time(const std::vector<TimedRun>& runs, bool busy) {
  std::vector<Nanos> times = wall_times(runs);
  if (!busy) return median(std::move(times));
  for (size_t k = 0; k < runs.size(); ++k) times[k] = std::min(times[k], runs[k].processor);
  return lower_quartile(std::move(times));
}

ThreadTimes thread_times() {
  ThreadTimes times;
  std::error_code error;
  // A thread may end while the folder is read; its file is then missing.
  std::filesystem::directory_iterator threads("/proc/self/task", error), end;
  for (; !error && threads != end; threads.increment(error)) {
    std::ifstream file(threads->path() / "schedstat");
    int64_t ran = 0, waited = 0;
    if (!(file >> ran >> waited)) continue;
    const int64_t number = std::atoll(threads->path().filename().c_str());
    times[number] = {Nanos(ran), Nanos(waited)};
  }
  return times;
}

int64_t processor_percent(const ThreadTimes& before, const ThreadTimes& after, Nanos elapsed) {
  int64_t least = 100;
  for (const auto& [number, now] : after) {
    const auto found = before.find(number);
    const ThreadTime start = found == before.end() ? ThreadTime() : found->second;
    const int64_t ran = (now.ran - start.ran).count();
    const int64_t ready = ran + (now.waited - start.waited).count();
    if (ready <= 0 || ready < elapsed.count() / 10) continue;
    least = std::min(least, 100 * ran / ready);
  }
  return std::max<int64_t>(0, least);
}

ProcessorWatch::ProcessorWatch(c10::Device device)
    : device_(device),
      wall_(wall_clock()),
      processor_(processor_clock()),
      threads_(thread_times()) {}

int64_t ProcessorWatch::percent() const {
  const Nanos elapsed = wall_clock() - wall_;
  const ThreadTimes now = thread_times();
  int64_t share = 100;
  if (!now.empty()) {
    share = processor_percent(threads_, now, elapsed);
  } else if (device_.is_cpu() && elapsed > Nanos()) {
    // A thread that waits for another device needs no processor, so only the CPU is judged.
    share = std::max<int64_t>(0, 100 * (processor_clock() - processor_).count() / elapsed.count());
  }
  return share < kQuietPercent ? share : 100;
}

}  // namespace reprise::runtime::internal::device

namespace reprise::runtime {

std::string explain_busy_machine(int64_t processor_percent) {
  if (processor_percent >= 100) return {};
  return fmt::format(
      "the machine is busy: a thread of the measurement had a processor {} % of the time in which "
      "it needed one, so times are less certain; measure again when other programs have ended, or "
      "with fewer threads (OMP_NUM_THREADS)",
      processor_percent);
}

}  // namespace reprise::runtime
