// A capture with a budget stays inside it from its first byte, and captures the same step as a capture
// without one. So a step whose plain training does not fit the process is captured, planned and run.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "faulty_allocator.h"
#include "online_training.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

constexpr int64_t kMany = 1 << 16;  // elements

class CaptureWithinTest : public RuntimeTest {};

// Returns the graph with no times and nothing that depends on what else is live.
Graph without_times(Graph graph) {
  graph.fixed = Bytes(0);
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) variant.time = Nanos(0);
  }
  return graph;
}

// Names the first difference between two graphs. The text is empty if there is none.
std::string difference_of(const Graph& a, const Graph& b) {
  if (a == b) return "";
  if (a.ops.size() != b.ops.size()) {
    return fmt::format("{} ops and {} ops", a.ops.size(), b.ops.size());
  }
  for (size_t o = 0; o < a.ops.size(); ++o) {
    const Op &x = a.ops[o], &y = b.ops[o];
    if (x == y) continue;
    if (x.id != y.id) return x.id + " is " + y.id;
    if (x.variants.size() != y.variants.size()) return "variants of " + x.id;
    for (size_t v = 0; v < x.variants.size(); ++v) {
      const Variant &p = x.variants[v], &q = y.variants[v];
      if (p.workspace != q.workspace) {
        return fmt::format("workspace of {}/{}: {} and {}", x.id, p.name, p.workspace.count(),
                           q.workspace.count());
      }
      if (p != q) return fmt::format("variant {}/{}", x.id, p.name);
    }
    return x.id;
  }
  return a.values != b.values ? "values" : "results or choices";
}

// A step of a subject, whose data stay the same, and what plain training does.
struct Plain {
  explicit Plain(const MakeSubject& make, bool run = true)
      : subject((at::manual_seed(1), make())) {
    subject.prepare(0);
    if (run) run_plain();
  }
  void run_plain() {
    step()({});  // makes what is made once
    start();
    const int64_t level = live();
    reset_peak(c10::kCPU);
    for (int n = 0; n < 3; ++n) {
      const at::Tensor loss = step()({})[0];
      bits.push_back(bits_of(subject, loss));
    }
    room = peak() - level;
    start();
  }
  StepFunction step() {
    return [this](const Tensors&) {
      at::Tensor loss = subject.forward();
      loss.backward();
      return Tensors{loss.detach()};
    };
  }
  // Brings the state of before the first step back.
  void start() {
    subject.module->zero_grad();
    at::manual_seed(9);
    for (auto& item : subject.module->named_buffers()) {
      if (item.value().is_floating_point()) item.value().fill_(0.5);
      else item.value().zero_();
    }
  }
  CaptureOptions options(Budget budget = {}) const {
    return {.modules = {subject.module}, .budget = std::move(budget), .measure = quick()};
  }
  Budget share(double part) const {
    return Bytes(live() + static_cast<int64_t>(part * static_cast<double>(room)));
  }

  Subject subject;
  std::vector<Bits> bits;
  int64_t room = 0;  // bytes that plain training takes beside what is there before
};

struct Row {
  MakeSubject make;
  double share;  // of plain training's room
};

class CaptureWithinModels : public CaptureWithinTest,
                            public ::testing::WithParamInterface<int> {
 protected:
  static Row row() {
    static const std::vector<Row> rows = {
        {[] { return resnet(3, 16, 32); }, 0.33},
        {[] { return gpt(0, 6, 128, 64); }, 0.33},
        {[] { return cells(32, 12); }, 0.5},
        {[] { return experts(1024, 256); }, 0.4},
    };
    return rows[static_cast<size_t>(GetParam())];
  }
};

INSTANTIATE_TEST_SUITE_P(Each, CaptureWithinModels, ::testing::Range(0, 4));

