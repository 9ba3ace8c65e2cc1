// Online mode: the bits of plain training, never above the budget, and undone when it fails.
#include <torch/csrc/autograd/custom_function.h>

#include "faulty_allocator.h"
#include "fixture.h"
#include "online_models.h"
#include "reprise/runtime/online.h"

namespace reprise::runtime::testing {
namespace {

int64_t peak() { return memory_count(c10::kCPU).peak; }

// All that a step may change, as bytes in host memory.
Bits bits_of(const Subject& subject, const at::Tensor& loss) {
  Bits bits;
  put_bits(bits, "loss", loss);
  for (const auto& item : subject.module->named_parameters()) {
    put_bits(bits, item.key(), item.value());
    put_bits(bits, item.key() + ".grad", item.value().grad());
  }
  for (const auto& item : subject.module->named_buffers()) put_bits(bits, item.key(), item.value());
  put_bits(bits, "random state", at::detail::getDefaultCPUGenerator().get_state());
  return bits;
}

using MakeSubject = std::function<Subject()>;

// Trains for some steps with momentum, from the same start each time.
struct Training {
  explicit Training(const MakeSubject& make)
      : subject((at::manual_seed(1), make())),
        optimizer(subject.module->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {}

  at::Tensor body() {
    optimizer.zero_grad();
    at::Tensor loss = subject.forward();
    loss.backward();
    optimizer.step();
    return loss.detach();
  }
  void prepare(int step) {
    at::manual_seed(static_cast<uint64_t>(100 + step));
    subject.prepare(step);
  }

  Subject subject;
  torch::optim::SGD optimizer;
};

struct Trained {
  std::vector<Bits> bits;
  int64_t peak = 0;
};

constexpr int kSteps = 3;

Trained train_plain(const MakeSubject& make) {
  Training training(make);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    training.prepare(step);
    reset_peak(c10::kCPU);
    const at::Tensor loss = training.body();
    trained.peak = std::max(trained.peak, peak());
    trained.bits.push_back(bits_of(training.subject, loss));
  }
  return trained;
}

class OnlineTest : public RuntimeTest {};

struct Row {
  MakeSubject make;
  double smallest_share;  // of plain training's peak
};

class OnlineModels : public OnlineTest, public ::testing::WithParamInterface<int> {
 protected:
  static Row row() {
    static const std::vector<Row> rows = {
        {[] { return resnet(2, 8, 16); }, 0.4},      {[] { return gpt(0, 4, 64, 32); }, 0.4},
        {[] { return gpt(0.3F, 6, 64, 32); }, 0.4},  {[] { return tree_lstm(32, 14); }, 0.4},
        {[] { return cells(16, 24); }, 0.5},         {[] { return experts(256, 128); }, 0.5},
    };
    return rows[static_cast<size_t>(GetParam())];
  }
};

INSTANTIATE_TEST_SUITE_P(Each, OnlineModels, ::testing::Range(0, 6));

// Trains at a budget. Every step that comes to its end must have the bits of plain training. Returns the
// number of such steps; a step that does not fit ends the training.
int train_online(const MakeSubject& make, const Trained& plain, const OnlineOptions& options,
                 int64_t* evictions) {
  Training training(make);
  SCOPED_TRACE(fmt::format("{} with {} bytes and {}", training.subject.name,
                           options.budget.resolve(Bytes(0)).count(), options.heuristic));
  Online online(options);
  for (int step = 0; step < kSteps; ++step) {
    training.prepare(step);
    at::Tensor loss;
    try {
      loss = online.run([&] { return training.body(); });
    } catch (const BudgetError&) {
      return step;
    }
    const OnlineReport report = online.last_step();
    EXPECT_LE(report.measured_peak, report.budget);
    EXPECT_EQ(report.measured_peak.count(), peak());
    EXPECT_GT(report.calls, 0);
    EXPECT_EQ(report.steps, step + 1);
    *evictions += report.evictions;
    EXPECT_EQ(difference(plain.bits[static_cast<size_t>(step)], bits_of(training.subject, loss)), "");
  }
  return kSteps;
}

TEST_P(OnlineModels, BitsOfPlainTrainingAndNeverAboveTheBudget) {
  const Row row = this->row();
  const Trained plain = train_plain(row.make);
  const auto bytes = [&](double share) {
    return Bytes(static_cast<int64_t>(share * static_cast<double>(plain.peak)));
  };
  int64_t unused = 0;
  EXPECT_EQ(train_online(row.make, plain, {.budget = bytes(2)}, &unused), kSteps);
  EXPECT_EQ(unused, 0);
  for (const double share : {0.8, 0.6, 0.5, 0.4}) {
    if (share < row.smallest_share) continue;
    int64_t evictions = 0;
    EXPECT_EQ(train_online(row.make, plain, {.budget = bytes(share)}, &evictions), kSteps) << share;
    EXPECT_GT(evictions, 0) << share;
  }
  // The other heuristics need not reach every budget.
  for (const OnlineHeuristic& heuristic : online_heuristics()) {
    int64_t evictions = 0;
    train_online(row.make, plain, {.budget = bytes(0.8), .heuristic = heuristic.name}, &evictions);
    train_online(row.make, plain, {.budget = bytes(0.6), .heuristic = heuristic.name}, &evictions);
    EXPECT_GT(evictions, 0) << heuristic.name;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
