// Tests a captured step of a process group, from C++: a group of one rank, whose backend sends
// nothing. The tests of the Python package run two ranks (tests/python/test_data_parallel.py).
#include <torch/torch.h>

#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/saved_state.h"
#include "runtime/distributed/bucket_layout.h"
#include "runtime/distributed/ranks.h"
#include "runtime/distributed/shard_layout.h"

namespace reprise::runtime {
namespace {

using internal::distributed::bucket_layout;
using internal::distributed::BucketPiece;
using internal::distributed::Ranks;
using internal::distributed::shard_layout;

// A Done is work that has ended.
class Done final : public c10d::Work {
 public:
  Done() : future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {
    future_->markCompleted(c10::IValue(std::vector<at::Tensor>()));
  }
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The sum over one rank is what the rank has.
class Alone final : public c10d::Backend {
 public:
  Alone() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "alone"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("alone", std::chrono::milliseconds(5000));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<Done>();
  }
};

// A group of this process alone is in the registry while the scope lives.
class GroupOfOne {
 public:
  explicit GroupOfOne(const std::string& name) : name_(name) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
    group_->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM, c10::make_intrusive<Alone>());
    group_->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
    c10d::register_process_group(name, group_);
  }
  ~GroupOfOne() { c10d::unregister_process_group(name_); }
  GroupOfOne(const GroupOfOne&) = delete;
  GroupOfOne& operator=(const GroupOfOne&) = delete;

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;  // The registry does not hold it.
};

using DataParallelTest = testing::RuntimeTest;

TEST_F(DataParallelTest, AGroupOfOneRankGivesTheGradientsOfThePlainStep) {
  const GroupOfOne group("of one");
  torch::nn::Sequential model(torch::nn::Linear(64, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  const StepFunction step = [model](const Tensors& in) mutable {
    const at::Tensor loss = model->forward(in[0]).square().mean();
    loss.backward();
    return Tensors{loss};
  };
  step({rows_});
  std::vector<at::Tensor> expected;
  for (const at::Tensor& parameter : model->parameters())
    expected.push_back(parameter.grad().clone());
  model->zero_grad();

  CapturedStep captured = capture(
      step, {rows_}, {.modules = {model.ptr()}, .group = "of one", .bucket_cap = Bytes(4096)});
  captured.plan({.budget = "100%"});
  for (int run = 0; run < 3; ++run) {
    model->zero_grad();
    captured.run({rows_});
    for (size_t p = 0; p < expected.size(); ++p) {
      EXPECT_TRUE(at::equal(model->parameters()[p].grad(), expected[p]));
    }
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
  }

  // Runs that do not average add up, and the next one that averages includes them.
  model->zero_grad();
  captured.synchronize(false);
  captured.run({rows_});
  captured.synchronize(true);
  captured.run({rows_});
  EXPECT_TRUE(at::equal(model->parameters()[0].grad(), expected[0] + expected[0]));

  // Its values may move to a disk.
  model->zero_grad();
  captured.plan({.budget = Bytes(8 << 20), .offload = {.to = "disk:/tmp"}});
  captured.run({rows_});
  EXPECT_TRUE(at::equal(model->parameters()[0].grad(), expected[0]));
  EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);

  // A rank that has failed goes on with nothing.
  captured.tell_failure("of its own");
  EXPECT_THROW(captured.run({rows_}), PeerError);
}

TEST_F(DataParallelTest, AShardedOptimizerGivesTheParametersOfThePlainOne) {
  const GroupOfOne group("sharded");
  const auto network = [] {
    torch::manual_seed(5);
    return torch::nn::Sequential(torch::nn::Linear(64, 32), torch::nn::ReLU(),
                                 torch::nn::Linear(32, 1));
  };
  const auto step_of = [](torch::nn::Sequential model) -> StepFunction {
    return [model](const Tensors& in) mutable {
      const at::Tensor loss = model->forward(in[0]).square().mean();
      loss.backward();
      return Tensors{loss};
    };
  };
  torch::nn::Sequential model = network(), twin = network();
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD outside(model->parameters(), options), inside(twin->parameters(), options);
  CapturedStep captured = capture(step_of(twin), {rows_},
                                  {.modules = {twin.ptr()},
                                   .optimizer = per_parameter(inside),
                                   .group = "sharded",
                                   .bucket_cap = Bytes(4096),
                                   .shard_optimizer = true});
  captured.plan({.budget = "100%"});
  for (int run = 0; run < 3; ++run) {
    outside.zero_grad();
    step_of(model)({rows_});
    outside.step();
    captured.run({rows_});
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      EXPECT_TRUE(at::equal(model->parameters()[p], twin->parameters()[p]));
    }
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
  }
}

