#include "rapl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::cli {

namespace {

struct EnergyCounter {
  std::filesystem::path file;
  int64_t range = 0;  // It begins again at 0 behind this.
};

std::optional<int64_t> read_number(const std::filesystem::path& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (!(stream >> number)) return {};
  return number;
}

// The packages are intel-rapl:0, intel-rapl:1, ...; parts of a package have a second colon.
std::vector<EnergyCounter> counters_in(const std::filesystem::path& folder) {
  std::vector<EnergyCounter> counters;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t colon = name.find(':');
    if (colon == std::string::npos || name.find(':', colon + 1) != std::string::npos) continue;
    if (!read_number(entry.path() / "energy_uj")) continue;
    counters.push_back({entry.path() / "energy_uj",
                        read_number(entry.path() / "max_energy_range_uj").value_or(0)});
  }
  return counters;
}

// Returns the power in milliwatts while `work` runs.
template <class Work>
int64_t power_while(const std::vector<EnergyCounter>& counters, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> before;
  for (const EnergyCounter& one : counters) before.push_back(read_number(one.file).value_or(0));
  const Clock::time_point begin = Clock::now();
  work();
  const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
  double microjoules = 0;
  for (size_t k = 0; k < counters.size(); ++k) {
    const int64_t difference = read_number(counters[k].file).value_or(before[k]) - before[k];
    microjoules +=
        static_cast<double>(difference < 0 ? difference + counters[k].range : difference);
  }
  return std::llround(1e3 * microjoules / took.count());
}

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

void compute() {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (unsigned k = 0; k < std::max(1U, std::thread::hardware_concurrency()); ++k) {
    threads.emplace_back([&stop] {
      volatile double result = 0;
      double factors[8] = {1, 2, 3, 4, 5, 6, 7, 8};
      while (!stop) {
        for (int i = 0; i < 10'000; ++i) {
          for (double& x : factors) x = x * 0.999 + 0.001;
        }
        result = factors[0];
      }
      (void)result;
    });
  }
  rest();
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Power measure_power(const std::filesystem::path& folder) {
  const std::vector<EnergyCounter> counters = counters_in(folder);
  if (counters.empty()) {
    throw InputError(fmt::format(
        "no energy counter of a processor can be read in {} (virtual machines have none, and "
        "reading may take root); give the power, like --power static=20W,dynamic=45W",
        folder.string()));
  }
  Power power;
  power.static_mw = power_while(counters, rest);
  const int64_t busy = power_while(counters, compute);
  if (busy <= 0) {
    throw InputError(
        fmt::format("the energy counters in {} stand still; give the power, like --power "
                    "static=20W,dynamic=45W",
                    folder.string()));
  }
  power.dynamic_mw = std::max<int64_t>(0, busy - power.static_mw);
  return power;
}

}  // namespace reprise::cli
