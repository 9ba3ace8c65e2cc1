#include "plan/pipeline/order_rules.h"

#include <algorithm>

namespace reprise::internal::pipeline {
namespace {

constexpr int64_t kFewParts = 8;

// Returns 0..parts-1, or 0, 1, 2, 4, ... and parts - 1.
std::vector<int64_t> steps_below(size_t parts) {
  const auto count = static_cast<int64_t>(parts);
  std::vector<int64_t> steps;
  for (int64_t k = 0; k + 1 < count; k = count > kFewParts && k > 0 ? 2 * k : k + 1) {
    steps.push_back(k);
  }
  steps.push_back(count - 1);
  return steps;
}

}  // namespace

bool has_weight_parts(const Pipeline& pipeline) {
  return std::ranges::any_of(
      pipeline.stages, [](const PipelineStage& stage) { return stage.weight_part.has_value(); });
}

OrderRule alternate_rule(const Pipeline& pipeline, size_t parts, int64_t less) {
  OrderRule rule{.kind = RuleKind::kAlternate, .less = less, .in_flight = {}, .held = {}};
  for (size_t q = 0; q < parts; ++q) {
    rule.in_flight.push_back(
        std::clamp<int64_t>(static_cast<int64_t>(parts - q) - less, 1, pipeline.micro_batches));
  }
  rule.held = rule.in_flight;
  return rule;
}

std::vector<OrderRule> zero_bubble_rules(size_t parts) {
  std::vector<OrderRule> rules;
  const std::vector<int64_t> steps = steps_below(parts);
  for (auto more = steps.rbegin(); more != steps.rend(); ++more) {
    OrderRule rule;
    for (size_t q = 0; q < parts; ++q) {
      const auto alternating = static_cast<int64_t>(parts - q);
      rule.in_flight.push_back(alternating + std::min(static_cast<int64_t>(q), *more));
      rule.held.push_back(alternating);
    }
    for (const RuleKind kind : {RuleKind::kDelayedWeights, RuleKind::kTimedWeights}) {
      rule.kind = kind;
      rules.push_back(rule);
    }
  }
  return rules;
}

std::vector<OrderRule> all_rules(const Pipeline& pipeline, size_t parts) {
  std::vector<OrderRule> rules;
  if (has_weight_parts(pipeline)) rules = zero_bubble_rules(parts);
  for (const int64_t less : steps_below(parts)) {
    rules.push_back(alternate_rule(pipeline, parts, less));
  }
  const std::vector<int64_t> all(parts, pipeline.micro_batches);
  rules.push_back({.kind = RuleKind::kAllForwards, .less = 0, .in_flight = all, .held = all});
  return rules;
}

Orders order_of(const OrderRule& rule, const Pipeline& pipeline, const Layout& layout,
                const std::vector<PartPlan>& plans) {
  switch (rule.kind) {
    case RuleKind::kAlternate:
      return one_f_one_b_order(pipeline, layout, rule.less);
    case RuleKind::kAllForwards:
      return gpipe_order(pipeline, layout);
    case RuleKind::kDelayedWeights:
      return delayed_weights_order(pipeline, layout, rule.in_flight);
    case RuleKind::kTimedWeights:
      break;
  }
  std::vector<PartTimes> times;
  for (size_t q = 0; q < plans.size(); ++q) {
    times.push_back(times_of_plan(pipeline, layout.device[q], plans[q]));
  }
  return zero_bubble_order(pipeline, layout, times, rule.in_flight);
}

}  // namespace reprise::internal::pipeline
