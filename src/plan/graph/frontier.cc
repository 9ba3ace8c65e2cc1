// Finds the time/memory curve of a graph. Single budgets are asked from coarse to fine, between the
// smallest peak that the search finds and the peak of plain training. Each search starts with the
// schedules of the neighbouring budgets.
#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/search_control.h"
#include "plan/graph/planner.h"
#include "plan/graph/question.h"

namespace reprise::internal::graph {

using common::SearchControl;
using common::thread_count;
using schedule::Schedule;
using schedule::ScheduleModel;
using search::FoundSchedule;

namespace {

class Samples {
 public:
  Samples(const GraphProblem& problem, SearchControl& control, const GraphSearchParams& params)
      : params_(params),
        model_(problem.graph),
        threads_(thread_count(problem.options.threads)),
        most_(problem.baseline.peak.count()),
        control_(control),
        left_(params.frontier.most_samples) {}

  std::vector<Answer> take() {
    ask(most_);
    SearchControl part = control_.part(params_.frontier.share_for_smallest);
    const GraphFinding least =
        find_schedule(model_, Bytes(0), Bytes(0), threads_, {}, part, params_);
    keep(least.smallest.peak, least.smallest, least.bound.time);
    ask(least.smallest.peak);
    const int64_t low = least.smallest.peak;
    for (int64_t parts = 2; parts < params_.frontier.most_samples; parts *= 2) {
      for (int64_t k = 1; k < parts; k += 2) {
        if (control_.out_of_time()) return curve();
        // The budget is rounded towards that of plain training, which is known to the byte.
        ask(most_ - (most_ - low) / parts * (parts - k));
      }
    }
    return curve();
  }

 private:
  struct Sample {
    FoundSchedule found;
    Nanos bound;
  };

  // Keeps the fastest schedule of each peak. A bound for a larger budget holds for a smaller one,
  // too.
  void keep(int64_t peak, const FoundSchedule& found, Nanos bound) {
    const auto [at, is_new] = samples_.try_emplace(peak, Sample{found, bound});
    if (is_new) return;
    at->second.bound = std::max(at->second.bound, std::min(bound, Nanos(found.time)));
    if (found.time < at->second.found.time) at->second.found = found;
  }

  void ask(int64_t budget) {
    left_ = std::max<int64_t>(1, left_ - 1);
    std::vector<Schedule> seeds;
    const auto above = samples_.upper_bound(budget);
    if (above != samples_.begin()) seeds.push_back(std::prev(above)->second.found.schedule);
    if (above != samples_.end()) {
      // Between two schedules of the same time there is nothing to find.
      if (!seeds.empty() && std::prev(above)->second.found.time <= above->second.found.time) return;
      seeds.push_back(above->second.found.schedule);
    }
    const double share = params_.frontier.share_for_sample / static_cast<double>(left_);
    SearchControl part = control_.part(std::min(1.0, share));
    const GraphFinding found =
        find_schedule(model_, Bytes(budget), Bytes(budget), threads_, seeds, part, params_);
    if (found.best) keep(found.best->peak, *found.best, found.bound.time);
  }

  std::vector<Answer> curve() const {
    std::vector<Answer> points;
    int64_t fastest = INT64_MAX;
    for (const auto& [peak, sample] : samples_) {
      if (sample.found.time >= fastest) continue;
      fastest = sample.found.time;
      Answer answer;
      answer.lower_bound = std::min(sample.bound, Nanos(fastest));
      answer.termination =
          answer.lower_bound == Nanos(fastest) ? Termination::kOptimal : Termination::kFeasible;
      answer.runs = runs_of(model_, sample.found.schedule);
      points.push_back(std::move(answer));
    }
    return points;
  }

  const GraphSearchParams& params_;
  const ScheduleModel model_;
  const int threads_;
  const int64_t most_;
  SearchControl& control_;
  int64_t left_;                       // samples that may still be asked
  std::map<int64_t, Sample> samples_;  // by peak
};

}  // namespace

std::vector<Answer> graph_frontier(const GraphProblem& problem) {
  return graph_frontier(problem, GraphSearchParams{});
}

std::vector<Answer> graph_frontier(const GraphProblem& problem, const GraphSearchParams& params) {
  SearchControl control(problem.options, "graph");
  return Samples(problem, control, params).take();
}

}  // namespace reprise::internal::graph
