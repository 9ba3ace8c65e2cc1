// Each kind of work gets one time, from samples of works alone and in the order of plain training.
#include "runtime/graph/work_times.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reprise::runtime {

using internal::graph::LoweredStep;
using internal::graph::WorkTimes;
using internal::step::Work;
using internal::step::Works;

namespace {

Work work(const std::string& name) {
  Work made;
  made.name = name;
  return made;
}

Op op(const std::string& id, Phase phase, const std::vector<std::string>& variants,
      ValueIndex written) {
  Op made;
  made.id = id;
  made.phase = phase;
  for (const std::string& name : variants) {
    Variant variant;
    variant.name = name;
    variant.writes = {written};
    made.variants.push_back(variant);
  }
  return made;
}

// The step has the forward f, for which g can run; the loss; and the backward b, for which c and d
// together can run.
struct Step {
  Works works{{work("f"), work("g"), work("loss"), work("b"), work("c"), work("d"), work("f")}, {}};
  LoweredStep lowered;

  Step() {
    Graph& graph = lowered.graph;
    for (const std::string id : {"y", "l", "r", "part"}) {
      graph.values.push_back({id, Bytes(1), ValueKind::kActivation});
    }
    graph.ops = {
        op("f", Phase::kForward, {"default", "other"}, 0), op("loss", Phase::kLoss, {"default"}, 1),
        op("b", Phase::kBackward, {"default"}, 2), op("c", Phase::kBackward, {"default"}, 3),
        op("d", Phase::kBackward, {"default"}, 2)};
    graph.choices = {{"b", {{"", {2}}, {"", {3, 4}}}}};
    graph.results = {2};
    lowered.works = {{0, 1}, {2}, {3}, {4}, {5}};
  }
};

void add(WorkTimes& times, size_t work, const std::vector<int64_t>& alone,
         const std::vector<int64_t>& in_order) {
  for (const int64_t time : alone) times.add_alone(work, {Nanos(time), Nanos(time)});
  for (const int64_t time : in_order) times.add_in_order(work, {Nanos(time), Nanos(time)});
}

TEST(WorkTimesTest, PlainTrainingTakesItsTimesInOrderAndWhatStandsForItIsSlowedAsMuch) {
  const Step step;
  WorkTimes times(step.works, step.lowered);
  add(times, 0, {100, 90, 300}, {150, 140, 160});
  add(times, 1, {50, 40, 60}, {});
  add(times, 2, {7}, {});  // no walk came so far
  add(times, 3, {200}, {300});
  add(times, 4, {80}, {});
  add(times, 5, {100}, {});
  const WorkTimes::Shared shared = times.share(/*busy=*/false);
  EXPECT_EQ(shared.time, (std::vector<Nanos>{Nanos(150), Nanos(75), Nanos(7), Nanos(300),
                                             Nanos(120), Nanos(150), Nanos(150)}));
  ASSERT_EQ(shared.spread.size(), 6U);  // the last work is of the first one's kind
  EXPECT_EQ(shared.spread[0], (TimeSpread{.op = "0:f",
                                          .variant = "default",
                                          .repeats = 3,
                                          .min = Nanos(140),
                                          .median = Nanos(150),
                                          .max = Nanos(160)}));
  EXPECT_EQ(shared.spread[1].min, Nanos(60));
  EXPECT_EQ(shared.spread[1].max, Nanos(90));
}

TEST(WorkTimesTest, AnAlternativeIsNotSlowedByMoreTimeThanWhatItStandsFor) {
  const Step step;
  WorkTimes times(step.works, step.lowered);
  add(times, 0, {10}, {50});
  add(times, 1, {1000}, {});
  EXPECT_EQ(times.share(/*busy=*/false).time[1], Nanos(1040));
}

TEST(WorkTimesTest, ABusyMachineCountsProcessorTimeAndTheSpreadShowsTheWallTimes) {
  const Step step;
  WorkTimes times(step.works, step.lowered);
  times.add_alone(0, {Nanos(4000), Nanos(100)});
  for (const int64_t wall : {3000, 9000, 6000}) {
    times.add_in_order(0, {Nanos(wall), Nanos(150)});
  }
  times.add_alone(1, {Nanos(7000), Nanos(50)});
  const WorkTimes::Shared shared = times.share(/*busy=*/true);
  EXPECT_EQ(shared.time[0], Nanos(150));
  EXPECT_EQ(shared.time[1], Nanos(75));
  EXPECT_EQ(shared.spread[0].min, Nanos(3000));
  EXPECT_EQ(shared.spread[0].median, Nanos(6000));
  EXPECT_EQ(shared.spread[0].max, Nanos(9000));
}

TEST(WorkTimesTest, AWorkThatWasNotMeasuredTakesNoTime) {
  const Step step;
  const WorkTimes times(step.works, step.lowered);
  EXPECT_EQ(times.share(/*busy=*/false).time, std::vector<Nanos>(7));
  EXPECT_TRUE(times.share(/*busy=*/false).spread.empty());
  EXPECT_EQ(times.repeats(0), 0);
  EXPECT_EQ(times.total(0), Nanos());
}

}  // namespace
}  // namespace reprise::runtime
