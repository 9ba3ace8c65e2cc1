// These are the orders with one part on each device, as rules that a search can go through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/orders.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::pipeline {

enum class RuleKind {
  kAlternate,       // one_f_one_b_order()
  kAllForwards,     // gpipe_order()
  kDelayedWeights,  // delayed_weights_order()
  kTimedWeights,    // zero_bubble_order()
};

struct OrderRule {
  RuleKind kind = RuleKind::kAlternate;
  int64_t less = 0;                // of kAlternate: the micro-batches that it has less in flight
  std::vector<int64_t> in_flight;  // by part: at most, up to the weight gradients
  // By part: the micro-batches that are expected between their forward and their backward. With split
  // backwards these may be fewer: what weight parts keep is not counted.
  std::vector<int64_t> held;

  bool splits_backwards() const {
    return kind == RuleKind::kDelayedWeights || kind == RuleKind::kTimedWeights;
  }
};

// Returns the rule of 1F1B with so many micro-batches less in flight at each part.
OrderRule alternate_rule(const Pipeline& pipeline, size_t parts, int64_t less = 0);

// Returns the rules of ZB-H1 in which part q has at most min(q, more) micro-batches more in flight
// than with 1F1B, for some `more` from parts - 1 down to 0: all where there are few parts.
std::vector<OrderRule> zero_bubble_rules(size_t parts);

// Returns the rules that are worth a try, from many micro-batches in flight to few: O(log(parts)) of
// each kind where there are many parts. Rules that split backwards are there if a stage has a weight
// part.
std::vector<OrderRule> all_rules(const Pipeline& pipeline, size_t parts);

// The layout has one part on each device, and a plan for each part.
Orders order_of(const OrderRule& rule, const Pipeline& pipeline, const Layout& layout,
                const std::vector<PartPlan>& plans);

bool has_weight_parts(const Pipeline& pipeline);

}  // namespace reprise::internal::pipeline