// A Silent is an optimizer that says nothing of its state.
class Silent final : public ParameterOptimizer {
 public:
  explicit Silent(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}
  std::string name() const override { return "Silent"; }
  std::vector<at::Tensor> parameters() const override { return parameters_; }
  void step(size_t) override {}
  bool has_state(size_t) const override { return false; }
  std::string memory_key(size_t) const override { return ""; }
  std::unique_ptr<ParameterOptimizer> twin(size_t, const at::Tensor& stand_in) const override {
    return std::make_unique<Silent>(std::vector<at::Tensor>{stand_in});
  }

 private:
  std::vector<at::Tensor> parameters_;
};

TEST_F(DataParallelTest, AnOptimizerThatCannotDropStateIsNotSharded) {
  const GroupOfOne group("silent");
  torch::nn::Linear model(64, 8);
  const StepFunction step = [model](const Tensors& in) mutable {
    const at::Tensor loss = model->forward(in[0]).square().mean();
    loss.backward();
    return Tensors{loss};
  };
  const auto refused = [&](const CaptureOptions& options, const std::string& reason) {
    try {
      capture(step, {rows_}, options);
      ADD_FAILURE() << "nothing was refused";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  const auto silent = std::make_shared<Silent>(model->parameters());
  refused({.optimizer = silent, .group = "silent", .shard_optimizer = true},
          "the state of the optimizer Silent cannot be sharded");
  refused({.optimizer = silent, .shard_optimizer = true}, "name the group");
  refused({.group = "silent", .shard_optimizer = true}, "give the optimizer");
}

TEST_F(DataParallelTest, AnAdapterKeepsTheStateOfAShard) {
  torch::nn::Linear model(64, 8);
  torch::optim::Adam adam(model->parameters());
  for (const at::Tensor& parameter : adam.param_groups()[0].params()) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  adam.step();
  {
    const auto adapter = per_parameter(adam);
    EXPECT_TRUE(adapter->keep_state_of({0, 1}));
    EXPECT_FALSE(is_sharded(adam));
    EXPECT_TRUE(adapter->keep_state_of({1}));
    EXPECT_TRUE(is_sharded(adam));
    EXPECT_FALSE(adapter->has_state(0));
    EXPECT_TRUE(adapter->has_state(1));
    // A part of the state is not saved as if it were whole.
    EXPECT_THROW(save_state("sharded.safetensors", {.model = model.ptr(), .optimizer = &adam}),
                 InputError);
    EXPECT_FALSE(std::filesystem::exists("sharded.safetensors"));
  }
  EXPECT_FALSE(is_sharded(adam));
}

TEST(ShardLayout, GivesEachPieceToTheRankThatHasLeast) {
  EXPECT_EQ(shard_layout({}, 2), std::vector<int>());
  EXPECT_EQ(shard_layout({4, 4, 4}, 1), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(shard_layout({1, 8, 3, 4}, 2), (std::vector<int>{1, 0, 1, 1}));
  EXPECT_EQ(shard_layout({5, 5, 5, 5, 5}, 3), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(shard_layout({0, 0}, 2), (std::vector<int>{0, 0}));
}

TEST_F(DataParallelTest, AGroupThatIsNotThereIsRefused) {
  EXPECT_THROW(Ranks("nobody"), InputError);
  const StepFunction step = [](const Tensors& in) { return Tensors{in[0].sum()}; };
  CapturedStep alone = capture(step, {rows_});
  EXPECT_THROW(alone.synchronize(false), InputError);
  const GroupOfOne group("without parameters");
  EXPECT_THROW(capture(step, {rows_}, {.group = "without parameters"}), InputError);
}

TEST(BucketLayout, CompletesABucketAtItsLimitForEachType) {
  using Layout = std::vector<std::vector<size_t>>;
  const auto of = [](int64_t bytes, at::ScalarType dtype = at::kFloat) {
    return BucketPiece{.bytes = bytes, .dtype = dtype};
  };
  EXPECT_EQ(bucket_layout({}, {10}), Layout());
  EXPECT_EQ(bucket_layout({of(4), of(4), of(4)}, {8}), (Layout{{0, 1}, {2}}));
  // The first limit is for one bucket only.
  EXPECT_EQ(bucket_layout({of(4), of(4), of(4), of(4)}, {4, 8}), (Layout{{0}, {1, 2}, {3}}));
  EXPECT_EQ(bucket_layout({of(20), of(4)}, {4, 8}), (Layout{{0}, {1}}));
  // Each type has buckets of its own, and the one that is complete first comes first.
  EXPECT_EQ(bucket_layout({of(4), of(4, at::kDouble), of(8, at::kDouble), of(8)}, {12}),
            (Layout{{1, 2}, {0, 3}}));
}

}  // namespace
}  // namespace reprise::runtime
