// Threads that call one step or one planned model take turns, and every call is right.
#include <atomic>
#include <thread>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/remat.h"
#include "reprise/runtime/train_step.h"
#include "support/scale.h"

namespace reprise::runtime::testing {
namespace {

constexpr int kThreads = 8;
int calls() { return reprise::testing::full_tests() ? 2'000 : 100; }

// All numbers are whole and small, so sums of gradients are exact in any order.
at::Tensor input_of(int thread) { return at::full({2, 4}, static_cast<double>(thread % 3)); }

class ThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    layers_ = {nn::Linear(nn::LinearOptions(4, 4).bias(false)),
               nn::Linear(nn::LinearOptions(4, 4).bias(false))};
    const at::NoGradGuard no_grad;
    for (nn::Linear& layer : layers_) {
      layer->weight.copy_(at::randint(-1, 2, {4, 4}).to(at::kFloat));
    }
  }

  Tensors step(const Tensors& in) {
    const at::Tensor loss = layers_[1](layers_[0](in[0])).sum();
    loss.backward();
    return {loss.detach()};
  }

  // Calls `run` from all threads at once. Compares its losses with the plain step's, and the
  // gradients with the sum of all.
  void expect_right(const std::function<at::Tensor(const Tensors&)>& run) {
    std::vector<at::Tensor> losses;
    std::vector<at::Tensor> sums(layers_.size());
    for (int t = 0; t < kThreads; ++t) {
      drop();
      losses.push_back(step({input_of(t)})[0]);
      for (size_t k = 0; k < layers_.size(); ++k) {
        const at::Tensor gradient = layers_[k]->weight.grad() * calls();
        sums[k] = sums[k].defined() ? sums[k] + gradient : gradient;
      }
    }
    drop();
    std::vector<std::string> wrong(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int n = 0; n < calls(); ++n) {
            if (!at::equal(run({input_of(t)}), losses[static_cast<size_t>(t)])) {
              wrong[static_cast<size_t>(t)] = "another loss";
            }
          }
        } catch (const std::exception& error) {
          wrong[static_cast<size_t>(t)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : wrong) EXPECT_EQ(text, "");
    for (size_t k = 0; k < layers_.size(); ++k) {
      ASSERT_TRUE(layers_[k]->weight.grad().defined());
      EXPECT_TRUE(at::equal(layers_[k]->weight.grad(), sums[k])) << k;
    }
  }

  void drop() {
    for (nn::Linear& layer : layers_) layer->weight.mutable_grad() = at::Tensor();
  }

  StepFunction function() {
    return [this](const Tensors& in) { return step(in); };
  }

  std::vector<nn::Linear> layers_;
};

TEST_F(ThreadsTest, OfACapturedStepTakeTurns) {
  CapturedStep captured(function(), {input_of(0)}, {.measure = quick()});
  captured.plan();
  expect_right([&](const Tensors& in) {
    const at::Tensor loss = captured.run(in);
    EXPECT_GT(captured.last_step().steps, 0);
    return loss;
  });
}

TEST_F(ThreadsTest, OfAPlannedModelTakeTurns) {
  std::vector<Stage> stages;
  for (size_t k = 0; k < layers_.size(); ++k) {
    nn::Linear layer = layers_[k];
    stages.push_back({std::to_string(k), layer.ptr(), [layer](const Tensors& in) mutable {
                        return Tensors{layer(in[0])};
                      }});
  }
  const std::shared_ptr<Remat> model = remat(stages, {input_of(0)}, {.measure = quick()});
  expect_right([&](const Tensors& in) {
    const at::Tensor loss = model->forward(in[0]).sum();
    loss.backward();
    return loss.detach();
  });
}

TEST_F(ThreadsTest, OfATrainStepTakeTurns) {
  TrainStep train(function(), {input_of(0)}, {.capture = {.measure = quick()}, .plan = {}});
  expect_right([&](const Tensors& in) { return train.run(in); });
}

// Another thread's plain training does not count in the sizes that a capture measures.
TEST_F(ThreadsTest, OfPlainTrainingDoNotCountInACapture) {
  const auto sizes = [&] {
    drop();
    const CapturedStep captured(function(), {input_of(1)}, {.measure = quick()});
    std::vector<int64_t> all;
    for (const Value& value : captured.graph().values) all.push_back(value.bytes.count());
    for (const Op& op : captured.graph().ops) {
      all.push_back(op.variants[0].workspace.count());
    }
    return all;
  };
  const std::vector<int64_t> expected = sizes();
  std::atomic<bool> over = false;
  nn::Linear layer(64, 64);  // It draws random numbers here, and not beside a capture.
  const at::Tensor x = at::ones({32, 64});
  std::thread other([&] {
    while (!over) layer(x).sum().backward();
  });
  for (int n = 0; n < 5; ++n) EXPECT_EQ(sizes(), expected);
  over = true;
  other.join();
}

}  // namespace
}  // namespace reprise::runtime::testing
