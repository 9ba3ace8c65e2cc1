// Cuts and recomputation together: which stages lie on which device, and how each part trades its
// memory for time, so that the step is as fast as possible.
//
// | symbol   | identifier                | meaning                                               |
// |----------|---------------------------|-------------------------------------------------------|
// | k_s      | flight_of()               | micro-batches in flight at part s                     |
// | M_s      | room_of()                 | bytes of device s without fixed ones and messages     |
// | b(s,i,j) | PartPlans::best()         | the fastest way of stages i..j-1 on device s with     |
// |          |                           | (k_s - 1) S + P <= M_s                                |
//
// A way of a part is found by an exact recurrence with two budgets (part_plans.h); this is our own,
// on top of that of chain.cc. Cuts come from one of two searches: all of them, where they are few, in
// the order of a lower bound, or a program over parts for each cap on the slowest part, as PipeDream's
// (Narayanan et al., SOSP 2019) and AdaPipe's (Sun et al., ASPLOS 2024) are, and then single cuts that
// move. Each candidate counts with the time that the simulator gives it, never with a formula. The
// answers of the other rows are candidates, too, so that this planner is never worse than they are.
//
// Messages take bytes that depend on the order. They are found out: a candidate that is over a budget
// is planned again with as many bytes less on that device.
//
// Assumes: parts follow the devices in their order. Does not handle: parts in another order or several
// of them on a device, other ways for the last micro-batches, offloading.
//
// Tests: oracle/joint_pipeline_test.cc (never worse than any row; against all cuts; bounds).
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/search_control.h"
#include "plan/pipeline/bound.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/messages.h"
#include "plan/pipeline/orders.h"
#include "plan/pipeline/part_plans.h"
#include "plan/pipeline/planner.h"
#include "reprise/model/errors.h"
#include "reprise/plan/registry.h"

namespace reprise::internal::pipeline {

using common::SearchControl;

namespace {

constexpr Nanos kNoTime{std::numeric_limits<int64_t>::max()};
constexpr size_t kMostCuts = 20'000;  // more of them are not listed one by one
constexpr int kMostRepairs = 8;
constexpr Slack kJointSlacks[] = {{1, 1}, {2, 2}, {0, 1}};

// A choice of cuts with the ways of its parts, before it is simulated with its bytes.
struct JointCandidate {
  std::vector<size_t> cuts;
  Nanos estimate;  // of a step with these cuts, if messages took no bytes
};

class JointSearch {
 public:
  JointSearch(const PipelineProblem& problem, SearchControl control, Pieces pieces)
      : problem_(problem),
        pipeline_(problem.pipeline),
        control_(std::move(control)),
        stages_(pipeline_.chain.stages.size()),
        parts_(std::min(pipeline_.devices.size(), stages_)),
        times_(least_times(pipeline_)),
        plans_(pipeline_, pieces, most_memory(), common::thread_count(problem.options.threads),
               control_),
        best_(problem) {
    if (!problem.options.cuts.empty()) {
      given_ = layout_of(pipeline_, problem.options.cuts, 1).cuts;
      parts_ = given_.size() - 1;
    }
    for (size_t q = 0; q < parts_; ++q) device_.push_back(static_cast<int32_t>(q));
    reserve_.assign(parts_, 0);
  }

  BestPlan& best() { return best_; }
  PartPlans& plans() { return plans_; }
  Bytes memory() const { return plans_.memory(); }

  // Takes the answer of another row as a candidate.
  void consider(const PipelineAnswer& answer) {
    if (answer.parts.empty()) return;
    PipelinePlan plan;
    plan.parts = answer.parts;
    for (size_t d = 0; d < pipeline_.devices.size(); ++d) {
      plan.devices.push_back({.name = pipeline_.devices[d].name,
                              .budget = {},
                              .peak = {},
                              .order = answer.orders[d]});
    }
    best_.consider(plan);
  }

  // Looks for cuts with at most so many micro-batches less in flight than 1F1B has.
  void search() {
    if (!plans_.complete()) return;
    for (int64_t less = 0; less < static_cast<int64_t>(parts_); ++less) {
      less_ = less;
      std::vector<JointCandidate> candidates = list_candidates();
      for (size_t c = 0; c < candidates.size() && !control_.out_of_time(); ++c) {
        if (best_.found() && candidates[c].estimate >= best_.time()) break;
        realize(candidates[c].cuts);
        control_.report(-1);
      }
    }
    less_ = 0;
  }

