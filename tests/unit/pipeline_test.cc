// Tests the model of pipelines: what is valid, what a device's program is, and what verify() finds.
#include "reprise/check/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/pipeline.h"
#include "reprise/plan/pipeline.h"
#include "reprise/report/pipeline.h"
#include "support/random_pipeline.h"

namespace reprise::testing {
namespace {

using Kind = PipelineActionKind;

Pipeline small() { return equal_stages(2, 3, Nanos(10), Nanos(12), Nanos(8)); }

PipelinePlan valid_plan(const Pipeline& pipeline, const char* planner = "1f1b") {
  return *plan(pipeline, {.planner = planner}).plan;
}

std::set<ViolationKind> faults(const Pipeline& pipeline, const PipelinePlan& plan) {
  std::set<ViolationKind> kinds;
  for (const Violation& violation : verify(pipeline, plan)) kinds.insert(violation.kind);
  return kinds;
}

std::string pointer_of(const std::function<void(Pipeline&)>& damage) {
  Pipeline pipeline = small();
  damage(pipeline);
  try {
    validate(pipeline);
  } catch (const InputError& error) {
    return error.where().pointer;
  }
  return "valid";
}

TEST(Pipeline, IsRefusedWithThePlace) {
  EXPECT_EQ(pointer_of([](Pipeline&) {}), "valid");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.micro_batches = 0; }), "/micro_batches");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.micro_batches = kMostMicroBatches + 1; }),
            "/micro_batches");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.devices.clear(); }), "/devices");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.devices[1].name = ""; }), "/devices/1/name");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.devices[1].name = p.devices[0].name; }),
            "/devices/1/name");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.devices[0].memory = Bytes(-1); }), "/devices/0/bytes");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.devices[0].time_percent = 0; }),
            "/devices/0/time_percent");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links[0].to = 0; }), "/links/0/to");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links[0].to = 7; }), "/links/0/to");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links[0].from = -1; }), "/links/0/from");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links[0].bytes_per_second = 0; }),
            "/links/0/bytes_per_second");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links[1].latency = Nanos(-1); }), "/links/1/latency_ns");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.links.push_back(p.links[0]); }), "/links/2");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.stages.pop_back(); }), "/stages");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.stages[1].fixed = Bytes(-1); }),
            "/stages/1/fixed_bytes");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.stages[1].weight_part->cost.time = Nanos(21); }),
            "/stages/1/weight_part/ns");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.stages[0].weight_part->kept = Bytes(-3); }),
            "/stages/0/weight_part/kept_bytes");
  EXPECT_EQ(pointer_of([](Pipeline& p) {
              p.stages[0].weight_part->options = {"keep", "other"};
            }),
            "/stages/0/weight_part/options/1");
  EXPECT_EQ(pointer_of([](Pipeline& p) {
              p.stages[0].weight_part->rest = Cost{Nanos(11), {}};
            }),
            "/stages/0/weight_part/input_gradient/ns");
  EXPECT_EQ(pointer_of([](Pipeline& p) {
              p.stages[0].weight_part->rest = Cost{Nanos(12), {}};
            }),
            "valid");
  EXPECT_EQ(pointer_of([](Pipeline& p) { p.chain.stages[1].options.clear(); }),
            "/chain/stages/1/options");
  EXPECT_EQ(
      pointer_of([](Pipeline& p) { p.chain.stages[0].forward.time = Nanos(int64_t{1} << 62); }),
      "/micro_batches");
}

