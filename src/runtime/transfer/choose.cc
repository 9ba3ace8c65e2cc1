#include "runtime/transfer/choose.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise::runtime::internal::transfer {
namespace {

constexpr std::string_view kAuto = "auto", kAutoIn = "auto:";
constexpr int64_t kLeastGain = 100;  // as a part of the step
constexpr int64_t kSlower = 2;       // the channels, in the second comparison

// Returns what keeps the files of a directory in memory, or an empty text for a disk.
std::string memory_behind(const std::string& directory) {
  struct statfs found = {};
  if (::statfs(directory.c_str(), &found) != 0) {
    throw InputError(fmt::format("there is no directory \"{}\" for values that move away: {}",
                                 directory, std::generic_category().message(errno)));
  }
  switch (static_cast<uint64_t>(found.f_type)) {
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    default:
      return {};
  }
}

std::string temporary_directory() {
  std::error_code none;
  const std::filesystem::path path = std::filesystem::temp_directory_path(none);
  return none ? std::string() : path.string();
}

Nanos part_of(Nanos time, double share) {
  return Nanos(static_cast<int64_t>(std::llround(static_cast<double>(time.count()) * share)));
}

// Returns how unsure the median time of an op is, as a share of this time: half of the range of the
// measured times over the root of their number. The result is the median over all ops, since a
// single outlier makes a range of any size.
double share_unsure(const std::vector<TimeSpread>& spread) {
  std::vector<double> shares;
  for (const TimeSpread& one : spread) {
    if (one.median <= Nanos(0)) continue;
    const auto half = static_cast<double>((one.max - one.min).count()) / 2;
    const double root = std::sqrt(static_cast<double>(std::max<int64_t>(1, one.repeats)));
    shares.push_back(half / root / static_cast<double>(one.median.count()));
  }
  if (shares.empty()) return 0;
  const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
  std::nth_element(shares.begin(), middle, shares.end());
  return *middle;
}

// Returns the time of the runs that only one of the plans has, plus the time in which the second
// plan waits.
Nanos unlike(const Comparison& both) {
  std::map<std::pair<std::string, std::string>, int64_t> count;
  Nanos waits = both.with.plan->time;
  const auto time_of = [&](const std::pair<std::string, std::string>& run) {
    const Op& op = both.graph.ops[find_op(both.graph, run.first)];
    const auto variant = std::find_if(op.variants.begin(), op.variants.end(),
                                      [&](const Variant& one) { return one.name == run.second; });
    return variant->time;
  };
  const auto add = [&](const Plan& plan, int64_t sign) {
    for (const Action& action : plan.actions) {
      if (action.kind == ActionKind::kRun) count[{action.id, action.variant}] += sign;
    }
  };
  add(*both.without.plan, 1);
  for (const Action& action : both.with.plan->actions) {
    if (action.kind != ActionKind::kRun) continue;
    const std::pair run(action.id, action.variant);
    waits -= time_of(run);
    --count[run];
  }
  Nanos sum = waits;
  for (const auto& [run, difference] : count) {
    if (difference != 0) sum += Nanos(time_of(run).count() * std::abs(difference));
  }
  return sum;
}

Machine slower(Machine machine) {
  for (Channel& channel : machine.channels) {
    channel.bytes_per_second = std::max<int64_t>(1, channel.bytes_per_second / kSlower);
  }
  return machine;
}

Verdict stays(const std::string& why) { return {false, "nothing moves: " + why}; }

}  // namespace

bool is_auto(const OffloadOptions& options) {
  return options.to == kAuto || options.to.rfind(kAutoIn, 0) == 0;
}

AutoMemory memory_for_auto(const OffloadOptions& asked, c10::Device device) {
  AutoMemory found{asked, {}};
  const bool named = asked.to != kAuto;
  std::string directory = named ? asked.to.substr(kAutoIn.size()) : std::string();
  found.options.to.clear();
  if (!device.is_cpu()) {
    found.options.to = "host";
    return found;
  }
  if (named && directory.empty()) {
    throw InputError("\"auto:\" names no directory: write \"auto:/scratch\", or \"auto\"");
  }
  if (!named) directory = temporary_directory();
  if (directory.empty()) {
    found.why = "there is no temporary directory; name one on a disk, as in auto:/scratch";
    return found;
  }
  const std::string kind = memory_behind(directory);
  if (kind.empty()) {
    found.options.to = "disk:" + directory;
  } else {
    found.why = fmt::format(
        "{} is a {}, whose files lie in memory; name a directory on a disk, as in auto:/scratch",
        directory, kind);
  }
  return found;
}

Verdict weigh(const Comparison& both, const std::vector<TimeSpread>& spread,
              const std::string& to) {
  if (!both.objection.empty()) return stays(both.objection);
  if (!both.with.plan) {
    return stays(fmt::format("within the budget there is no plan with {} and its buffers", to));
  }
  if (!moves_values(*both.with.plan)) {
    return stays(fmt::format("the planner moves nothing to {}", to));
  }
  const Nanos with = both.with.plan->time;
  if (!both.without.plan) {
    return {true, fmt::format("{}: no plan without it was found for this budget", to)};
  }
  const Nanos without = both.without.plan->time;
  const Nanos with_half = simulate(both.graph, both.with.plan->actions, slower(both.machine)).time;
  const Nanos unsure =
      std::max(part_of(unlike(both), share_unsure(spread)), Nanos(without.count() / kLeastGain));
  const std::string times = fmt::format(
      "the step is predicted at {} without a second memory, {} with {}, and {} if that carries "
      "half "
      "of what was measured",
      format_duration(without), format_duration(with), to, format_duration(with_half));
  if (without - std::max(with, with_half) > unsure) return {true, fmt::format("{}: {}", to, times)};
  return stays(fmt::format("{}, which is no gain of more than {}", times, format_duration(unsure)));
}

Verdict weigh_before(const PlanResult& without, Nanos bound) {
  if (!without.plan) return {};
  const Nanos time = without.plan->time;
  if (time - bound > Nanos(time.count() / kLeastGain)) return {};
  return stays(
      fmt::format("the step is predicted at {} without a second memory, and no plan takes "
                  "less than {}",
                  format_duration(time), format_duration(bound)));
}

}  // namespace reprise::runtime::internal::transfer