  // AdaPipe's program: from the last part to the first, the cuts with the least of its formula, with
  // the warm-up W, the end E and the slowest part M of the parts from there on.
  void search_by_formula() {
    if (!plans_.complete()) return;
    struct Tail {
      Nanos total = kNoTime, warm_up, end, slowest, forward, backward;
      size_t next = 0;
    };
    std::vector<std::vector<Tail>> tails(parts_ + 1, std::vector<Tail>(stages_ + 1));
    const int64_t steady = std::max<int64_t>(0, pipeline_.micro_batches - static_cast<int64_t>(parts_));
    for (size_t q = parts_; q-- > 0;) {
      const auto behind = static_cast<int64_t>(parts_ - q - 1);
      for (size_t f = q; f < stages_; ++f) {
        for (size_t e = f + 1; e <= stages_; ++e) {
          const bool last = q + 1 == parts_;
          if (last != (e == stages_) || (!last && tails[q + 1][e].total == kNoTime)) continue;
          if (!given_.empty() && (f != given_[q] || e != given_[q + 1])) continue;
          const std::optional<Way> way = way_of(q, f, e);
          if (!way) continue;
          const PartTimes times =
              times_of_plan(pipeline_, device_[q], plans_.plan(f, e, *way));
          Tail tail;
          tail.forward = times.forward;
          tail.backward = times.input_gradient + times.weight_gradient;
          tail.next = e;
          const Tail& rest = tails[q + 1][e];
          tail.warm_up = tail.forward + (last ? Nanos(0)
                                              : std::max(rest.warm_up + rest.backward,
                                                         tail.forward * behind));
          tail.end = tail.backward + (last ? Nanos(0)
                                           : std::max(rest.end + rest.forward,
                                                      tail.backward * behind));
          tail.slowest = std::max(rest.slowest, tail.forward + tail.backward);
          tail.total = tail.warm_up + tail.end + tail.slowest * steady;
          if (tail.total < tails[q][f].total) tails[q][f] = tail;
        }
      }
    }
    if (tails[0][0].total == kNoTime) return;
    std::vector<size_t> cuts{0};
    for (size_t q = 0; q < parts_; ++q) cuts.push_back(tails[q][cuts.back()].next);
    realize(cuts);
  }

  // Moves one cut at a time as long as that makes the best plan faster.
  void climb() {
    if (!plans_.complete() || !given_.empty() || !best_.found()) return;
    std::vector<size_t> cuts = cuts_of_best();
    for (bool better = cuts.size() == parts_ + 1; better && !control_.out_of_time();) {
      better = false;
      for (size_t q = 1; q < parts_ && !better; ++q) {
        for (const int step : {-1, 1}) {
          std::vector<size_t> moved = cuts;
          moved[q] += static_cast<size_t>(step);
          if (moved[q] <= moved[q - 1] || moved[q] >= moved[q + 1]) continue;
          const Nanos before = best_.time();
          for (less_ = 0; less_ < static_cast<int64_t>(parts_); ++less_) realize(moved);
          less_ = 0;
          if (best_.time() >= before) continue;
          cuts = std::move(moved);
          better = true;
          break;
        }
      }
    }
  }

  // No plan with one part on each device, in any order of its actions and any choice of cuts, takes
  // less; the parts' ways are persistent ones.
  Nanos bound() {
    Layout layout{given_, device_};
    if (!given_.empty()) return bound_of(pipeline_, layout, times_);
    // best[q][e]: the least largest of what the parts before q need, over the stages before e. A
    // part needs the way to it, its work, and the way back.
    std::vector<Nanos> best(stages_ + 1, kNoTime);
    best[0] = Nanos(0);
    Nanos all = kNoTime;
    for (size_t q = 0; q < parts_; ++q) {
      std::vector<Nanos> next(stages_ + 1, kNoTime);
      for (size_t e = q + 1; e <= stages_; ++e) {
        for (size_t f = q; f < e; ++f) {
          if (best[f] == kNoTime) continue;
          next[e] = std::min(next[e], std::max(best[f], least_of_part(q, f, e)));
        }
      }
      best = std::move(next);
      all = std::min(all, best[stages_]);  // devices behind may stay empty
    }
    return all;
  }