TEST(Pipeline, OfEqualDevicesHasLinksBetweenNeighboursAndEnds) {
  const Pipeline pipeline =
      pipeline_of_equal_devices(small().chain, 4, 8, Link{.bytes_per_second = 10}, Bytes(100));
  EXPECT_EQ(pipeline.devices.size(), 4u);
  EXPECT_EQ(pipeline.devices[3].memory, Bytes(100));
  EXPECT_GE(find_link(pipeline, 2, 3), 0);
  EXPECT_GE(find_link(pipeline, 3, 0), 0);
  EXPECT_LT(find_link(pipeline, 0, 2), 0);
  EXPECT_THROW(pipeline_of_equal_devices(small().chain, 0, 8, Link{.bytes_per_second = 10}),
               InputError);
  EXPECT_THROW(pipeline_of_equal_devices(small().chain, 2, 0, Link{.bytes_per_second = 10}),
               InputError);
}

TEST(Pipeline, TimesOnADeviceAreRoundedUp) {
  PipelineDevice device{"slow"};
  EXPECT_EQ(time_on(device, Nanos(7)), Nanos(7));
  device.time_percent = 150;
  EXPECT_EQ(time_on(device, Nanos(7)), Nanos(11));
}

TEST(PipelineProgram, HasOneGradientForEachWeightAndBothEndsOfEachMessage) {
  Pipeline pipeline = small();
  for (Stage& stage : pipeline.chain.stages) stage.weight_gradient = Bytes(4);
  const PipelinePlan plan = valid_plan(pipeline);
  const PipelineProgram program = lower(pipeline, plan);
  EXPECT_NO_THROW(validate(program.graph));
  EXPECT_NO_THROW(validate(program.machine));
  int64_t weights = 0, sends = 0, receives = 0;
  for (const Value& value : program.graph.values) weights += value.id == "w0";
  for (const BoundAction& action : program.actions) {
    sends += action.kind == ActionKind::kSend && action.at == 0 && action.to == 1;
    receives += action.kind == ActionKind::kReceive && action.at == 1 && action.to == 0;
  }
  EXPECT_EQ(weights, 1);
  EXPECT_EQ(sends, 3);
  EXPECT_EQ(receives, 3);
  EXPECT_EQ(program.places.size(), program.actions.size());
}

TEST(PipelineVerify, AcceptsThePlansOfAllRows) {
  for (const char* planner : {"gpipe", "1f1b", "interleaved", "zb_h1"}) {
    SCOPED_TRACE(planner);
    const Pipeline pipeline = equal_stages(2, 4, Nanos(10), Nanos(12), Nanos(8), 2);
    EXPECT_TRUE(verify(pipeline, valid_plan(pipeline, planner), problem_id(pipeline)).empty());
  }
}

// Without any one action, or with any one twice, a plan is not valid.
TEST(PipelineVerify, MissesEveryActionAndSeesEveryOneThatComesTwice) {
  for (const char* planner : {"1f1b", "zb_h1"}) {
    const Pipeline pipeline = small();
    const PipelinePlan plan = valid_plan(pipeline, planner);
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      for (size_t a = 0; a < plan.devices[d].order.size(); ++a) {
        SCOPED_TRACE(std::string(planner) + ", " + describe(plan.devices[d].order[a]));
        PipelinePlan without = plan, twice = plan;
        auto& order = without.devices[d].order;
        order.erase(order.begin() + static_cast<int64_t>(a));
        const std::set<ViolationKind> missing = faults(pipeline, without);
        EXPECT_TRUE(missing.contains(ViolationKind::kMissingRun) ||
                    missing.contains(ViolationKind::kUnmatched));
        twice.devices[d].order.push_back(plan.devices[d].order[a]);
        EXPECT_TRUE(faults(pipeline, twice).contains(ViolationKind::kRepeatedRun));
      }
    }
  }
}

TEST(PipelineVerify, SeesADeadlock) {
  const Pipeline pipeline = small();
  PipelinePlan plan = valid_plan(pipeline);
  // Each device waits for its own message before it makes room for the other's.
  for (DevicePlan& device : plan.devices) {
    std::ranges::stable_partition(device.order,
                                  [](const PipelineAction& a) { return a.kind != Kind::kReceive; });
  }
  const std::vector<Violation> violations = verify(pipeline, plan);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].kind, ViolationKind::kDeadlock);
  EXPECT_NE(violations[0].message.find("for which device1 makes no room"), std::string::npos)
      << violations[0].message;
  EXPECT_THROW(simulate(pipeline, plan), InputError);
  EXPECT_FALSE(simulate_unless_stuck(pipeline, plan).has_value());
}

