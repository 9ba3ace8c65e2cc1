#include "plan/place/devices/bound.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "plan/common/graph_facts.h"

namespace reprise::internal::devices {
namespace {

__extension__ using Wide = __int128;

// Weights are whole parts of kWhole, so that every bound is exact.
constexpr int64_t kWhole = 4096;
constexpr int kRounds = 24;  // over all pairs of devices

// Paths say when a value can be in a memory at the earliest.
class Paths {
 public:
  explicit Paths(const Ground& ground)
      : ground_(ground),
        memories_(ground.machine.memories.size()),
        made_(ground.graph.values.size() * memories_, kNoWay),
        last_maker_(ground.graph.values.size(), -1) {}

  int64_t find() {
    for (size_t o = 0; o < ground_.graph.ops.size(); ++o) {
      for (const Variant& variant : ground_.graph.ops[o].variants) {
        for (const ValueIndex v : variant.writes) last_maker_[at(v)] = static_cast<OpIndex>(o);
      }
    }
    for (size_t v = 0; v < ground_.graph.values.size(); ++v) {
      if (ground_.is_input[v]) made_[v * memories_] = 0;
    }
    int64_t most = 0;
    const common::GraphFacts facts(ground_.graph);
    for (size_t o = 0; o < ground_.graph.ops.size(); ++o) {
      const int64_t end = visit(static_cast<OpIndex>(o));
      if (facts.certain[o]) most = std::max(most, end);
    }
    for (const ValueIndex v : ground_.graph.results) most = std::max(most, there(v, 0));
    return most < kNoWay ? most : 0;  // If there is no way, there is no plan to speak of.
  }

 private:
  static size_t at(ValueIndex v) { return static_cast<size_t>(v); }

  // Returns the time before which the op is over on no device, and notes what it makes.
  int64_t visit(OpIndex o) {
    const Op& op = ground_.graph.ops[o];
    int64_t first = kNoWay;
    for (size_t k = 0; k < op.variants.size(); ++k) {
      const Variant& variant = op.variants[k];
      const int32_t device = ground_.devices[o][k];
      int64_t begin = 0;
      for (const ValueIndex v : variant.reads) {
        // A later op may make the value, too, and serve a later run of this one.
        if (last_maker_[at(v)] < o) begin = std::max(begin, there(v, device));
      }
      const int64_t end = begin + variant.time.count();
      first = std::min(first, end);
      for (const ValueIndex v : variant.writes) {
        int64_t& made = made_[at(v) * memories_ + static_cast<size_t>(device)];
        made = std::min(made, end);
      }
    }
    return first;
  }

  int64_t there(ValueIndex v, int32_t device) const {
    int64_t least = kNoWay;
    for (size_t m = 0; m < memories_; ++m) {
      const int64_t made = made_[at(v) * memories_ + m];
      if (made == kNoWay) continue;
      least = std::min(least, made + ground_.routes.time(v, static_cast<int32_t>(m), device));
    }
    return least;
  }

  const Ground& ground_;
  const size_t memories_;
  std::vector<int64_t> made_;  // by value and memory: when a run there has made it, at the earliest
  std::vector<OpIndex> last_maker_;
};

// Work is the sum of the least weighted times, over all that every plan runs.
class Work {
 public:
  explicit Work(const Ground& ground) : ground_(ground) {
    for (size_t m = 0; m < ground.machine.memories.size(); ++m) {
      if (computes(ground.machine, static_cast<int32_t>(m))) devices_.push_back(m);
    }
  }

  // Shifts weight between pairs of devices as long as that raises the bound.
  int64_t find() {
    std::vector<int64_t> weights(ground_.machine.memories.size(), 0);
    for (const size_t device : devices_) {
      weights[device] = kWhole / static_cast<int64_t>(devices_.size());
    }
    weights[0] += kWhole % static_cast<int64_t>(devices_.size());
    int64_t best = value(weights);
    for (int64_t step = kWhole / 2; step > 0; step /= 2) {
      for (int round = 0; round < kRounds; ++round) {
        if (!improve(weights, step, best)) break;
      }
    }
    return best;
  }

 private:
  bool improve(std::vector<int64_t>& weights, int64_t step, int64_t& best) const {
    bool any = false;
    for (const size_t from : devices_) {
      for (const size_t to : devices_) {
        if (from == to || weights[from] < step) continue;
        weights[from] -= step;
        weights[to] += step;
        const int64_t found = value(weights);
        if (found > best) {
          best = found;
          any = true;
        } else {
          weights[from] += step;
          weights[to] -= step;
        }
      }
    }
    return any;
  }

  Wide least(OpIndex o, const std::vector<int64_t>& weights) const {
    const Op& op = ground_.graph.ops[o];
    std::optional<Wide> found;
    for (size_t k = 0; k < op.variants.size(); ++k) {
      const auto device = static_cast<size_t>(ground_.devices[o][k]);
      const Wide time = Wide{op.variants[k].time.count()} * weights[device];
      if (!found || time < *found) found = time;
    }
    return found.value_or(0);
  }

  int64_t value(const std::vector<int64_t>& weights) const {
    std::vector<char> in_choice(ground_.graph.ops.size(), 0);
    Wide sum = 0;
    for (const Choice& choice : ground_.graph.choices) {
      std::optional<Wide> cheapest;
      for (const Realization& realization : choice.realizations) {
        Wide time = 0;
        for (const OpIndex op : realization.ops) {
          time += least(op, weights);
          in_choice[op] = 1;
        }
        if (!cheapest || time < *cheapest) cheapest = time;
      }
      sum += cheapest.value_or(0);
    }
    for (size_t o = 0; o < ground_.graph.ops.size(); ++o) {
      if (!in_choice[o]) sum += least(static_cast<OpIndex>(o), weights);
    }
    return static_cast<int64_t>((sum + kWhole - 1) / kWhole);
  }

  const Ground& ground_;
  std::vector<size_t> devices_;
};

int64_t need_of(const Ground& ground, const Variant& variant) {
  int64_t need = variant.workspace.count();
  for (const ValueIndex v : variant.reads) need += ground.bytes(v);
  for (const ValueIndex v : variant.writes) need += ground.bytes(v);
  for (const ValueIndex v : variant.consumes) need -= ground.bytes(v);
  for (const auto& pair : variant.reuses) need -= ground.bytes(pair.second);
  return need;
}

}  // namespace

Nanos lower_bound(const Ground& ground) {
  return Nanos(std::max(Paths(ground).find(), Work(ground).find()));
}

OpIndex impossible_op(const Ground& ground) {
  const common::GraphFacts facts(ground.graph);
  int64_t inputs = ground.graph.fixed.count();
  for (size_t v = 0; v < ground.graph.values.size(); ++v) {
    if (ground.is_input[v]) inputs += ground.bytes(static_cast<ValueIndex>(v));
  }
  for (size_t o = 0; o < ground.graph.ops.size(); ++o) {
    if (!facts.certain[o]) continue;
    const Op& op = ground.graph.ops[o];
    bool fits = false;
    for (size_t k = 0; k < op.variants.size() && !fits; ++k) {
      const auto device = static_cast<size_t>(ground.devices[o][k]);
      int64_t need = need_of(ground, op.variants[k]);
      if (device == 0) {
        need += inputs;
        for (const ValueIndex v : op.variants[k].reads) {
          if (ground.is_input[v]) need -= ground.bytes(v);
        }
      }
      fits = need <= ground.capacities[device];
    }
    if (!fits) return static_cast<OpIndex>(o);
  }
  return -1;
}

}  // namespace reprise::internal::devices