 private:
  int64_t most_memory() const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
    int64_t most = 0;
    for (const Bytes budget : problem_.budgets) most = std::max(most, budget.count());
    // More than everything that a micro-batch can hold is no limit.
    int64_t all = 0;
    for (const Stage& stage : pipeline_.chain.stages) {
      int64_t largest = 0;
      for (const StageOption& option : stage.options) {
        largest = std::max(largest, option.saved.count() + option.forward.workspace.count() +
                                        option.backward.workspace.count());
      }
      all += largest + 2 * stage.output.count() + stage.forward.workspace.count() +
             2 * stage.output_gradient.value_or(stage.output).count() + stage.weight_gradient.count();
    }
    all += pipeline_.chain.loss.cost.workspace.count() + pipeline_.chain.input.gradient.count();
    return std::min({most, all, kMost});
  }

  int64_t flight_of(size_t part) const {
    const auto flight = static_cast<int64_t>(parts_ - part) - less_;
    return std::clamp<int64_t>(flight, 1, pipeline_.micro_batches);
  }

  int64_t room_of(size_t part, size_t first, size_t end) const {
    return problem_.budgets[static_cast<size_t>(device_[part])].count() - plans_.fixed(first, end);
  }

  const PipelineDevice& on(size_t part) const {
    return pipeline_.devices[static_cast<size_t>(device_[part])];
  }

  std::optional<Way> way_of(size_t part, size_t first, size_t end) {
    return plans_.best(first, end, flight_of(part), room_of(part, first, end) - reserve_[part]);
  }

  // The time of a part for one micro-batch on its device; kNoTime if it does not fit.
  Nanos time_of(size_t part, size_t first, size_t end) {
    const auto key = (part * (stages_ + 1) + first) * (stages_ + 1) + end;
    if (costs_.empty()) costs_.assign(parts_ * (stages_ + 1) * (stages_ + 1), Nanos(-1));
    if (costs_of_ != less_) {
      std::ranges::fill(costs_, Nanos(-1));
      costs_of_ = less_;
    }
    if (costs_[key] >= Nanos(0)) return costs_[key];
    const std::optional<Way> way =
        plans_.best(first, end, flight_of(part), room_of(part, first, end));
    costs_[key] = way ? time_on(on(part), plans_.time(first, end, *way)) : kNoTime;
    return costs_[key];
  }

  // The first activation's way to a part and the last gradient's way back, if all devices on it were
  // as fast as the fastest, and links took no time.
  Nanos way_to(size_t part, size_t first) const {
    int64_t fastest = std::numeric_limits<int64_t>::max();
    for (size_t q = 0; q < part; ++q) fastest = std::min(fastest, on(q).time_percent);
    if (part == 0) return Nanos(0);
    const Nanos time = times_.both(0, first) - times_.weights_of(0, first);
    __extension__ using Wide = __int128;
    return Nanos(static_cast<int64_t>(Wide{time.count()} * fastest / 100));
  }

  Nanos least_of_part(size_t part, size_t first, size_t end) {
    const Nanos plain = time_on(on(part), times_.both(first, end));
    Nanos work = plain * pipeline_.micro_batches;
    bool split = false;
    for (size_t i = 0; i < stages_; ++i) split = split || weight_part(pipeline_, i) != nullptr;
    if (!split) {
      // From the second micro-batch on, the weight gradients of the part are there.
      const auto way = plans_.best(first, end, 1, room_of(part, first, end));
      const bool exact = plans_.exact();
      if (exact && !way && pipeline_.micro_batches > 1) return kNoTime;
      if (exact && way) {
        work = plain + time_on(on(part), plans_.time(first, end, *way)) *
                           (pipeline_.micro_batches - 1);
      }
    }
    // Weight gradients may come behind the last way back.
    const Nanos weights = time_on(on(part), times_.weights_of(first, end)) * pipeline_.micro_batches;
    const Nanos there = way_to(part, first);
    return std::max(work + there - std::min(weights, there), work);
  }