// The bytes of a message stay where it comes from until the wait, also if the part makes them again.
TEST(PipelineProgram, HoldsWhatALinkReads) {
  Pipeline pipeline = equal_stages(2, 1, Nanos(10), Nanos(12), Nanos(8));
  pipeline.chain.stages[0].output = Bytes(100);
  PipelinePlan plan = valid_plan(pipeline);
  plan.parts[0].plans[0].forward[0].variant = "fast";
  auto& backward = plan.parts[0].plans[0].backward;
  backward.insert(backward.begin(), {Phase::kForward, 0, "keep"});
  const auto peak = [&] { return simulate(pipeline, plan).devices[0].peak; };
  EXPECT_EQ(peak(), Bytes(210));  // the output, its gradient, and what is saved
  auto& order = plan.devices[0].order;
  const auto wait = std::ranges::find(order, Kind::kWait, &PipelineAction::kind);
  ASSERT_NE(wait, order.end());
  std::rotate(wait, wait + 1, order.end());
  EXPECT_EQ(peak(), Bytes(310));  // the output once more
}

// Two runs of 1 ns take 3 ns together where each alone takes 2 ns.
TEST(PipelineProgram, RoundsTheTimeOfAnActionUpOnce) {
  Pipeline pipeline = equal_stages(1, 1, Nanos(1), Nanos(1), Nanos(0), 2);
  pipeline.devices[0].time_percent = 150;
  const PipelineTimeline timeline = simulate(pipeline, valid_plan(pipeline));
  EXPECT_EQ(timeline.devices[0].steps[0].end, Nanos(3));
  EXPECT_EQ(timeline.time, Nanos(6));
  EXPECT_EQ(timeline.devices[0].busy, Nanos(6));
}

// The weight part of the second stage still reads its input when the backward of the first one gives
// its own back, on the other device.
TEST(PipelineProgram, AWeightPartKeepsItsInputOnItsDeviceAlone) {
  Pipeline pipeline = equal_stages(2, 2, Nanos(10), Nanos(12), Nanos(8));
  Stage& first = pipeline.chain.stages[0];
  first.output = Bytes(100);
  first.options[0].reads_output = first.options[0].consumes = true;
  first.options[0].backward.workspace = Bytes(1000);
  pipeline.chain.stages[1].options[0].reads_input = true;
  pipeline.stages[0].weight_part.reset();
  pipeline.stages[1].weight_part->reads_input = true;
  PipelinePlan plan = valid_plan(pipeline, "gpipe");
  constexpr MessageKind kGradient = MessageKind::kGradient;
  plan.devices[0].order.clear();
  for (const int32_t m : {0, 1}) {
    for (const Kind kind : {Kind::kForward, Kind::kSend, Kind::kWait, Kind::kBackward}) {
      if (kind == Kind::kBackward) {
        plan.devices[0].order.push_back({Kind::kReceive, 0, m, kGradient});
      }
      plan.devices[0].order.push_back({kind, 0, m});
    }
  }
  plan.devices[1].order.clear();
  for (const int32_t m : {0, 1}) {
    for (const Kind kind : {Kind::kReceive, Kind::kForward, Kind::kInputGradient}) {
      plan.devices[1].order.push_back({kind, 1, m});
    }
    plan.devices[1].order.push_back({Kind::kSend, 1, m, kGradient});
    plan.devices[1].order.push_back({Kind::kWait, 1, m, kGradient});
  }
  for (const int32_t m : {0, 1}) plan.devices[1].order.push_back({Kind::kWeightGradient, 1, m});
  EXPECT_EQ(simulate(pipeline, plan).devices[0].peak, Bytes(1000));
}

