// A capture with a budget stays inside it from its first byte, where plain training would not.
#include <optional>

#include "online_training.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::testing {
namespace {

class CaptureWithinTest : public RuntimeTest {};

// Returns the graph with no times and nothing that depends on what else is live.
Graph without_times(Graph graph) {
  graph.fixed = Bytes(0);
  for (Op& op : graph.ops) {
    for (Variant& variant : op.variants) variant.time = Nanos(0);
  }
  return graph;
}

// A Plain is a step of a subject, whose data stay the same, and what plain training does.
struct Plain {
  explicit Plain(const MakeSubject& make)
      : before(live()), subject((at::manual_seed(1), make())) {
    subject.prepare(0);
    step()({});  // makes what is made once
    start();
    const int64_t level = live();
    reset_peak(c10::kCPU);
    for (int n = 0; n < 3; ++n) {
      const at::Tensor loss = step()({})[0];
      bits.push_back(bits_of(subject, loss));
    }
    room = peak() - level;
    most = peak() - before;
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
      if (item.value().is_floating_point())
        item.value().fill_(0.5);
      else
        item.value().zero_();
    }
  }
  CaptureOptions options(Budget budget = {}) const {
    return {.modules = {subject.module}, .budget = std::move(budget), .measure = quick()};
  }
  Budget share(double part) const {
    return Bytes(live() + static_cast<int64_t>(part * static_cast<double>(room)));
  }

  // Plain training's peak is so many times this budget.
  Budget part(int64_t times) const { return Bytes(before + most / times); }

  const int64_t before;  // live bytes that are not of this training
  Subject subject;
  std::vector<Bits> bits;
  int64_t room = 0;  // bytes that plain training takes beside what is there before
  int64_t most = 0;  // bytes that plain training takes in all
};

// A ResNet whose tensors all have one size, so that no operation needs much more than another one.
Subject narrow_resnet(int64_t blocks, int64_t batch, int64_t side) {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)));
  for (int64_t i = 0; i < blocks; ++i) net->push_back(Residual(16, 16, 1));
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(16, 10));
  auto d = std::make_shared<Data>();
  return {"narrow resnet", net.ptr(),
          [=](int) {
            d->x = at::randn({batch, 3, side, side});
            d->y = at::randint(10, {batch});
          },
          [=]() mutable { return loss_of(net->forward(d->x), d->y); }};
}

struct Row {
  MakeSubject make;
  int64_t times;   // Plain training's peak is so many times the budget.
  int64_t search;  // seconds for a plan
};

class CaptureWithinModels : public CaptureWithinTest, public ::testing::WithParamInterface<int> {
 protected:
  static Row row() {
    static const std::vector<Row> rows = {
        {[] { return resnet(8, 16, 32); }, 4, 2},
        {[] { return narrow_resnet(24, 8, 32); }, 10, 8},
        {[] { return gpt(0, 12, 32, 128); }, 4, 2},
        {[] { return gpt(0, 12, 32, 128); }, 10, 2},
    };
    return rows[static_cast<size_t>(GetParam())];
  }
};

INSTANTIATE_TEST_SUITE_P(Each, CaptureWithinModels, ::testing::Range(0, 4));