  // Lists cuts by a lower bound on their time with these ways.
  std::vector<JointCandidate> list_candidates() {
    std::vector<JointCandidate> candidates;
    if (!given_.empty()) {
      add_candidate(given_, candidates);
    } else if (count_cuts() <= kMostCuts) {
      std::vector<size_t> cuts{0};
      list_all(cuts, candidates);
    } else {
      list_by_cap(candidates);
    }
    std::ranges::stable_sort(candidates, {}, &JointCandidate::estimate);
    return candidates;
  }

  size_t count_cuts() const {
    size_t count = 1;  // (stages - 1) over (parts - 1)
    for (size_t q = 1; q < parts_; ++q) {
      count = count * (stages_ - q) / q;
      if (count > kMostCuts) return count;
    }
    return count;
  }

  void list_all(std::vector<size_t>& cuts, std::vector<JointCandidate>& candidates) {
    const size_t q = cuts.size() - 1;
    if (q + 1 == parts_) {
      if (time_of(q, cuts.back(), stages_) == kNoTime) return;
      cuts.push_back(stages_);
      add_candidate(cuts, candidates);
      cuts.pop_back();
      return;
    }
    for (size_t e = cuts.back() + 1; e + (parts_ - q - 1) <= stages_; ++e) {
      if (time_of(q, cuts.back(), e) == kNoTime) continue;
      cuts.push_back(e);
      list_all(cuts, candidates);
      cuts.pop_back();
    }
  }

  void add_candidate(const std::vector<size_t>& cuts, std::vector<JointCandidate>& candidates) {
    Nanos sum, slowest, estimate;
    for (size_t q = 0; q < parts_; ++q) {
      const Nanos time = time_of(q, cuts[q], cuts[q + 1]);
      if (time == kNoTime) return;
      sum += time;
      slowest = std::max(slowest, time);
    }
    // One micro-batch goes all the way, and the slowest part has the others beside it.
    estimate = sum + slowest * (pipeline_.micro_batches - 1);
    Nanos bound = sum;  // what holds for sure
    for (size_t q = 0; q < parts_; ++q) {
      bound = std::max(bound, time_of(q, cuts[q], cuts[q + 1]) * pipeline_.micro_batches +
                                  way_to(q, cuts[q]));
    }
    candidates.push_back({cuts, std::min(bound, estimate)});
  }

  // For each cap on the slowest part: the cuts with the least sum of times.
  void list_by_cap(std::vector<JointCandidate>& candidates) {
    std::vector<Nanos> caps;
    for (size_t q = 0; q < parts_ && !control_.out_of_time(); ++q) {
      for (size_t f = q; f < stages_; ++f) {
        if (q == 0 && f > 0) break;
        for (size_t e = f + 1; e + (parts_ - q - 1) <= stages_; ++e) {
          if (q + 1 == parts_ && e < stages_) continue;
          const Nanos time = time_of(q, f, e);
          if (time != kNoTime) caps.push_back(time);
        }
      }
    }
    std::ranges::sort(caps);
    caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
    constexpr size_t kMostCaps = 64;
    // The least cap that has cuts at all comes first; those far above it are of no use.
    size_t low = 0, high = caps.size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (cuts_under(caps[middle]).empty()) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (size_t c = low; c < std::min(caps.size(), low + kMostCaps); ++c) {
      const std::vector<size_t> cuts = cuts_under(caps[c]);
      if (!cuts.empty()) add_candidate(cuts, candidates);
    }
  }

  std::vector<size_t> cuts_under(Nanos cap) {
    std::vector<Nanos> best(stages_ + 1, kNoTime);
    best[0] = Nanos(0);
    std::vector<std::vector<size_t>> from(parts_, std::vector<size_t>(stages_ + 1, 0));
    for (size_t q = 0; q < parts_; ++q) {
      std::vector<Nanos> next(stages_ + 1, kNoTime);
      for (size_t e = q + 1; e + (parts_ - q - 1) <= stages_; ++e) {
        for (size_t f = q; f < e; ++f) {
          const Nanos time = best[f] == kNoTime ? kNoTime : time_of(q, f, e);
          if (time == kNoTime || time > cap || best[f] + time >= next[e]) continue;
          next[e] = best[f] + time;
          from[q][e] = f;
        }
      }
      best = std::move(next);
    }
    if (best[stages_] == kNoTime) return {};
    std::vector<size_t> cuts(parts_ + 1, stages_);
    for (size_t q = parts_; q-- > 0;) cuts[q] = from[q][cuts[q + 1]];
    return cuts;
  }