// The forward of the last part runs nothing here, and waits for its message. Its backward does not.
TEST(PipelineVerify, SeesAReadOfAMessageThatMayStillBeComing) {
  const Pipeline pipeline = equal_stages(2, 1, Nanos(10), Nanos(12), Nanos(8));
  PipelinePlan plan = valid_plan(pipeline);
  PartPlan& last = plan.parts[1].plans[0];
  last.backward.insert(last.backward.begin(), last.forward[0]);
  last.forward.clear();
  EXPECT_NO_THROW(simulate(pipeline, plan));
  auto& order = plan.devices[1].order;
  const auto forward = std::ranges::find(order, Kind::kForward, &PipelineAction::kind);
  const auto backward = std::ranges::find(order, Kind::kBackward, &PipelineAction::kind);
  ASSERT_LT(forward, backward);
  std::iter_swap(forward, backward);
  const std::vector<Violation> found = verify(pipeline, plan);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, ViolationKind::kNotLive);
  EXPECT_NE(found[0].message.find("may still be coming"), std::string::npos) << found[0].message;
  EXPECT_THROW(simulate(pipeline, plan), InputError);
}

TEST(PipelineVerify, SeesThatBothEndsOfALinkDiffer) {
  const Pipeline pipeline = equal_stages(2, 3, Nanos(10), Nanos(12), Nanos(8));
  PipelinePlan plan = valid_plan(pipeline, "gpipe");
  std::vector<PipelineAction*> receives;
  for (PipelineAction& action : plan.devices[1].order) {
    if (action.kind == Kind::kReceive) receives.push_back(&action);
  }
  std::swap(*receives[0], *receives[1]);
  EXPECT_TRUE(faults(pipeline, plan).contains(ViolationKind::kUnmatched));
}

TEST(PipelineVerify, SeesWhatDoesNotFitTheProblem) {
  const Pipeline pipeline = small();
  const PipelinePlan good = valid_plan(pipeline);
  const auto kinds = [&](const std::function<void(PipelinePlan&)>& damage) {
    PipelinePlan plan = good;
    damage(plan);
    return faults(pipeline, plan);
  };
  using V = ViolationKind;
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.devices.pop_back(); }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.devices[0].name = "else"; }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.parts.pop_back(); }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.parts[1].first_stage = 0; }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.parts[0].plan_of[1] = 4; }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.parts[0].plan_of.pop_back(); }).contains(V::kPart));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.parts[0].device = 5; }).contains(V::kPart));
  EXPECT_TRUE(
      kinds([](PipelinePlan& p) { p.devices[0].order[0].part = 9; }).contains(V::kUnknownId));
  EXPECT_TRUE(kinds([](PipelinePlan& p) {
                p.devices[0].order[0].micro_batch = 3;
              }).contains(V::kUnknownId));
  EXPECT_TRUE(kinds([](PipelinePlan& p) {
                p.parts[0].plans[0].forward[0].stage = 9;
              }).contains(V::kUnknownId));
  EXPECT_TRUE(kinds([](PipelinePlan& p) {
                p.parts[0].plans[0].forward[0].variant = "other";
              }).contains(V::kUnknownId));
  EXPECT_TRUE(
      kinds([](PipelinePlan& p) { p.parts[0].plans[0].forward.clear(); }).contains(V::kNotLive));
  EXPECT_TRUE(kinds([](PipelinePlan& p) {
                auto& runs = p.parts[1].plans[0].backward;
                runs.push_back(runs.back());  // It would add its weight gradients twice.
              }).contains(V::kRepeatedRun));
  EXPECT_TRUE(
      kinds([](PipelinePlan& p) { p.devices[1].budget = Bytes(9); }).contains(V::kOverBudget));
  EXPECT_TRUE(
      kinds([](PipelinePlan& p) { p.devices[1].peak += Bytes(1); }).contains(V::kFalseClaim));
  EXPECT_TRUE(kinds([](PipelinePlan& p) { p.time += Nanos(1); }).contains(V::kFalseClaim));
  EXPECT_TRUE(
      kinds([](PipelinePlan& p) { p.lower_bound = p.time + Nanos(1); }).contains(V::kFalseClaim));
  EXPECT_TRUE(kinds([](PipelinePlan& p) {
                p.termination = Termination::kInfeasible;
              }).contains(V::kFalseClaim));
  ProblemId other = problem_id(pipeline);
  other.sha256 = std::string(64, '0');
  EXPECT_EQ(verify(pipeline, good, other).front().kind, V::kOtherProblem);
}

