// A step of online mode that fails leaves everything as it was, and many steps leave nothing behind.
#include "faulty_allocator.h"
#include "online_training.h"
#include "reprise/runtime/online.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::testing {
namespace {

TEST_F(OnlineTest, AStepThatFailsIsUndone) {
  OnlineTraining training([] { return resnet(1, 2, 8); });
  training.prepare(0);
  training.body();  // gradients, momenta and statistics exist
  training.optimizer.zero_grad(false);
  training.subject.forward().backward();
  const Bits before = bits_of(training.subject, {});
  const int64_t level = live();
  struct Boom {};
  Online online({.budget = Bytes(live() + (int64_t{1} << 30))});
  const auto fail_behind = [&](int part) {
    EXPECT_THROW(online.run([&] {
      const at::Tensor loss = training.subject.forward();
      if (part == 0) throw Boom();
      loss.backward();
      if (part == 1) throw Boom();
      training.optimizer.step();
      at::rand({3});
      training.optimizer.zero_grad();
      throw Boom();
    }),
                 Boom);
    EXPECT_EQ(difference(before, bits_of(training.subject, {})), "") << part;
    EXPECT_EQ(live(), level);
  };
  for (const int part : {0, 1, 2}) fail_behind(part);
  EXPECT_EQ(online.last_step().steps, 0);
}

TEST_F(OnlineTest, AStepThatIsForgottenIsUndone) {
  const at::Tensor x = at::zeros({1000});
  {
    Online online({.budget = Bytes(live() + (int64_t{1} << 20))});
    online.begin();
    x.add_(1);
  }
  EXPECT_TRUE(all_are(x, 0));
}

class OnlineFaults : public OnlineTest, public ::testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(Each, OnlineFaults, ::testing::Values(Fault::kBudget, Fault::kMachine));

// Every request of a step that evicts fails in turn, those of re-runs included.
TEST_P(OnlineFaults, EachRequestOfAStepMayFail) {
  const std::vector<MakeSubject> makers = {[] { return resnet(1, 2, 8); },
                                           [] { return gpt(0, 1, 32, 8); },
                                           [] { return tree_lstm(32, 6); }};
  for (const MakeSubject& make : makers) {
    OnlineTraining training(make);
    SCOPED_TRACE(training.subject.name);
    const auto restart = [&] {
      training.subject.module->zero_grad();
      at::manual_seed(9);
    };
    const auto step = [&] {
      at::Tensor loss = training.subject.forward();
      loss.backward();
      return loss.detach();
    };
    training.prepare(0);
    restart();
    const int64_t level = live();
    reset_peak(c10::kCPU);
    step();
    const int64_t room = (peak() - level) * 85 / 100;
    restart();
    const Bits start = bits_of(training.subject, {});
    Bits expected;
    {
      const at::Tensor loss = step();
      expected = bits_of(training.subject, loss);
    }
    // The statistics of batch norms have advanced.
    const auto put_back = [&] {
      for (const auto& item : training.subject.module->named_buffers()) {
        std::memcpy(item.value().mutable_data_ptr(), start.at(item.key()).data(),
                    start.at(item.key()).size());
      }
      restart();
    };
    FaultyAllocator allocator;
    int64_t failures = 0, came_through = 0;
    for (int64_t k = 1;; ++k) {
      SCOPED_TRACE(fmt::format("request {}", k));
      put_back();
      ASSERT_EQ(difference(start, bits_of(training.subject, {})), "");
      std::string thrown;
      allocator.arm(k, GetParam());
      {
        Online online({.budget = Bytes(level + room)});
        at::Tensor loss;
        try {
          loss = online.run(step);
        } catch (const BudgetError&) {
          thrown = "BudgetError";
        } catch (const std::bad_alloc&) {
          thrown = "bad_alloc";
        } catch (const std::exception& error) {
          thrown = error.what();
        }
        allocator.disarm();
        if (thrown.empty()) {
          // An operator that consists of others may find the operand that was missing.
          EXPECT_EQ(difference(expected, bits_of(training.subject, loss)), "");
        }
        if (!allocator.failed()) {
          EXPECT_EQ(thrown, "");
          EXPECT_GT(online.last_step().evictions, 0);
          break;
        }
      }
      ++failures;
      came_through += thrown.empty();
      if (thrown.empty()) continue;
      EXPECT_EQ(thrown, GetParam() == Fault::kBudget ? "BudgetError" : "bad_alloc");
      EXPECT_EQ(difference(start, bits_of(training.subject, {})), "");
      EXPECT_EQ(live(), level);
      EXPECT_EQ(memory_limit(), std::nullopt);
    }
    EXPECT_GT(failures, 50);
    EXPECT_LT(came_through, failures / 10);
    put_back();
  }
}

TEST_F(OnlineTest, AThousandStepsOfChangingShapesLeaveNothingBehind) {
  Subject subject = tree_lstm(64, 3);
  at::manual_seed(1);
  const auto zero = [&] { subject.module->zero_grad(); };
  int64_t level = 0, evictions = 0;
  int64_t most = 0;
  for (int step = 0; step < 20; ++step) {
    subject.prepare(step);
    zero();
    reset_peak(c10::kCPU);
    subject.forward().backward();
    most = std::max(most, peak());
  }
  zero();
  Online online({.budget = Bytes(live() + (most - live()) * 7 / 10),
                 .time_limit = Nanos(10'000'000),
                 .planning_share = 1});
  for (int step = 0; step < 1000; ++step) {
    subject.prepare(step);
    zero();
    online.run([&] { subject.forward().backward(); });
    evictions += online.last_step().evictions;
    zero();
    const auto& tree = dynamic_cast<const TreeLstm&>(*subject.module);
    const int64_t now = live() - internal::device::counted_bytes(4 * tree.leaves.numel());
    if (step == 0) level = now;
    ASSERT_EQ(now, level) << "step " << step;
  }
  EXPECT_GT(evictions, 0);
}

}  // namespace
}  // namespace reprise::runtime::testing
