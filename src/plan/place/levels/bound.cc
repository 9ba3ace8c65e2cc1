#include "plan/place/levels/bound.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace reprise::internal::levels {

namespace {

// An Item is what a stage must have for its backward, and the time to make it again.
struct Item {
  double bytes;
  double time;
};

struct Needs {
  std::vector<Item> items;
  int64_t forward = 0, backward = 0;  // F, B
  int64_t together = 0;               // the least sum of forwards and backwards by option
  int64_t bytes = 0;                  // of all items
};

template <class Of>
int64_t least(const Stage& stage, const Of& of) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (const StageOption& option : stage.options) best = std::min(best, of(option));
  return best;
}

// An output is needed behind the loss if, whatever the options, its own stage's backward reads it or
// the next stage's does. If the next stage runs again, that run reads it.
bool output_needed(const Chain& chain, size_t i) {
  const auto all = [](const Stage& stage, bool StageOption::*reads) {
    return std::all_of(stage.options.begin(), stage.options.end(),
                       [&](const StageOption& option) { return option.*reads; });
  };
  if (all(chain.stages[i], &StageOption::reads_output)) return true;
  return i + 1 < chain.stages.size() && all(chain.stages[i + 1], &StageOption::reads_input);
}

Needs needs_of(const Chain& chain) {
  Needs needs;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const Stage& stage = chain.stages[i];
    const int64_t again =
        std::min(stage.forward.time.count(),
                 least(stage, [](const StageOption& o) { return o.forward.time.count(); }));
    needs.forward += again;
    needs.backward += least(stage, [](const StageOption& o) { return o.backward.time.count(); });
    needs.together += least(
        stage, [](const StageOption& o) { return (o.forward.time + o.backward.time).count(); });
    int64_t bytes = least(stage, [](const StageOption& o) { return o.saved.count(); });
    // The last output is at the loss in any case; room_at_loss() counts it.
    if (i + 1 < chain.stages.size() && output_needed(chain, i)) bytes += stage.output.count();
    needs.bytes += bytes;
    if (bytes > 0) needs.items.push_back({static_cast<double>(bytes), static_cast<double>(again)});
  }
  std::sort(needs.items.begin(), needs.items.end(),
            [](const Item& a, const Item& b) { return a.time * b.bytes < b.time * a.bytes; });
  return needs;
}

int64_t room_at_loss(const Chain& chain, int64_t budget) {
  const size_t last = chain.stages.size();
  int64_t room = budget - (chain.fixed + chain.input.bytes).count();
  room -= (boundary_gradient_bytes(chain, last) + chain.loss.cost.workspace).count();
  if (!chain.loss.consumes) room -= boundary_bytes(chain, last).count();
  return room;
}

// Returns the least time to make these bytes again.
double time_again(const Needs& needs, double bytes) {
  double time = 0;
  for (const Item& item : needs.items) {
    if (bytes <= 0) break;
    const double part = std::min(1.0, bytes / item.bytes);
    time += part * item.time;
    bytes -= item.bytes;
  }
  return time;
}

// Ways has the bytes a second out of the device and into it, and the bytes that fit elsewhere.
struct Ways {
  double out = 0, in = 0, capacity = 0;
};

Ways ways_of(const Machine& machine) {
  Ways ways;
  for (const Channel& channel : machine.channels) {
    if (channel.from == 0) ways.out += static_cast<double>(channel.bytes_per_second);
    if (channel.to == 0) ways.in += static_cast<double>(channel.bytes_per_second);
  }
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    const std::optional<Bytes>& capacity = machine.memories[m].capacity;
    ways.capacity +=
        capacity ? static_cast<double>(capacity->count()) : std::numeric_limits<double>::infinity();
  }
  if (ways.out == 0 || ways.in == 0) ways.capacity = 0;
  return ways;
}

}  // namespace

Nanos loss_bound(const Chain& chain, const Machine& machine, Bytes budget) {
  const Needs needs = needs_of(chain);
  const int64_t loss = chain.loss.cost.time.count();
  const Nanos unlimited(std::max(needs.together, needs.forward + needs.backward) + loss);
  const int64_t missing = needs.bytes - room_at_loss(chain, budget.count());
  if (missing <= 0) return unlimited;
  const Ways ways = ways_of(machine);
  const auto forward = static_cast<double>(needs.forward);
  const auto backward = static_cast<double>(needs.backward);
  const auto deficit = static_cast<double>(missing);
  const auto time = [&](double away) {
    const double out = away == 0 ? 0 : away / ways.out * 1e9;
    const double in = away == 0 ? 0 : away / ways.in * 1e9;
    return std::max(forward, out) + std::max(backward + time_again(needs, deficit - away), in);
  };
  double low = 0, high = std::min(deficit, ways.capacity);
  for (int step = 0; step < 200 && high - low > 0.25; ++step) {
    const double a = low + (high - low) / 3, b = high - (high - low) / 3;
    if (time(a) <= time(b)) {
      high = b;
    } else {
      low = a;
    }
  }
  // A value between the last two arguments lies below both by less than a step of the slope there;
  // the share below covers that and the rounding of the sums.
  constexpr double kRounding = 1e-9;
  const double more =
      std::min({time(low), time((low + high) / 2), time(high)}) - forward - backward;
  const double whole = forward + backward + std::max(0.0, more);
  const auto bound = static_cast<int64_t>(std::max(0.0, more - kRounding * whole));
  return std::max(unlimited, Nanos(needs.forward + needs.backward + loss + bound));
}

}  // namespace reprise::internal::levels