// Gradients are summed in the order of the micro-batches.
TEST(PipelineVerify, SeesSumsInAnotherOrder) {
  const Pipeline pipeline = equal_stages(1, 2, Nanos(10), Nanos(12), Nanos(8));
  PipelinePlan plan = valid_plan(pipeline, "gpipe");
  auto& order = plan.devices[0].order;
  ASSERT_EQ(order.size(), 4u);
  std::swap(order[2], order[3]);
  EXPECT_TRUE(faults(pipeline, plan).contains(ViolationKind::kOrder));
}

// A stage that is not split sums its gradients in the input gradient of its part.
TEST(PipelineVerify, SeesSumsOfStagesThatAreNotSplitInAnotherOrder) {
  Pipeline pipeline = equal_stages(1, 2, Nanos(10), Nanos(12), Nanos(8), 2);
  pipeline.chain.stages[1].weight_gradient = Bytes(4);
  PipelinePlan plan = valid_plan(pipeline, "gpipe");
  auto& order = plan.devices[0].order;
  ASSERT_EQ(order.size(), 4u);
  const auto split = [&](int32_t first, int32_t second) {
    order.resize(2);
    order.push_back({Kind::kInputGradient, 0, first});
    order.push_back({Kind::kInputGradient, 0, second});
    order.push_back({Kind::kWeightGradient, 0, 0});
    order.push_back({Kind::kWeightGradient, 0, 1});
    return faults(pipeline, plan).contains(ViolationKind::kOrder);
  };
  EXPECT_FALSE(split(0, 1));
  EXPECT_FALSE(split(1, 0));
  pipeline.stages[1].weight_part.reset();
  EXPECT_FALSE(split(0, 1));
  EXPECT_TRUE(split(1, 0));
  pipeline.stages[1].weight_part = WeightPart{.cost = {}, .kept = {}, .options = {"keep"}};
  EXPECT_FALSE(split(1, 0));
  pipeline.chain.stages[1].options.push_back(pipeline.chain.stages[1].options[0]);
  pipeline.chain.stages[1].options[1].name = "other";
  plan.parts[0].plans[0].forward[1].variant = "other";
  plan.parts[0].plans[0].backward[1].variant = "other";
  EXPECT_TRUE(split(1, 0));
}

TEST(PipelineVerify, NeedsALink) {
  Pipeline pipeline = small();
  const PipelinePlan plan = valid_plan(pipeline);
  pipeline.links.pop_back();
  EXPECT_TRUE(faults(pipeline, plan).contains(ViolationKind::kUnmatched));
}

TEST(Pipeline, IsWrittenWithAllFactsOfItsWeightParts) {
  Pipeline pipeline = small();
  pipeline.stages[1].weight_part = WeightPart{.cost = {Nanos(3), Bytes(4)},
                                              .kept = Bytes(5),
                                              .consumes = true,
                                              .reads_input = true,
                                              .rest = Cost{Nanos(18), Bytes(6)},
                                              .options = {"keep"}};
  EXPECT_EQ(parse_pipeline(to_json(pipeline)), pipeline);
}