  std::vector<size_t> cuts_of_best() const {
    std::vector<size_t> cuts;
    for (const PipelinePart& part : best_.plan()->parts) {
      cuts.push_back(static_cast<size_t>(part.first_stage));
    }
    cuts.push_back(stages_);
    return cuts;
  }

  // Simulates the cuts with their ways, and takes bytes for messages from parts that are over.
  void realize(const std::vector<size_t>& cuts) {
    const Layout layout{cuts, device_};
    for (const Slack& slack : kJointSlacks) {
      std::ranges::fill(reserve_, 0);
      for (int repair = 0; repair < kMostRepairs; ++repair) {
        std::vector<PartPlan> plans;
        for (size_t q = 0; q < parts_; ++q) {
          const std::optional<Way> way = way_of(q, cuts[q], cuts[q + 1]);
          if (!way) break;
          plans.push_back(plans_.plan(cuts[q], cuts[q + 1], *way));
        }
        if (plans.size() < parts_) break;
        const PipelinePlan plan = draft_plan(
            pipeline_, layout, plans,
            with_messages(layout, one_f_one_b_order(pipeline_, layout, less_), slack));
        const auto over = best_.consider(plan);
        if (!over || over->empty()) break;
        for (const size_t device : *over) {
          reserve_[device] += (best_.last_peaks()[device] - problem_.budgets[device]).count();
        }
      }
    }
    std::ranges::fill(reserve_, 0);
  }

  const PipelineProblem& problem_;
  const Pipeline& pipeline_;
  SearchControl control_;
  size_t stages_;
  size_t parts_;
  std::vector<int32_t> device_;
  std::vector<size_t> given_;
  StageTimes times_;
  PartPlans plans_;
  BestPlan best_;
  int64_t less_ = 0;
  int64_t costs_of_ = 0;
  std::vector<Nanos> costs_;       // by part, first stage and end; -1: not known yet
  std::vector<int64_t> reserve_;   // by part: the bytes of its messages
};

SearchControl control_of(const PipelineProblem& problem, const char* planner) {
  return SearchControl(
      PlanOptions{.time_limit = problem.options.time_limit, .observer = problem.options.observer},
      planner);
}

// Asks the rows that have an answer for every problem, and those that have one for this one.
void consider_rows(const PipelineProblem& problem, JointSearch& search) {
  for (const auto row : {one_f_one_b, gpipe, cheapest_stages, adapipe, zero_bubble, interleaved}) {
    try {
      search.consider(row(problem));
    } catch (const InputError&) {
      // zb_h1 needs weight parts, and interleaved a link from the last device to the first.
    }
  }
}

}  // namespace

PipelineAnswer adapipe(const PipelineProblem& problem) {
  require_links(problem.pipeline, layout_of(problem.pipeline, problem.options.cuts, 1));
  JointSearch search(problem, control_of(problem, "adapipe"), Pieces::kSingle);
  search.search_by_formula();
  search.consider(one_f_one_b(problem));
  Layout layout = layout_of(problem.pipeline, problem.options.cuts, 1);
  if (const auto& plan = search.best().plan()) {
    layout = {};
    for (const PipelinePart& part : plan->parts) {
      layout.cuts.push_back(static_cast<size_t>(part.first_stage));
      layout.device.push_back(part.device);
    }
    layout.cuts.push_back(problem.pipeline.chain.stages.size());
  }
  return search.best().answer(bound_of(problem.pipeline, layout, least_times(problem.pipeline)));
}

PipelineAnswer joint(const PipelineProblem& problem) {
  SearchControl control = control_of(problem, "pipeline");
  require_links(problem.pipeline, layout_of(problem.pipeline, problem.options.cuts, 1));
  JointSearch search(problem, control.part(0.8), Pieces::kAll);
  consider_rows(problem, search);
  search.search();
  search.climb();
  const std::optional<PipelinePlan>& plan = search.best().plan();
  const bool several = plan && plan->parts.size() > problem.pipeline.devices.size();
  PipelineAnswer answer = search.best().answer(several ? bound_of_all(problem.pipeline)
                                                       : search.bound());
  if (several) answer.schedule_class = "all";
  answer.search_memory = search.memory();
  return answer;
}

}  // namespace reprise::internal::pipeline
