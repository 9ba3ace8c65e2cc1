// Plans are searched for beside the steps: whenever one arrives, the step has plain training's bits
// inside its budget, and nothing of a search is left behind.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stop_token>

#include "online_training.h"
#include "runtime/online/state.h"

namespace reprise::runtime::testing {
namespace {

using internal::online::BackgroundSearch;
using internal::online::OnlinePlan;
using internal::online::OnlinePlanOptions;
using internal::online::plan_step;
using internal::online::PlanFunction;
using internal::online::Trace;

constexpr Nanos kAnHour{3'600'000'000'000};

// Searches wait at a gate until it is opened. Then they are those of online mode.
class Gate {
 public:
  PlanFunction function() {
    return [this](const Trace& trace, const OnlinePlanOptions& options, std::string& why_not) {
      const int now = ++searching_;
      most_ = std::max(most_.load(), now);
      ++searches_;
      opened_.wait();
      std::optional<OnlinePlan> plan = plan_step(trace, options, why_not);
      --searching_;
      return plan;
    };
  }
  void open() { promise_.set_value(); }
  int searches() const { return searches_; }
  int most_at_once() const { return most_; }

 private:
  std::promise<void> promise_;
  const std::shared_future<void> opened_ = promise_.get_future().share();
  std::atomic<int> searching_ = 0, searches_ = 0, most_ = 0;
};

// BackgroundTest has a network whose steps all do the same, and one that applies its layers in
// another order.
class BackgroundTest : public OnlineTest {
 protected:
  struct Net : nn::Module {
    std::vector<nn::Linear> layers;
    Net() {
      for (int i = 0; i < 4; ++i) {
        layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(64, 64)));
      }
    }
    at::Tensor forward(at::Tensor x, bool backwards) {
      for (size_t i = 0; i < 8; ++i) {
        const nn::Linear& layer = layers[i < 4 || !backwards ? i % 4 : 7 - i];
        x = at::dropout(at::gelu(at::layer_norm(nn::Linear(layer)(x), {64})), 0.1, true);
      }
      return x.square().mean();
    }
  };

  OnlineOptions options() const {
    return {.budget = Bytes(budget_),
            .plan_after = 1,
            .time_limit = Nanos(100'000'000),
            .planning_share = std::numeric_limits<double>::infinity(),
            .plan_in_background = true};
  }
  Online online_with(PlanFunction plan) const {
    return Online(std::make_unique<Online::State>(options(), std::move(plan)));
  }

  Bits bits_behind(const at::Tensor& loss) {
    Bits bits;
    put_bits(bits, "loss", loss);
    for (const auto& item : net_.named_parameters()) {
      put_bits(bits, item.key(), item.value().grad());
    }
    put_bits(bits, "random state", at::detail::getDefaultCPUGenerator().get_state());
    net_.zero_grad();
    return bits;
  }
  // Runs a step plainly, with something between forward and backward.
  template <class Between>
  at::Tensor body(bool backwards, Between&& between) {
    at::manual_seed(7);
    at::Tensor loss = net_.forward(x_, backwards);
    between();
    loss.backward();
    return loss.detach();
  }
  // Runs a step online, and compares it with plain training.
  template <class Between>
  OnlineReport run(Online& online, Between&& between, bool backwards = false) {
    const at::Tensor loss = online.run([&] { return body(backwards, between); });
    EXPECT_EQ(difference(expected_[backwards], bits_behind(loss)), "");
    EXPECT_LE(online.last_step().measured_peak, online.last_step().budget);
    return online.last_step();
  }
  OnlineReport run(Online& online, bool backwards = false) {
    return run(
        online, [] {}, backwards);
  }

  void SetUp() override {
    OnlineTest::SetUp();
    x_ = at::randn({512, 64});
    net_.zero_grad();
    for (const bool backwards : {false, true}) {
      reset_peak(c10::kCPU);
      const at::Tensor loss = body(backwards, [] {});
      budget_ = peak() * 6 / 10;
      expected_[backwards] = bits_behind(loss);
    }
  }

  Net net_;
  at::Tensor x_;
  Bits expected_[2];
  int64_t budget_ = 0;
};

// --- Arrival ---