// What the weight part of the second stage reads of its input stays until it runs. If the backward
// makes the input again for the first stage, the weight part has what it read then.
TEST(PipelineProgram, HoldsTheInputOfAWeightPart) {
  Pipeline pipeline = equal_stages(1, 1, Nanos(10), Nanos(12), Nanos(8), 2);
  pipeline.chain.stages[0].output = Bytes(100);
  for (Stage& stage : pipeline.chain.stages) {
    stage.options[0].consumes = true;
    stage.options[0].reads_input = true;
    stage.options[0].consumes_input = false;
  }
  pipeline.chain.stages[0].options[0].reads_output = true;  // so its backward gives the output back
  pipeline.stages[0].weight_part.reset();
  WeightPart& part = *pipeline.stages[1].weight_part;
  PipelinePlan plan = valid_plan(pipeline, "gpipe");
  const auto live_at_the_end = [&] {  // before the weight gradient: without what it makes
    plan.devices[0].order = {
        {Kind::kForward, 0, 0}, {Kind::kInputGradient, 0, 0}, {Kind::kWeightGradient, 0, 0}};
    part.cost.workspace = Bytes(1000);  // so that the peak is there
    return simulate(pipeline, plan).devices[0].peak.count() - 1000;
  };
  EXPECT_EQ(live_at_the_end(), 2);
  part.reads_input = true;
  EXPECT_EQ(live_at_the_end(), 102);
  part.consumes = true;
  EXPECT_EQ(live_at_the_end(), 100);
  plan.parts[0].plans[0].forward[0].variant = "fast";
  auto& backward = plan.parts[0].plans[0].backward;
  ASSERT_EQ(backward.size(), 3u);
  backward.insert(backward.begin() + 2, {Phase::kForward, 0, "keep"});
  part.consumes = false;
  EXPECT_EQ(live_at_the_end(), 102);
  EXPECT_TRUE(verify(pipeline, plan).front().kind == ViolationKind::kFalseClaim);
}

TEST(PipelinePlan, IsWrittenAndReadBack) {
  for (const char* planner : {"gpipe", "interleaved", "zb_h1"}) {
    const Pipeline pipeline = equal_stages(2, 3, Nanos(10), Nanos(12), Nanos(8), 2);
    EXPECT_EQ(parse_pipeline(to_json(pipeline)), pipeline);
    EXPECT_EQ(problem_id(pipeline).sha256, canonical_sha256(to_json(pipeline)));
    const PipelinePlan plan = valid_plan(pipeline, planner);
    PipelinePlan read = parse_pipeline_plan(to_json(plan));
    read.search->wall = plan.search->wall;  // The file has whole milliseconds.
    EXPECT_EQ(read, plan);
  }
}

TEST(PipelinePlan, HasTheOrderThatPyTorchReads) {
  const Pipeline pipeline = small();
  EXPECT_EQ(pytorch_order(valid_plan(pipeline)),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(PipelineOptions, WrongOnesAreRefused) {
  const Pipeline pipeline = small();
  const auto refused = [&](const PipelineOptions& options) {
    EXPECT_THROW(plan(pipeline, options), InputError);
  };
  refused({.planner = "chain"});
  refused({.planner = "none"});
  refused({.cuts = {0}});
  refused({.cuts = {2}});
  refused({.cuts = {1, 1}});
  refused({.planner = "interleaved", .parts_per_device = 0});
  refused({.time_limit = Nanos(-1)});
  refused({.threads = -1});
  EXPECT_EQ(plan(pipeline, {.cuts = {1}}).plan->parts[1].first_stage, 1);
  Pipeline without = pipeline;
  without.links.clear();
  EXPECT_THROW(plan(without, {}), InputError);
  Pipeline whole = pipeline;
  whole.stages.clear();
  EXPECT_THROW(plan(whole, {.planner = "zb_h1"}), InputError);
}

}  // namespace
}  // namespace reprise::testing
