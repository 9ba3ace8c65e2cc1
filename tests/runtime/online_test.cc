// Online mode has the bits of plain training, and it never goes above the budget.
#include "reprise/runtime/online.h"

#include <torch/csrc/autograd/custom_function.h>

#include "online_training.h"
#include "reprise/runtime/capture.h"
#include "support/scale.h"

namespace reprise::runtime::testing {
namespace {

struct Trained {
  std::vector<Bits> bits;
  int64_t peak = 0;
};

constexpr int kSteps = 5;

Trained train_plain(const MakeSubject& make) {
  OnlineTraining training(make);
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

struct Row {
  MakeSubject make;
  double smallest_share;  // of plain training's peak
};

class OnlineModels : public OnlineTest, public ::testing::WithParamInterface<int> {
 protected:
  static Row row() {
    static const std::vector<Row> rows = {
        {[] { return resnet(3, 16, 32); }, 0.4},     {[] { return gpt(0, 6, 128, 64); }, 0.4},
        {[] { return gpt(0.3F, 6, 128, 64); }, 0.4}, {[] { return tree_lstm(64, 20); }, 0.4},
        {[] { return cells(32, 48); }, 0.5},         {[] { return experts(1024, 256); }, 0.4},
    };
    return rows[static_cast<size_t>(GetParam())];
  }
};

INSTANTIATE_TEST_SUITE_P(Each, OnlineModels, ::testing::Range(0, 6));

// Trains at a budget. Every step that comes to its end must have the bits of plain training. Returns the
// number of such steps; a step that does not fit ends the training.
int train_online(const MakeSubject& make, const Trained& plain, const OnlineOptions& options,
                 int64_t* evictions) {
  OnlineTraining training(make);
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
    EXPECT_EQ(difference(plain.bits[static_cast<size_t>(step)], bits_of(training.subject, loss)),
              "");
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
  EXPECT_EQ(train_online(row.make, plain, {.budget = bytes(2), .plan_after = 0}, &unused), kSteps);
  EXPECT_EQ(unused, 0);
  // The heuristics below train at 0.8 of it, too.
  for (const double share :
       reprise::testing::full_tests() ? std::vector{0.8, 0.6, 0.5, 0.4} : std::vector{0.5, 0.4}) {
    if (share < row.smallest_share) continue;
    int64_t evictions = 0;
    const OnlineOptions options{.budget = bytes(share), .plan_after = 0};
    EXPECT_EQ(train_online(row.make, plain, options, &evictions), kSteps) << share;
    EXPECT_GT(evictions, 0) << share;
  }
  // The other heuristics need not reach every budget.
  for (const OnlineHeuristic& heuristic : online_heuristics()) {
    int64_t evictions = 0;
    train_online(row.make, plain,
                 {.budget = bytes(0.8), .heuristic = heuristic.name, .plan_after = 0}, &evictions);
    EXPECT_GT(evictions, 0) << heuristic.name;
  }
}

// --- Single promises, on tensors of 256 KiB ---

constexpr int64_t kMany = 1 << 16;  // elements
constexpr int64_t kBytes = 4 * kMany;

// Runs a body with so much more memory than is live.
template <class Body>
OnlineReport with_room(int64_t room, Body&& body) {
  Online online({.budget = Bytes(live() + room)});
  online.run(std::forward<Body>(body));
  EXPECT_LE(online.last_step().measured_peak, online.last_step().budget);
  return online.last_step();
}

// Asks for so much memory that other tensors must go.
void squeeze(int64_t bytes) { at::empty({bytes / 4}); }

bool is_evicted(const at::Tensor& tensor) {
  return !cpu_allocator_owns(
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

TEST_F(OnlineTest, WhatIsEvictedIsMadeAgainBeforeAnOperationReadsIt) {
  const at::Tensor ones = at::ones({kMany});
  const OnlineReport report = with_room(4 * kBytes, [&] {
    const at::Tensor x = ones * 3;
    const at::Tensor half = x.narrow(0, 0, kMany / 2);
    squeeze(4 * kBytes);
    EXPECT_TRUE(is_evicted(x));
    EXPECT_EQ(x.numel(), kMany);
    EXPECT_TRUE(x.is_contiguous() && x.is_alias_of(half) && x.storage().use_count() == 2);
    EXPECT_EQ(half[7].item<float>(), 3);
    EXPECT_FALSE(is_evicted(x));
    squeeze(4 * kBytes);
    EXPECT_TRUE(is_evicted(x));
    EXPECT_TRUE(all_are(x + 1, 4));
  });
  EXPECT_EQ(report.evictions, 2);
  EXPECT_EQ(report.evicted_bytes.count(), 2 * kBytes);
  EXPECT_EQ(report.reruns, 2);
}

TEST_F(OnlineTest, WritesInPlaceAreVersions) {
  const at::Tensor ones = at::ones({kMany});
  with_room(6 * kBytes, [&] {
    const at::Tensor x = ones * 3;
    const at::Tensor y = x * 2;  // of the first version
    const int64_t version = x._version();
    x.add_(1);
    x.view({4, -1}).select(0, 1).fill_(9);
    const at::Tensor out = at::empty({kMany});
    at::mul_out(const_cast<at::Tensor&>(out), x, x);
    squeeze(6 * kBytes);
    EXPECT_TRUE(is_evicted(x) && is_evicted(y) && is_evicted(out));
    EXPECT_TRUE(all_are(y, 6));
    squeeze(6 * kBytes);
    EXPECT_EQ(out[0].item<float>(), 16);
    EXPECT_EQ(out[kMany / 4].item<float>(), 81);
    squeeze(6 * kBytes);
    EXPECT_EQ(x[0].item<float>(), 4);
    EXPECT_EQ(x[kMany / 4].item<float>(), 9);
    EXPECT_EQ(x._version(), version + 2);
  });
}

TEST_F(OnlineTest, TensorsFromOutsideMayBeWrittenAndMayDie) {
  at::Tensor outside = at::ones({kMany});
  with_room(6 * kBytes, [&] {
    const at::Tensor x = outside * 3;
    squeeze(6 * kBytes);
    EXPECT_TRUE(is_evicted(x));
    outside.add_(5);  // what depends on the old bytes is made before
    EXPECT_FALSE(is_evicted(x));
    EXPECT_TRUE(all_are(x, 3));
    at::Tensor y = outside * 2;
    outside = at::Tensor();
    squeeze(5 * kBytes);
    EXPECT_TRUE(is_evicted(y));
    EXPECT_TRUE(all_are(y, 12));
  });
}

TEST_F(OnlineTest, RandomNumbersAreDrawnOnce) {
  const at::Tensor ones = at::ones({kMany});
  at::manual_seed(5);
  const at::Tensor dropped = at::dropout(ones, 0.5, true), behind = at::rand({4});
  at::manual_seed(5);
  with_room(6 * kBytes, [&] {
    const at::Tensor x = at::dropout(ones, 0.5, true);
    squeeze(6 * kBytes);
    EXPECT_TRUE(is_evicted(x));
    EXPECT_TRUE(at::equal(x, dropped));
    EXPECT_TRUE(at::equal(at::rand({4}), behind));
  });
}

TEST_F(OnlineTest, StatisticsOfABatchNormAdvanceOnce) {
  nn::BatchNorm2d norm(16);
  const at::Tensor x = at::randn({4, 16, 32, 32});
  with_room(8 * kBytes, [&] {
    const at::Tensor y = norm(x);
    const at::Tensor mean = norm->running_mean.clone(), copy = y.sum();
    squeeze(7 * kBytes);
    EXPECT_TRUE(is_evicted(y));
    EXPECT_TRUE(at::equal(y.sum(), copy));
    EXPECT_TRUE(at::equal(norm->running_mean, mean));
  });
}

TEST_F(OnlineTest, SizesThatDependOnDataAreThoseOfTheFirstTime) {
  const at::Tensor x = at::randn({kMany});
  const at::Tensor picked = x.masked_select(x > 0), where = at::nonzero(x > 1);
  const auto [sorted, order] = x.sort();
  with_room(12 * kBytes, [&] {
    const at::Tensor a = x.masked_select(x > 0), b = at::nonzero(x > 1);
    const auto [c, d] = x.sort();
    squeeze(12 * kBytes);
    EXPECT_TRUE(is_evicted(a) && is_evicted(b) && is_evicted(c));
    EXPECT_TRUE(at::equal(a, picked));
    EXPECT_TRUE(at::equal(b, where));
    EXPECT_TRUE(at::equal(c, sorted));
    EXPECT_TRUE(at::equal(d, order));
  });
}

TEST_F(OnlineTest, CodeThatTakesPointersIsNotSurprised) {
  const at::Tensor ones = at::ones({kMany});
  with_room(6 * kBytes, [&] {
    const at::Tensor x = ones * 3;
    const at::Tensor y = x * 2;
    auto* const pointer = x.data_ptr<float>();
    squeeze(5 * kBytes);
    EXPECT_FALSE(is_evicted(x));  // somebody has its pointer
    pointer[0] = 8;               // a write that no operation shows
    const at::Tensor z = x + 0;
    EXPECT_TRUE(is_evicted(y));
    EXPECT_TRUE(all_are(y, 6));  // of what x was
    squeeze(2 * kBytes);
    EXPECT_FALSE(is_evicted(z));
    EXPECT_EQ(z[0].item<float>(), 8);
  });
  with_room(6 * kBytes, [&] {  // memory that the host fills
    const at::Tensor x = at::empty({kMany});
    auto* const pointer = x.data_ptr<float>();
    std::fill(pointer, pointer + kMany, 7.0F);
    const at::Tensor y = x + 1;
    squeeze(4 * kBytes);
    EXPECT_FALSE(is_evicted(x));
    EXPECT_TRUE(all_are(x, 7) && all_are(y, 8));
  });
  with_room(6 * kBytes, [&] {  // never a wrong byte, and never a crash
    const at::Tensor x = ones * 3;
    squeeze(6 * kBytes);
    ASSERT_TRUE(is_evicted(x));
    EXPECT_THROW(x.const_data_ptr<float>(), c10::Error);
    EXPECT_THROW(x.data_ptr<float>(), c10::Error);
    EXPECT_EQ(x.detach().data_ptr<float>()[5], 3);
  });
}

TEST_F(OnlineTest, GeneratorsOfTheCallersOwnAreNotReplayed) {
  at::Generator own = at::detail::createCPUGenerator(3);
  const at::Tensor expected = at::randn({kMany}, own);
  own.set_current_seed(3);
  with_room(6 * kBytes, [&] {
    const at::Tensor x = at::randn({kMany}, own);
    squeeze(4 * kBytes);
    EXPECT_FALSE(is_evicted(x));
    EXPECT_TRUE(at::equal(x, expected));
  });
}

TEST_F(OnlineTest, MemoryOfSparseTensorsStays) {
  const at::Tensor dense = at::eye(256);
  with_room(16 * kBytes, [&] {
    const at::Tensor values = at::arange(256).to(at::kFloat) + 1;
    const at::Tensor places = at::arange(256).repeat({2, 1});
    const at::Tensor sparse = at::sparse_coo_tensor(places, values, {256, 256});
    squeeze(10 * kBytes);
    EXPECT_TRUE(at::equal(at::mm(sparse, dense).diagonal(), at::arange(256).to(at::kFloat) + 1));
  });
}

// A Square is a function whose backward reads a saved tensor by operations.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 * context->get_saved_variables()[0]};
  }
};

TEST_F(OnlineTest, SavedTensorsAreEvictedBetweenForwardAndBackward) {
  const at::Tensor w = at::ones({kMany}, at::kFloat).requires_grad_();
  with_room(8 * kBytes, [&] {
    const at::Tensor x = w * 3;
    const at::Tensor y = Square::apply(x);
    squeeze(7 * kBytes);
    EXPECT_TRUE(is_evicted(x));
    y.sum().backward();
  });
  EXPECT_TRUE(all_are(w.grad(), 18));
}

TEST_F(OnlineTest, AllThatIsHeldBehindTheStepIsThere) {
  const at::Tensor ones = at::ones({kMany});
  at::Tensor x;
  with_room(6 * kBytes, [&] {
    x = ones * 3;
    squeeze(6 * kBytes);
    EXPECT_TRUE(is_evicted(x));
  });
  EXPECT_FALSE(is_evicted(x));
  EXPECT_EQ(x.const_data_ptr<float>()[3], 3);
}

// --- Failures ---

TEST_F(OnlineTest, ARequestThatCannotFitSaysWhatIsHeld) {
  const at::Tensor ones = at::ones({kMany});
  const int64_t before = live();
  try {
    with_room(3 * kBytes, [&] { at::cat({ones * 1, ones * 2, ones * 3}); });
    FAIL() << "it fitted";
  } catch (const BudgetError& error) {
    EXPECT_NE(std::string(error.what()).find("read or made by operations"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.budget(), before + 3 * kBytes);
  }
  EXPECT_EQ(live(), before);
  EXPECT_THROW(with_room(-1, [] {}), BudgetError);
}

// Returns the sum of three rows. While it is made, the rows are there, too.
at::Tensor sum_of_rows(const at::Tensor& row) {
  return at::cat({row, row, row}).view({3, kMany}).sum(0);
}

// One operand has to go once more while the other one is made, which needs all of the room.
TEST_F(OnlineTest, OperandsGiveWayToEachOther) {
  const at::Tensor ones = at::ones({kMany});
  at::Tensor sum;
  const OnlineReport report = with_room(4 * kBytes, [&] {
    const at::Tensor a = ones * 3, b = sum_of_rows(ones);
    squeeze(4 * kBytes);
    EXPECT_TRUE(is_evicted(a) && is_evicted(b));
    sum = a + b;
  });
  EXPECT_TRUE(all_are(sum, 6));
  EXPECT_EQ(report.reruns, 4);  // `a` twice, the rows, and their sum
}

// At the end of the step, all that is held has to be there. One held value has to go once more.
TEST_F(OnlineTest, WhatIsHeldGivesWayToEachOther) {
  const at::Tensor ones = at::ones({kMany});
  at::Tensor a, b;
  with_room(4 * kBytes, [&] {
    a = ones * 3;
    b = sum_of_rows(ones);
    squeeze(4 * kBytes);
  });
  EXPECT_TRUE(all_are(a, 3) && all_are(b, 3));
}

TEST_F(OnlineTest, OperandsThatCannotBeThereAtOnceAreABudgetError) {
  const at::Tensor ones = at::ones({kMany}), twos = ones * 2;
  const int64_t level = live();
  EXPECT_THROW(with_room(4 * kBytes,
                         [&] {
                           const at::Tensor a = sum_of_rows(ones), b = sum_of_rows(twos);
                           squeeze(4 * kBytes);
                           return a + b;
                         }),
               BudgetError);
  EXPECT_EQ(live(), level);
}

// The kernel finds its operand missing, and the caller hears why.
TEST_F(OnlineTest, AnOperandThatCannotBeMadeAgainIsABudgetError) {
  const at::Tensor ones = at::ones({kMany});
  at::Tensor left;
  EXPECT_THROW(with_room(2 * kBytes,
                         [&] {
                           left = ones * 3;
                           squeeze(2 * kBytes);
                           const at::Tensor pinned = at::empty({2 * kMany});
                           pinned.data_ptr<float>()[0] = 1;
                           left.add(1);
                         }),
               BudgetError);
  // The operand is gone for good. To read it is an exception, too.
  EXPECT_THROW(left.add(1), c10::Error);
}

TEST_F(OnlineTest, WhatCannotBeOnlineIsRefused) {
  EXPECT_THROW(Online({.budget = "50%"}), InputError);
  EXPECT_THROW(Online({.heuristic = "best"}), InputError);
  EXPECT_THROW(Online({.smallest = Bytes(-1)}), InputError);
  EXPECT_THROW(Online({.plan_after = -1}), InputError);
  EXPECT_THROW(Online({.plans = -1}), InputError);
  EXPECT_THROW(Online({.time_limit = Nanos(-1)}), InputError);
  EXPECT_THROW(Online({.planning_share = -0.5}), InputError);
  Online online, other;
  EXPECT_THROW(online.end(), InputError);
  EXPECT_THROW(online.undo(), InputError);
  EXPECT_THROW(online.run([&] { other.run([] {}); }), InputError);
  EXPECT_THROW(online.run([&] { online.begin(); }), InputError);
  nn::Linear layer(4, 4);
  const at::Tensor x = at::ones({2, 4});
  EXPECT_THROW(online.run([&] {
    capture(
        [&](const Tensors& in) {
          at::Tensor loss = layer(in[0]).sum();
          loss.backward();
          return loss;
        },
        {x});
  }),
               InputError);
  EXPECT_EQ(online.run([] { return 3; }), 3);
}

}  // namespace
}  // namespace reprise::runtime::testing