// The allocator refuses whatever would exceed the budget during the whole capture.
TEST_P(CaptureWithinModels, AreCapturedInAThirdOfPlainTrainingsMemory) {
  Plain plain(row().make);
  const Tensors inputs{at::zeros({1})};
  const Graph expected = without_times(capture(plain.step(), inputs, plain.options()).graph());
  plain.start();
  const Bits before = bits_of(plain.subject, {});
  const Budget budget = plain.share(row().share);
  std::optional<CapturedStep> step;
  {
    const CpuLimitGuard limit(budget.resolve(Bytes(0)).count());
    step.emplace(capture(plain.step(), inputs, plain.options(budget)));
  }
  EXPECT_EQ(difference(before, bits_of(plain.subject, {})), "");
  EXPECT_EQ(difference_of(without_times(step->graph()), expected), "");
  EXPECT_GT(baseline(step->graph()).peak, budget.resolve(Bytes(0)));
  for (const Op& op : step->graph().ops) {
    EXPECT_GT(op.variants[0].time.count(), 0) << op.id;
  }
  // The budget of the capture is that of the plan.
  step->plan({.time_limit = Nanos(500'000'000)});
  for (size_t n = 0; n < plain.bits.size(); ++n) {
    const at::Tensor loss = step->run(inputs);
    EXPECT_EQ(difference(plain.bits[n], bits_of(plain.subject, loss)), "") << n;
    EXPECT_EQ(step->last_step().measured_peak, step->last_step().predicted_peak);
    EXPECT_LE(step->last_step().measured_peak, budget.resolve(Bytes(0)));
  }
}

// Small steps with in-place writes, literals, views, random numbers, autocast.
TEST_F(CaptureWithinTest, WhatTrainingCodeDoesIsCapturedAsWithoutABudget) {
  int captured_within = 0;
  for (const Case& work : cases()) {
    SCOPED_TRACE(work.name);
    const std::vector<Stage> stages{{work.name, work.module, {}}};
    const StepState state(stages, work.inputs);
    const auto function = [&](const Tensors& in) {
      at::Tensor loss = work.loss(in);
      loss.backward();
      return loss;
    };
    CaptureOptions options{.modules = {work.module}, .measure = quick()};
    const auto capture_now = [&] {
      state.restore();
      return capture(function, work.inputs, options);
    };
    const CapturedStep without = capture_now();
    const Graph expected = without_times(without.graph());
    const Baseline plain = baseline(without.graph());
    bool evicting = false;
    for (const int percent : {95, 90, 80, 60}) {
      SCOPED_TRACE(percent);
      options.budget = Bytes(live() + (plain.peak.count() - live()) * percent / 100);
      try {
        CapturedStep step = capture_now();
        EXPECT_EQ(difference_of(without_times(step.graph()), expected), "");
        evicting = true;
      } catch (const BudgetError&) {
        continue;  // An operation with its operands does not fit.
      }
    }
    captured_within += evicting;
  }
  EXPECT_GE(captured_within, 6);
}

// Asks for so much memory that other tensors must go.
void squeeze(int64_t bytes) { at::empty({bytes / 4}); }

TEST_F(CaptureWithinTest, WhatTheHostWritesAndWhatNobodyWritesIsNoReasonToRefuse) {
  const at::Tensor weight = at::ones({kMany}).requires_grad_();
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor numbers = at::tensor({2.0F, 3.0F, 5.0F, 7.0F});  // The host writes them.
    at::Tensor half = at::empty({2, kMany});
    half.select(0, 0).copy_(in[0] * 3);  // Nobody writes the other half.
    squeeze(16 * kMany);
    const at::Tensor product = half.select(0, 0) * weight;
    squeeze(16 * kMany);
    at::Tensor sum = (product.view({4, -1}) * numbers.unsqueeze(1)).sum();
    sum = sum + half.select(0, 0).mean();
    sum.backward();
    return Tensors{sum.detach()};
  };
  const Tensors inputs{at::rand({kMany})};
  const at::Tensor expected = step(inputs)[0];
  const at::Tensor gradient = weight.grad();
  weight.mutable_grad() = at::Tensor();
  CapturedStep captured = capture(
      step, inputs,
      {.budget = Bytes(live() + int64_t{24} * kMany), .measure = quick()});
  EXPECT_TRUE(captured.run(inputs).equal(expected));
  EXPECT_TRUE(weight.grad().equal(gradient));
}

