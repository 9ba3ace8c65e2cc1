// Chooses what lies in another memory between the steps, and what stays on the device.
//
// A value that stays takes its bytes all the time, and saves its copies. So the values that the plan
// copies most often should stay first: each saves its bytes so many times over. Among these the first
// ones that a step reads should, because nothing computes yet beside which they could come. The search
// lets none of them stay, and then the first ones of this order up to several sums of bytes. Every sum has
// a plan of its own, with its own runs and moves of other values, and the fastest plan is taken.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "runtime/graph/step_state.h"

namespace reprise::runtime::internal::graph {

namespace {

constexpr std::array<int64_t, 4> kPercent = {90, 70, 50, 25};  // of the bytes that may stay
constexpr int64_t kEighths = 8;                                // of the time limit
constexpr double kGain =
    0.99;  // A choice that is not faster by a hundredth is not worth its bytes.

Nanos time_of(const StepPlan& found) { return found.result.plan->time; }

bool is_faster(const StepPlan& found, const StepPlan& than) {
  return found.result.plan && static_cast<double>(time_of(found).count()) <
                                  kGain * static_cast<double>(time_of(than).count());
}

// Returns the values in the order in which they should stay.
HomedValues in_order(HomedValues homed, const Plan& plan) {
  std::map<std::string, std::pair<int64_t, int64_t>> use;  // minus the copies, and the first one
  for (size_t a = 0; a < plan.actions.size(); ++a) {
    if (plan.actions[a].kind != ActionKind::kCopy) continue;
    const auto [found, is_new] =
        use.try_emplace(plan.actions[a].id, int64_t{0}, static_cast<int64_t>(a));
    --found->second.first;
  }
  std::stable_sort(homed.begin(), homed.end(), [&](const HomedValue& a, const HomedValue& b) {
    const auto &one = use[a.name], &other = use[b.name];
    return std::pair(one.first + use[a.name + ".new"].first, one.second) <
           std::pair(other.first + use[b.name + ".new"].first, other.second);
  });
  return homed;
}

}  // namespace

StepState::Placed StepState::search_placements(const StepPlanOptions& wanted, Bytes fixed,
                                               Bytes slack, bool together) {
  const auto with = [&](const KeptNames& keep, Bytes bytes, int64_t eighths) {
    StepPlanOptions part = wanted;
    part.time_limit = Nanos(wanted.time_limit.count() / kEighths * eighths);
    PlacedStep next = place(placement_of(wanted, keep), fixed + bytes);
    StepPlan found = search(part, next.graph, slack, together);
    return Placed{std::move(found), std::move(next)};
  };
  // A quarter of the time is for nothing that stays, a half for the other choices, and a quarter for the
  // best one.
  Placed best = with({}, Bytes(0), 2);
  if (!best.found.result.plan) {
    Placed longer = with({}, Bytes(0), 6);
    const std::optional<Bytes>&least = best.found.result.smallest_budget,
          &other = longer.found.result.smallest_budget;
    const bool is_less = !longer.found.result.plan && least && (!other || *least < *other);
    return is_less ? best : longer;
  }
  if (best.found.result.termination == Termination::kOptimal) return best;
  const HomedValues homed = in_order(best.step.homed, *best.found.result.plan);
  const Bytes most = std::min(bytes_of(best.step.placement), best.found.result.budget - fixed);
  Bytes best_bytes, last;
  for (const int64_t percent : kPercent) {
    KeptNames keep;
    Bytes bytes;
    for (const HomedValue& one : homed) {
      if ((bytes + Bytes(one.bytes)).count() > most.count() / 100 * percent) continue;
      bytes += Bytes(one.bytes);
      keep.insert(one.name);
    }
    if (keep.empty() || bytes == last) continue;
    last = bytes;
    Placed other = with(keep, bytes, 1);
    if (!is_faster(other.found, best.found)) continue;
    best = std::move(other);
    best_bytes = bytes;
  }
  Placed again = with(best.step.placement.kept, best_bytes, 2);
  const bool is_better = again.found.result.plan && time_of(again.found) < time_of(best.found);
  return is_better ? again : best;
}

}  // namespace reprise::runtime::internal::graph