TEST_F(BackgroundTest, APlanMayArriveBeforeAnyStep) {
  constexpr int kSteps = 5;
  for (int arrival = 1; arrival < kSteps; ++arrival) {
    SCOPED_TRACE(fmt::format("before step {}", arrival));
    Gate gate;
    Online online = online_with(gate.function());
    for (int step = 0; step < kSteps; ++step) {
      if (step == arrival) {
        gate.open();
        online.wait_for_plan();
      }
      const OnlineReport report = run(online);
      EXPECT_EQ(report.planned, step >= arrival) << step << report.why_not_planned;
      EXPECT_EQ(report.planning_time > Nanos(), step == arrival);
      const bool goes_on = step > 0 && step < arrival;
      EXPECT_EQ(report.why_not_planned.find("the search for it goes on") != std::string::npos,
                goes_on)
          << report.why_not_planned;
    }
    EXPECT_EQ(gate.searches(), 1);
  }
}

// It is not put into force before the next step begins.
TEST_F(BackgroundTest, APlanMayArriveInTheMiddleOfAStep) {
  Gate gate;
  Online online = online_with(gate.function());
  run(online);
  const OnlineReport met = run(online, [&] {
    gate.open();
    online.wait_for_plan();
  });
  EXPECT_FALSE(met.planned);
  EXPECT_EQ(met.matched_calls, 0);
  EXPECT_TRUE(run(online).planned);
}

TEST_F(BackgroundTest, APlanMayArriveBehindAStepThatFails) {
  Gate gate;
  Online online = online_with(gate.function());
  run(online);
  EXPECT_THROW(online.run([&] {
    body(false, [&] {
      gate.open();
      online.wait_for_plan();
      throw std::runtime_error("mine");
    });
  }),
               std::runtime_error);
  EXPECT_TRUE(run(online).planned);
}

TEST_F(BackgroundTest, OneSearchIsUnderWayAtATime) {
  Gate gate;
  Online online = online_with(gate.function());
  run(online);
  const OnlineReport other = run(online, /*backwards=*/true);
  EXPECT_NE(other.why_not_planned.find("another search goes on"), std::string::npos)
      << other.why_not_planned;
  gate.open();
  for (const bool backwards : {true, true, false}) {
    online.wait_for_plan();
    run(online, backwards);
  }
  for (const bool backwards : {false, true}) EXPECT_TRUE(run(online, backwards).planned);
  EXPECT_EQ(gate.searches(), 2);
  EXPECT_EQ(gate.most_at_once(), 1);
}

// The plan that needs too much is followed until there is a smaller one.
TEST_F(BackgroundTest, APlanThatNeedsTooMuchIsReplacedWhenTheSmallerOneArrives) {
  std::atomic<int> searches = 0;
  std::promise<void> second;
  Online online =
      online_with([&, opened = second.get_future().share()](
                      const Trace& trace, const OnlinePlanOptions& asked, std::string& why_not) {
        if (++searches == 2) opened.wait();
        return plan_step(trace, asked, why_not);
      });
  run(online);
  online.wait_for_plan();
  EXPECT_EQ(run(online).unplanned_evictions, 0);
  const at::Tensor taken = at::zeros({1024, 64});
  const OnlineReport short_of_memory = run(online);
  EXPECT_TRUE(short_of_memory.planned);
  EXPECT_GT(short_of_memory.unplanned_evictions, 0);
  const OnlineReport meanwhile = run(online);
  EXPECT_TRUE(meanwhile.planned);
  EXPECT_EQ(meanwhile.unplanned_evictions, short_of_memory.unplanned_evictions);
  EXPECT_EQ(meanwhile.planning_time, Nanos());
  EXPECT_EQ(searches, 2);
  second.set_value();
  online.wait_for_plan();
  const OnlineReport smaller = run(online);
  EXPECT_TRUE(smaller.planned);
  EXPECT_GT(smaller.planning_time, Nanos());
  EXPECT_LE(smaller.unplanned_evictions, short_of_memory.unplanned_evictions);
}

// --- Failures, and the end ---