// An operator of which only the shape of an operand matters finds the operand absent.
TEST_F(CaptureWithinTest, OperandsOfWhichOnlyTheShapeIsReadMayBeAbsent) {
  std::vector<nn::Conv2d> layers{conv(3, 16)};
  for (int i = 0; i < 5; ++i) layers.push_back(conv(16, 16));
  const auto step = [=](const Tensors& in) mutable {
    at::Tensor y = in[0];
    for (nn::Conv2d& layer : layers) y = at::max_pool2d(layer(y), {3, 3}, {1, 1}, {1, 1}).tanh();
    const at::Tensor loss = y.square().mean();
    loss.backward();
    return loss.detach();
  };
  const Tensors inputs{at::randn({4, 3, 32, 32})};
  const int64_t level = live();
  const CapturedStep without = capture(step, inputs, {.measure = quick()});
  const int64_t room = baseline(without.graph()).peak.count() - level;
  const CapturedStep within =
      capture(step, inputs, {.budget = Bytes(live() + room * 60 / 100), .measure = quick()});
  EXPECT_EQ(difference_of(without_times(within.graph()), without_times(without.graph())), "");
}

TEST_F(CaptureWithinTest, OutcomesAndOtherShapesAreCapturedWithinTheBudget) {
  nn::Linear layer(512, 512);
  const StepFunction step = [=](const Tensors& in) mutable {
    at::Tensor h = in[0];
    const bool deep = in[1].gt(0).item<bool>();
    for (int i = 0; i < (deep ? 8 : 4); ++i) h = layer(h).tanh();
    const at::Tensor loss = h.square().mean();
    loss.backward();
    return Tensors{loss.detach()};
  };
  const auto inputs = [](int64_t rows, float sign) {
    at::manual_seed(static_cast<uint64_t>(rows));
    return Tensors{at::randn({rows, 512}), at::full({1}, sign)};
  };
  // Eight activations of 512 rows are 8 MiB, beside three times 1 MiB for the layer.
  const Bytes budget(live() + (int64_t{9} << 20));
  CapturedStep captured = capture(step, inputs(512, -1),
                                  {.modules = {layer.ptr()},
                                   .on_miss = OnMiss::kRecapture,
                                   .budget = budget,
                                   .measure = quick()});
  captured.plan({.time_limit = Nanos(300'000'000)});
  for (const auto& [rows, sign] : std::vector<std::pair<int64_t, float>>{
           {512, -1}, {512, 1}, {384, 1}, {512, 1}}) {
    const Tensors now = inputs(rows, sign);
    layer->zero_grad();
    const at::Tensor expected = step(now)[0];
    const at::Tensor gradient = layer->weight.grad().clone();
    layer->zero_grad();
    at::Tensor found;
    {
      const CpuLimitGuard limit(budget.count() + (int64_t{2} << 20));
      found = captured.run(now);
    }
    EXPECT_TRUE(found.equal(expected)) << rows << ' ' << sign;
    EXPECT_TRUE(layer->weight.grad().equal(gradient)) << rows << ' ' << sign;
    EXPECT_LE(captured.last_step().measured_peak, budget);
  }
}

TEST_F(CaptureWithinTest, BadBudgetsAreRefusedAndLeaveEverythingAsItWas) {
  Plain plain([] { return resnet(1, 2, 8); });
  const Tensors inputs{at::zeros({1})};
  const auto message = [&](Budget budget) {
    try {
      capture(plain.step(), inputs, plain.options(std::move(budget)));
    } catch (const InputError& error) {
      return std::string("InputError: ") + error.what();
    } catch (const BudgetError& error) {
      return std::string("BudgetError: ") + error.what();
    }
    return std::string("nothing");
  };
  const Bits before = bits_of(plain.subject, {});
  const int64_t level = live();
  EXPECT_TRUE(message("60%").starts_with("InputError: a budget of a capture is a number of bytes"));
  EXPECT_TRUE(message(Bytes(live() / 2)).find("exceeded before the step") != std::string::npos);
  const std::string tight = message(plain.share(0.02));
  EXPECT_TRUE(tight.starts_with("BudgetError: the budget of ")) << tight;
  EXPECT_TRUE(tight.find("the last operation that began is aten::") != std::string::npos) << tight;
  EXPECT_EQ(difference(before, bits_of(plain.subject, {})), "");
  EXPECT_EQ(live(), level);
}

