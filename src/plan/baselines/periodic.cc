// Checkpoints at regular distances: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with
// Sublinear Memory Cost", arXiv 1604.06174, section 4. PyTorch's checkpoint_sequential offers the
// same.
//
// The stages are cut into segments, which run as segments.h says.
//
// Candidates:
// - by count: k = 1..L segments of nearly equal numbers of stages (k = 1: plain training);
// - by bytes: greedy segments of at most T kept bytes, for every T at which the cut differs.
//
// | paper             | here                                                               |
// |-------------------|--------------------------------------------------------------------|
// | n, k              | chain.stages.size(), number of segments                            |
// | budget b (Alg. 3) | threshold T: kept bytes (saved + output) at which a segment closes |
//
// Complexity: O(L) candidates by count and up to O(L^2) by bytes, each simulated in O(L).
//
// Not handled: more than one re-run a stage; any option but the first.
//
// Tests: property/simple_planners_test.cc, and the tests of every planner in
// property/planner_property_test.cc.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/baselines/segments.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"

namespace reprise::internal::baselines {

using common::Candidates;
using common::least_time;
using common::SearchControl;

namespace {

Cuts cut_by_count(size_t stages, size_t segments) {
  Cuts cuts;
  for (size_t s = 0; s < segments; ++s) cuts.push_back(s * stages / segments);
  return cuts;
}

struct BytesCut {
  Cuts cuts;
  int64_t next = 0;  // smallest threshold with other cuts; 0: there is none
};

// Closes a segment before the stage that would take the segment beyond the threshold. A stage
// larger than the threshold is a segment of its own.
BytesCut cut_by_bytes(const std::vector<int64_t>& kept, int64_t threshold) {
  BytesCut cut{{0}, 0};
  int64_t sum = kept[0];
  for (size_t i = 1; i < kept.size(); ++i) {
    if (sum + kept[i] <= threshold) {
      sum += kept[i];
      continue;
    }
    cut.next = cut.next == 0 ? sum + kept[i] : std::min(cut.next, sum + kept[i]);
    cut.cuts.push_back(i);
    sum = kept[i];
  }
  return cut;
}

// Returns false if time ran out before every candidate was considered.
bool consider_periodic(const Chain& chain, Candidates& candidates, SearchControl& control) {
  const size_t stages = chain.stages.size();
  for (size_t segments = 1; segments <= stages; ++segments) {
    if (control.out_of_time()) return false;
    control.report(-1);
    candidates.consider(segment_runs(stages, cut_by_count(stages, segments)));
  }
  std::vector<int64_t> kept;
  for (const Stage& stage : chain.stages) {
    kept.push_back((stage.options.front().saved + stage.output).count());
  }
  Cuts before;
  int64_t threshold = 0;
  do {
    if (control.out_of_time()) return false;
    control.report(-1);
    const BytesCut cut = cut_by_bytes(kept, threshold);
    if (cut.cuts != before) candidates.consider(segment_runs(stages, cut.cuts));
    before = cut.cuts;
    threshold = cut.next;
  } while (threshold > 0);
  return true;
}

}  // namespace

Answer periodic_chain(const ChainProblem& problem) {
  SearchControl control(problem.options, "periodic");
  Candidates candidates(problem.graph, problem.budget);
  const bool all = consider_periodic(problem.chain, candidates, control);
  return candidates.answer(least_time(problem.chain), all);
}

Curve periodic_frontier(const ChainProblem& problem) {
  SearchControl control(problem.options, "periodic");
  Candidates candidates(problem.graph, problem.budget);
  consider_periodic(problem.chain, candidates, control);
  return {candidates.curve(least_time(problem.chain))};
}

}  // namespace reprise::internal::baselines