TEST_F(BackgroundTest, WhatASearchThrowsIsAReasonInTheReport) {
  const std::vector<std::pair<std::function<void()>, std::string>> rows = {
      {[] { throw std::runtime_error("a text"); }, "planning failed: a text"},
      {[] { throw std::bad_alloc(); }, "planning failed: std::bad_alloc"},
      {[] { throw 7; }, "planning failed: an exception of an unknown kind"},
  };
  for (const auto& [fail, reason] : rows) {
    Online online = online_with(
        [&](const Trace&, const OnlinePlanOptions&, std::string&) -> std::optional<OnlinePlan> {
          fail();
          return std::nullopt;
        });
    run(online);
    online.wait_for_plan();
    for (int step = 0; step < 2; ++step) EXPECT_EQ(run(online).why_not_planned, reason);
  }
}

// Returns a search that ends only when it is told to.
PlanFunction endless(std::promise<void>& begun, std::atomic<int>& ended) {
  return [&](const Trace&, const OnlinePlanOptions& options, std::string& why_not) {
    begun.set_value();
    std::mutex mutex;
    std::condition_variable_any told;
    std::unique_lock lock(mutex);
    told.wait(lock, options.stop, [] { return false; });
    ++ended;
    why_not = "told to end";
    return std::optional<OnlinePlan>();
  };
}

TEST_F(BackgroundTest, TheDestructorEndsASearch) {
  for (const bool moved : {false, true}) {
    std::promise<void> begun;
    std::atomic<int> ended = 0;
    {
      Online online = online_with(endless(begun, ended));
      run(online);
      begun.get_future().wait();
      if (moved) online = Online(options());
      EXPECT_EQ(ended, moved);
    }
    EXPECT_EQ(ended, 1);
  }
  // The same holds with a search of online mode itself.
  OnlineOptions patient = options();
  patient.time_limit = kAnHour;
  for (int n = 0; n < 3; ++n) {
    Online online(patient);
    run(online);
  }
}

TEST_F(BackgroundTest, AnotherThreadMayEndAllPlanning) {
  std::promise<void> begun;
  std::atomic<int> ended = 0;
  Online online = online_with(endless(begun, ended));
  run(online);
  begun.get_future().wait();
  std::thread([&] { online.stop_planning(); }).join();
  EXPECT_EQ(ended, 1);
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(run(online).planned);
  EXPECT_EQ(run(online).why_not_planned, "planning was ended");
}

// Its thread is not there.
TEST_F(BackgroundTest, AChildOfForkDoesWithoutTheSearch) {
  Gate gate;
  std::optional<Online> online(online_with(gate.function()));
  run(*online);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool well = false;
    try {
      online->wait_for_plan();
      well = !run(*online).planned;  // It begins a search of its own.
      gate.open();
      online->wait_for_plan();
      well = well && run(*online).planned;
      online.reset();
    } catch (...) {
    }
    _exit(well && !HasFailure() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  gate.open();
  online->wait_for_plan();
  EXPECT_TRUE(run(*online).planned);
  const pid_t idle = fork();  // with no search under way, and a child that ends one
  if (idle == 0) {
    alarm(60);
    online.reset();
    _exit(0);
  }
  waitpid(idle, &status, 0);
  EXPECT_EQ(status, 0);
}

// --- The search alone ---

TEST(OnlineBackgroundSearch, ItsAnswerIsTakenOnce) {
  BackgroundSearch search;
  EXPECT_FALSE(search.under_way());
  EXPECT_FALSE(search.take());
  search.wait();
  for (int n = 0; n < 20; ++n) {
    std::promise<void> opened;
    const auto plan = [n, gate = opened.get_future().share()](const Trace& trace,
                                                              const OnlinePlanOptions& options,
                                                              std::string& why_not) {
      gate.wait();
      why_not = fmt::format("{} {}", trace.live_before, options.smallest);
      return n % 2 == 0 ? std::optional(OnlinePlan{}) : std::nullopt;
    };
    Trace trace;
    trace.live_before = n;
    EXPECT_EQ(search.begin({.trace = std::move(trace), .options = {.smallest = 3}}, plan), "");
    EXPECT_TRUE(search.under_way());
    EXPECT_FALSE(search.take());
    opened.set_value();
    if (n % 3 == 0) search.wait();
    std::optional<internal::online::PlanAnswer> answer;
    while (!answer) answer = search.take();
    EXPECT_EQ(answer->plan != nullptr, n % 2 == 0);
    EXPECT_EQ(answer->why_not, fmt::format("{} 3", n));
    EXPECT_FALSE(search.take());
    EXPECT_FALSE(search.under_way());
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