// The allocator refuses whatever would exceed the budget during the whole capture.
TEST_P(CaptureWithinModels, AreCapturedAndTrainedInAPartOfPlainTrainingsMemory) {
  Plain plain(row().make);
  const Tensors inputs{at::zeros({1})};
  const Graph expected = without_times(capture(plain.step(), inputs, plain.options()).graph());
  plain.start();
  const Bits before = bits_of(plain.subject, {});
  const Budget budget = plain.part(row().times);
  std::optional<CapturedStep> step;
  {
    const MemoryLimitGuard limit(budget.resolve(Bytes(0)).count());
    reset_peak(c10::kCPU);
    step.emplace(capture(plain.step(), inputs, plain.options(budget)));
    EXPECT_LE(peak(), budget.resolve(Bytes(0)).count());
  }
  EXPECT_EQ(difference(before, bits_of(plain.subject, {})), "");
  EXPECT_TRUE(without_times(step->graph()) == expected);
  EXPECT_GT(baseline(step->graph()).peak, budget.resolve(Bytes(0)));
  for (const Op& op : step->graph().ops) {
    EXPECT_GT(op.variants[0].time.count(), 0) << op.id;
  }
  // The budget of the capture is that of the plan.
  step->plan({.time_limit = Nanos(row().search * 1'000'000'000)});
  for (size_t n = 0; n < plain.bits.size(); ++n) {
    const at::Tensor loss = step->run(inputs);
    EXPECT_EQ(difference(plain.bits[n], bits_of(plain.subject, loss)), "") << n;
    EXPECT_EQ(step->last_step().measured_peak, step->last_step().predicted_peak);
    EXPECT_LE(step->last_step().measured_peak, budget.resolve(Bytes(0)));
  }
}

// No stand-in has the number that the step goes on with, so online mode computes it.
TEST_F(CaptureWithinTest, StepsThatDependOnComputedNumbersAreCapturedInOnlineMode) {
  for (const bool by_pointer : {false, true}) {
    const auto is_large = [=](const at::Tensor& loss) {
      return by_pointer ? *loss.const_data_ptr<float>() > 0 : loss.gt(0).item<bool>();
    };
    Plain plain([] { return resnet(3, 16, 32); });
    const StepFunction step = [&](const Tensors&) {
      at::Tensor loss = plain.subject.forward();
      loss = loss * (is_large(loss) ? 3 : 5);
      loss.backward();
      return Tensors{loss.detach()};
    };
    const at::Tensor expected = step({})[0];
    const Bits bits = bits_of(plain.subject, expected);
    plain.start();
    const Budget budget = plain.share(0.4);
    const Tensors inputs{at::zeros({1})};
    reset_peak(c10::kCPU);
    CaptureOptions options = plain.options(budget);
    if (by_pointer) options.lockstep = Lockstep::kNever;  // It refuses what it cannot see again.
    CapturedStep captured = capture(step, inputs, std::move(options));
    EXPECT_LE(peak(), budget.resolve(Bytes(0)).count());
    captured.plan({.time_limit = Nanos(2'000'000'000)});
    plain.start();
    const at::Tensor found = captured.run(inputs);
    EXPECT_EQ(difference(bits, bits_of(plain.subject, found)), "");
    EXPECT_LE(captured.last_step().measured_peak, budget.resolve(Bytes(0)));
  }
}

TEST_F(CaptureWithinTest, OutcomesAndOtherShapesAreCapturedWithinTheBudget) {
  nn::Linear layer(256, 256);
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
    return Tensors{at::randn({rows, 256}), at::full({1}, sign)};
  };
  // Eight activations of 256 rows are 2 MiB, beside three times 256 KiB for the layer.
  const Bytes budget(live() + (int64_t{9} << 18));
  CapturedStep captured = capture(step, inputs(256, -1),
                                  {.modules = {layer.ptr()},
                                   .on_miss = OnMiss::kRecapture,
                                   .budget = budget,
                                   .measure = quick()});
  captured.plan({.time_limit = Nanos(300'000'000)});
  for (const auto& [rows, sign] :
       std::vector<std::pair<int64_t, float>>{{256, -1}, {256, 1}, {192, 1}, {256, 1}}) {
    const Tensors now = inputs(rows, sign);
    layer->zero_grad();
    const at::Tensor expected = step(now)[0];
    const at::Tensor gradient = layer->weight.grad().clone();
    layer->zero_grad();
    at::Tensor found;
    {
      const MemoryLimitGuard limit(budget.count() + (int64_t{2} << 20));
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

}  // namespace
}  // namespace reprise::runtime::testing
