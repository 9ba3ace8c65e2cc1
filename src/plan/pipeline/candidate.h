// Says how micro-batches run through parts, and what a plan that is put together costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/messages.h"
#include "plan/pipeline/orders.h"
#include "reprise/check/pipeline.h"
#include "reprise/model/pipeline.h"
#include "reprise/plan/pipeline.h"

namespace reprise::internal::pipeline {

// Keeps all that the backward needs, with the first option of each stage.
PartPlan keep_plan(const Pipeline& pipeline, size_t first, size_t end);

// Keeps only the input of the part, and runs it again for the backward. The last part, to which
// nothing is behind, puts its forward off until then, and runs nothing twice.
PartPlan recompute_plan(const Pipeline& pipeline, size_t first, size_t end);

// Returns the times of a part's plan on a device.
PartTimes times_of_plan(const Pipeline& pipeline, int32_t device, const PartPlan& plan);

// Returns a plan without claims: the parts, each with one plan for all micro-batches, and the
// orders.
PipelinePlan draft_plan(const Pipeline& pipeline, const Layout& layout,
                        const std::vector<PartPlan>& plans, Orders orders);

// Returns the limit on the time of a search, and its observer.
common::SearchControl control_of(const PipelineProblem& problem, const char* planner);

// BestPlan has the best plan that was tried so far, and the one that came closest where nothing
// fits.
class BestPlan {
 public:
  BestPlan(const PipelineProblem& problem);

  // Simulates the plan. Returns the devices on which it is over the budget, and an empty list if
  // the plan is not faster than the best one. Returns nothing if devices wait for each other.
  std::optional<std::vector<size_t>> consider(const PipelinePlan& plan);
  // Says whether the time for planning is over.
  bool late() const { return control_.out_of_time(); }
  // Takes the answer of another planner as one more plan.
  void consider(const PipelineAnswer& answer);

  bool found() const { return best_.has_value(); }
  bool tried() const { return found() || closest_; }
  Nanos time() const { return time_; }
  const std::optional<PipelinePlan>& plan() const { return best_; }
  // By device: the peaks of the plan that was simulated last.
  const std::vector<Bytes>& last_peaks() const { return last_; }
  PipelineAnswer answer(Nanos lower_bound) const;

 private:
  // A Miss is a plan that does not fit, on the device where it is furthest over the budget.
  struct Miss {
    size_t device = 0;
    Bytes peak;
    Bytes over;
  };
  void note_miss(const Miss& miss);

  const PipelineProblem& problem_;
  common::SearchControl control_;
  std::optional<PipelinePlan> best_;
  Nanos time_;
  std::optional<Miss> closest_;
  std::vector<Bytes> last_;
};

// Makes the orders for the plans of the parts; without messages.
using OrderMaker = std::function<Orders(const std::vector<PartPlan>&)>;

// Tries an order with everything kept, and then with parts recomputed on the devices that are over
// their budgets, first the ones that save most. Each is tried with several slacks for its messages.
// Returns false if devices wait for each other with every slack.
bool try_order(const PipelineProblem& problem, const Layout& layout, const OrderMaker& make,
               BestPlan& best);

}  // namespace reprise::internal::pipeline
