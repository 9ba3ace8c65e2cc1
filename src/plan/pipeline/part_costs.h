// PartCosts says what a row of stages costs as a part of a pipeline, on the device of that part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/order_rules.h"
#include "plan/pipeline/part_plans.h"
#include "reprise/plan/pipeline.h"

namespace reprise::internal::pipeline {

inline constexpr Nanos kNoTime{std::numeric_limits<int64_t>::max()};

class PartCosts {
 public:
  PartCosts(const PipelineProblem& problem, Pieces pieces, common::SearchControl& control);

  bool complete() const { return plans_.complete(); }
  PartPlans& plans() { return plans_; }
  const Pipeline& pipeline() const { return problem_.pipeline; }
  const PipelineProblem& problem() const { return problem_; }

  // The first part lies on the first device, the second one on the second device, and so on.
  size_t parts() const { return device_.size(); }
  size_t stages() const { return stages_; }
  const std::vector<int32_t>& devices() const { return device_; }
  // Returns the cuts that the user gave, with 0 and the number of stages; empty if there are none.
  const std::vector<size_t>& given_cuts() const { return given_; }

  // Costs are those of this order from now on. At first the order is 1F1B.
  void set_rule(OrderRule rule);
  const OrderRule& rule() const { return rule_; }
  int64_t in_flight(size_t part) const;

  // Returns the bytes that a part has beside what its device holds during the whole step.
  int64_t room(size_t part, size_t first, size_t end) const;
  // Returns the fastest way of these stages in the room without `reserved` bytes, or nothing.
  std::optional<Way> way(size_t part, size_t first, size_t end, int64_t reserved = 0);
  // Returns the time of that way for one micro-batch, if messages took no bytes; kNoTime without one.
  Nanos time(size_t part, size_t first, size_t end);

  // Returns a time that no step takes less than whose parts have these cuts and the ways of time().
  // Returns kNoTime if a part has none.
  Nanos least_time(const std::vector<size_t>& cuts);

  // Returns a time that no plan of the class `persistent-parts` takes less than: the parts lie on the
  // devices in their order, with any cuts, or those of the user, and in any order of the actions.
  // Where every part of that class is proven to lack memory, that is kNoTime.
  Nanos bound();

 private:
  const PipelineDevice& device(size_t part) const;
  Nanos fastest_time(size_t from, size_t to, Nanos time) const;
  Nanos there_and_back(size_t crossing, size_t boundary) const;
  Nanos way_to(size_t part, size_t first) const;
  Nanos time_at(size_t part, size_t first, Nanos work, Nanos weights) const;
  Nanos least_of_link(size_t crossing, size_t boundary) const;
  Nanos least_of_part(size_t part, size_t first, size_t end);
  Nanos shortest_way() const;
  bool allowed(size_t part, size_t first, size_t end) const;

  const PipelineProblem& problem_;
  size_t stages_;
  std::vector<size_t> given_;
  std::vector<int32_t> device_;
  StageTimes times_;
  PartPlans plans_;
  OrderRule rule_;
  std::vector<Nanos> crossings_;  // by part but the first: the least messages there and back
  std::vector<Nanos> known_;      // by part, first stage and end; -1: not computed yet
};

}  // namespace reprise::internal::pipeline
