// Tests `offload = "auto"`: values move where that pays, and nowhere else.
#include <sys/vfs.h>

#include <cstdlib>

#include "capture_offload.h"
#include "reprise/runtime/remat.h"
#include "runtime/transfer/choose.h"
#include "runtime/transfer/file_calls.h"
#include "tight_step.h"

namespace reprise::runtime::testing {

namespace {

using internal::transfer::AutoMemory;
using internal::transfer::FileCalls;
using internal::transfer::FileCallsScope;
using internal::transfer::memory_for_auto;
using internal::transfer::Verdict;
using internal::transfer::weigh;
using internal::transfer::weigh_before;

constexpr long kTmpfs = 0x01021994;

// Counts the files that are there.
class OpenFiles final : public FileCalls {
 public:
  int open(const std::string& path, int flags) override {
    ++opened;
    ++there;
    return FileCalls::open(path, flags);
  }
  int close(int file) override {
    --there;
    return FileCalls::close(file);
  }

  int opened = 0, there = 0;

 private:
  FileCallsScope scope_{*this};
};

// Sets an environment variable for a scope.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Returns two values that the backward reads, of which the first may be made again or moved.
Graph two_values() {
  const auto op = [](const char* id, Phase phase, int64_t time, std::vector<ValueIndex> reads,
                     std::vector<ValueIndex> writes) {
    Op one;
    one.id = id;
    one.phase = phase;
    one.once = phase != Phase::kForward;
    Variant variant;
    variant.time = Nanos(time);
    variant.reads = std::move(reads);
    variant.writes = std::move(writes);
    one.variants = {variant};
    return one;
  };
  Graph graph;
  graph.name = "two";
  graph.values = {{"a", Bytes(1000)}, {"b", Bytes(1000)}, {"loss", Bytes(1000)}};
  graph.ops = {op("A", Phase::kForward, 1000, {}, {0}), op("B", Phase::kForward, 1000, {0}, {1}),
               op("loss", Phase::kLoss, 1000, {1}, {2}),
               op("back", Phase::kBackward, 1000, {0}, {})};
  return graph;
}

PlanResult result_of(const Graph& graph, std::vector<Action> actions, const Machine& machine) {
  PlanResult result;
  result.plan.emplace();
  result.plan->time = simulate(graph, actions, machine).time;
  result.plan->actions = std::move(actions);
  return result;
}

constexpr ActionKind kRun = ActionKind::kRun, kFree = ActionKind::kFree, kCopy = ActionKind::kCopy,
                     kWait = ActionKind::kWait;

PlanResult again() {
  return result_of(two_values(),
                   {{kRun, "A", "default"},
                    {kRun, "B", "default"},
                    {kFree, "a", ""},
                    {kRun, "loss", "default"},
                    {kRun, "A", "default"},
                    {kRun, "back", "default"}},
                   {});
}

PlanResult moved(const Machine& machine) {
  return result_of(two_values(),
                   {{kRun, "A", "default"},
                    {kCopy, "a", "", "device", "disk"},
                    {kRun, "B", "default"},
                    {kWait, "a", "", "disk"},
                    {kFree, "a", ""},
                    {kCopy, "a", "", "disk", "device"},
                    {kRun, "loss", "default"},
                    {kWait, "a", "", "device"},
                    {kFree, "a", "", "disk"},
                    {kRun, "back", "default"}},
                   machine);
}

Verdict verdict(const Machine& machine, int64_t half_range) {
  const TimeSpread spread{.op = "A",
                          .variant = "default",
                          .repeats = 4,
                          .min = Nanos(0),
                          .median = Nanos(1000),
                          .max = Nanos(2 * half_range)};
  const Graph graph = two_values();
  return weigh({graph, again(), moved(machine), machine}, {spread}, "disk:/scratch");
}

TEST(AutoMemory, AGainMustBeLargerThanTheMeasurementCanTell) {
  const Machine fast = disk_of(kFast);
  ASSERT_EQ(again().plan->time, Nanos(5000));
  EXPECT_TRUE(verdict(fast, 0).moves);
  EXPECT_TRUE(verdict(fast, 1500).moves);
  EXPECT_FALSE(verdict(fast, 2500).moves) << "the run of A may take no time at all";
  EXPECT_NE(verdict(fast, 2500).why.find("nothing moves"), std::string::npos);
  // Copies of 1,000 ns stand behind runs of 1,000 ns, and those of 2,000 ns do not.
  const Machine enough = disk_of(1'000'000'000), more = disk_of(3'000'000'000);
  ASSERT_EQ(moved(enough).plan->time, Nanos(4000));
  EXPECT_FALSE(verdict(enough, 0).moves) << "at half of the bandwidth there is no gain";
  EXPECT_TRUE(verdict(more, 0).moves);
}

TEST(AutoMemory, OneFastEnoughPlanOrNoPlanDecides) {
  const Graph graph = two_values();
  const Machine fast = disk_of(kFast);
  EXPECT_TRUE(weigh({graph, {}, moved(fast), fast}, {}, "disk:/scratch").moves);
  EXPECT_FALSE(weigh({graph, again(), {}, fast}, {}, "disk:/scratch").moves);
  EXPECT_FALSE(weigh({graph, again(), again(), fast}, {}, "disk:/scratch").moves);
  EXPECT_EQ(weigh_before(again(), Nanos(4000)), Verdict());
  EXPECT_EQ(weigh_before({}, Nanos(4000)), Verdict());
  EXPECT_NE(weigh_before(again(), Nanos(4960)).why, "");
}

TEST(AutoMemory, AFileSystemInMemoryIsNoMemoryToMoveTo) {
  struct statfs shared = {};
  if (::statfs("/dev/shm", &shared) != 0 || shared.f_type != kTmpfs) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  const AutoMemory named = memory_for_auto({.to = "auto:/dev/shm"}, c10::kCPU);
  EXPECT_EQ(named.options.to, "");
  EXPECT_NE(named.why.find("/dev/shm is a tmpfs"), std::string::npos);
  const Environment temporary("TMPDIR", "/dev/shm");
  EXPECT_EQ(memory_for_auto({.to = "auto"}, c10::kCPU).options.to, "");
}

TEST(AutoMemory, ItIsAMemoryThatTheDeviceCanHave) {
  const OffloadOptions asked{.to = "auto", .block = Bytes(1 << 16)};
  OffloadOptions host = asked;
  host.to = "host";
  EXPECT_EQ(memory_for_auto(asked, c10::Device(c10::kMeta)).options, host);
  EXPECT_THROW(memory_for_auto({.to = "auto:/no/such/place"}, c10::kCPU), InputError);
  EXPECT_THROW(memory_for_auto({.to = "auto:"}, c10::kCPU), InputError);
}

class AutoOffload : public CaptureOffload {
 protected:
  OffloadOptions automatic(const Machine& machine) const {
    OffloadOptions options = offload(machine);
    options.to = "auto:" + folder_.string();
    return options;
  }
  // The folder of tests may lie in memory.
  void SetUp() override {
    CaptureOffload::SetUp();
    struct statfs found = {};
    ASSERT_EQ(::statfs(folder_.c_str(), &found), 0);
    if (found.f_type == kTmpfs) GTEST_SKIP() << folder_ << " is a tmpfs";
  }
};

TEST_F(AutoOffload, CapturedStepsMoveWhereThatPays) {
  at::manual_seed(3);
  const MovingStep subject = of_chain({"dense", dense_stages(12), {rows_}, mean_square});
  const StepState state(subject.stages, subject.inputs);
  plain_steps(subject, 1);
  state.restore();
  const std::vector<Bits> expected = plain_steps(subject, 2);
  state.restore();
  drop_gradients(subject.stages, subject.inputs);
  OpenFiles files;
  CapturedStep step = captured(subject);
  const int64_t level = live();
  const Machine fast = disk_of(kFast), slow = disk_of(1000);

  step.plan({.time_limit = kShort, .offload = automatic(fast)});
  EXPECT_EQ(files.opened, 0) << "with all memory nothing can pay";
  EXPECT_NE(step.last_step().offload_choice.find("nothing moves"), std::string::npos);
  EXPECT_TRUE(step.machine().channels.empty());

  // So few bytes that values which only run again do not fit.
  const Bytes tight = budget_at(step, fast, 0.1);
  drop_gradients(subject.stages, subject.inputs);
  step.plan({.budget = tight, .time_limit = kShort * 2, .offload = automatic(fast)});
  EXPECT_EQ(step.last_step().offload_choice.find("disk:" + folder_.string()), 0U)
      << step.last_step().offload_choice;
  state.restore();
  expect_steps(step, subject, expected);
  EXPECT_GT(step.last_step().moved_out, Bytes(0));
  EXPECT_EQ(files.there, 1);

  step.plan({.budget = "95%", .time_limit = kShort, .offload = automatic(slow)});
  EXPECT_NE(step.last_step().offload_choice.find("nothing moves"), std::string::npos);
  EXPECT_EQ(files.there, 0) << "a file was kept";
  state.restore();
  drop_gradients(subject.stages, subject.inputs);
  EXPECT_EQ(live(), level) << "buffers were kept";
  expect_steps(step, subject, expected);
  EXPECT_EQ(step.last_step().moved_out, Bytes(0));

  step.plan({.time_limit = kShort});
  EXPECT_EQ(step.last_step().offload_choice, "");
}

TEST_F(AutoOffload, ChainsMoveWhereThatPays) {
  at::manual_seed(3);
  const std::vector<Stage> stages = dense_stages(12);
  OpenFiles files;
  Bits last;  // of the last step
  const auto planned = [&](const Machine& machine, Budget budget) {
    drop_gradients(stages, {rows_});
    auto model = remat(stages, {rows_},
                       {.budget = budget,
                        .time_limit = kShort,
                        .loss = mean_square,
                        .measure = quick(),
                        .offload = automatic(machine)});
    last = planned_step(*model, stages, {rows_}, mean_square);
    return model;
  };
  const auto without = planned(disk_of(kFast), {});
  EXPECT_EQ(files.opened, 0);
  EXPECT_NE(without->last_step().offload_choice.find("nothing moves"), std::string::npos);
  const Bits expected = last;

  const Bytes least = plan(without->chain(), {.budget = without->chain().fixed,
                                              .schedule_class = kScheduleClass,
                                              .time_limit = kShort})
                          .smallest_budget.value();
  // On a busy machine the time of one stage may be wrong by so much that no other one counts.
  std::shared_ptr<Remat> fast;
  for (int attempt = 0; attempt < 5; ++attempt) {
    fast = planned(disk_of(kFast), least + Bytes(1 << 18));
    if (fast->last_step().moved_out > Bytes(0)) break;
  }
  EXPECT_EQ(fast->last_step().offload_choice.find("disk:" + folder_.string()), 0U)
      << fast->last_step().offload_choice;
  EXPECT_GT(fast->last_step().moved_out, Bytes(0));
  EXPECT_EQ(fast->last_step().predicted_peak, fast->last_step().measured_peak);
  EXPECT_EQ(difference(expected, last), "");

  const auto slow = planned(disk_of(1000), "80%");
  EXPECT_NE(slow->last_step().offload_choice.find("nothing moves"), std::string::npos);
  EXPECT_EQ(slow->last_step().moved_out, Bytes(0));
  EXPECT_EQ(slow->last_step().predicted_peak, slow->last_step().measured_peak);
  EXPECT_EQ(files.there, 1) << "only the fast one has a file";

  // The choice is made again for another budget.
  fast->set_budget({});
  drop_gradients(stages, {rows_});
  EXPECT_EQ(difference(expected, planned_step(*fast, stages, {rows_}, mean_square)), "");
  EXPECT_EQ(fast->last_step().moved_out, Bytes(0));
  EXPECT_EQ(fast->last_step().predicted_peak, fast->last_step().measured_peak);
  EXPECT_EQ(files.there, 0);
}

}  // namespace

}  // namespace reprise::runtime::testing