class CaptureWithinFaults : public CaptureWithinTest,
                            public ::testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(Each, CaptureWithinFaults,
                         ::testing::Values(Fault::kBudget, Fault::kMachine));

// Requests of the runs that are observed, of re-runs, and of the walk that measures fail in turn.
TEST_P(CaptureWithinFaults, ARequestThatFailsLeavesEverythingAsItWas) {
  Plain plain([] { return resnet(1, 8, 16); });
  const Tensors inputs{at::zeros({1})};
  const Bits before = bits_of(plain.subject, {});
  const int64_t level = live();
  const Budget budget = plain.share(0.9);
  const int64_t failures = fail_each_request(
      GetParam(), 307, [] {}, [&] { capture(plain.step(), inputs, plain.options(budget)); },
      [&] {
        EXPECT_EQ(difference(before, bits_of(plain.subject, {})), "");
        EXPECT_EQ(live(), level);
        EXPECT_EQ(cpu_limit(), std::nullopt);
      });
  EXPECT_GT(failures, 5);
}

// --- A process that has less memory than plain training takes ---

// Returns the bytes that the system counts for this process as its data.
int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmData:") continue;
    int64_t kilobytes = 0;
    status >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

Subject large() { return resnet(3, 64, 32); }

// What a process finds, and whether plain training fits into it, as text.
std::string text_of(const std::vector<Bits>& all) {
  std::string text;
  for (const Bits& bits : all) {
    for (const auto& [name, bytes] : bits) {
      text += fmt::format("{} {:x}\n", name, std::hash<std::string>()(bytes));
    }
  }
  return text;
}

// The test below starts this one in a process of its own, whose heap is fresh.
TEST_F(CaptureWithinTest, DISABLED_InAProcessWithLittleMemory) {
  const int64_t room = std::stoll(std::getenv("REPRISE_TEST_ROOM"));
  Plain plain(&large, /*run=*/false);
  const Tensors inputs{at::zeros({1})};
  const Budget budget = Bytes(live() + room * 3 / 10);
  const auto bytes = static_cast<rlim_t>(data_bytes() + room / 2);
  const rlimit most{bytes, bytes};
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &most), 0);
  EXPECT_THROW(plain.step()({}), std::exception) << "plain training fits";
  plain.start();
  CapturedStep step = capture(plain.step(), inputs, plain.options(budget));
  step.plan({.time_limit = Nanos(1'000'000'000)});
  std::vector<Bits> found;
  for (int n = 0; n < 3; ++n) {
    const at::Tensor loss = step.run(inputs);
    found.push_back(bits_of(plain.subject, loss));
  }
  std::ofstream(std::getenv("REPRISE_TEST_FILE")) << text_of(found);
}

TEST_F(CaptureWithinTest, AStepThatDoesNotFitTheProcessIsCapturedAndTrains) {
  const Plain plain(&large);
  ASSERT_GT(plain.room, int64_t{100} << 20);
  const std::string file = ::testing::TempDir() + fmt::format("capture_within_{}", getpid());
  const std::string command = fmt::format(
      "REPRISE_TEST_ROOM={} REPRISE_TEST_FILE={} GTEST_TOTAL_SHARDS= GTEST_SHARD_INDEX= "
      "/proc/{}/exe --gtest_also_run_disabled_tests --gtest_filter='*InAProcessWithLittleMemory'",
      plain.room, file, getpid());
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream input(file);
  const std::string found((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  EXPECT_EQ(found, text_of(plain.bits));
  std::remove(file.c_str());
}

}  // namespace
}  // namespace reprise::runtime::testing
