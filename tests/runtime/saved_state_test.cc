// Tests saved states: training goes on with the bits of a run that was never interrupted, and a
// state that does not fit changes nothing.
#include "reprise/runtime/saved_state.h"

#include <torch/nn/modules.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "reprise/io/tensors.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/sequential.h"

namespace reprise::runtime {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

// Returns a network with buffers and random numbers.
torch::nn::Sequential network(int64_t width = 12) {
  namespace nn = torch::nn;
  nn::Sequential net;
  for (int64_t block = 0; block < 3; ++block) {
    net->push_back(nn::Linear(block == 0 ? 6 : width, width));
    net->push_back(nn::BatchNorm1d(width));
    net->push_back(nn::ReLU());
    net->push_back(nn::Dropout(0.3));
  }
  net->push_back(nn::Linear(width, 4));
  return net;
}

class SavedStateTest : public testing::RuntimeTest {
 protected:
  void SetUp() override {
    testing::RuntimeTest::SetUp();
    std::string name = (fs::temp_directory_path() / "reprise-state-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "state.safetensors";
  }
  void TearDown() override {
    fs::remove_all(folder_);
    testing::RuntimeTest::TearDown();
  }

  // All bits of a run: parameters, buffers, and the next random number.
  static std::vector<at::Tensor> bits(const torch::nn::Module& module) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : module.parameters()) all.push_back(tensor.detach().clone());
    for (const at::Tensor& tensor : module.buffers()) all.push_back(tensor.clone());
    all.push_back(at::rand({3}));
    return all;
  }
  static void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "tensor " << i;
  }
  // Batch number `n` of the data.
  static std::pair<at::Tensor, at::Tensor> batch(int64_t n) {
    return {at::sin(at::arange(256 * 6) * 0.37 + n).reshape({256, 6}).to(at::kFloat),
            at::arange(n, n + 256).remainder(4)};
  }
  std::string refusal(const StateParts& parts) const {
    try {
      load_state(file_, parts);
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  }

  fs::path folder_, file_;
};

const std::vector<std::pair<const char*, MakeOptimizer>> kOptimizers = {
    {"sgd", [](const auto& p) { return std::make_unique<optim::SGD>(p, 0.05); }},
    {"momentum",
     [](const auto& p) {
       return std::make_unique<optim::SGD>(
           p, optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
     }},
    {"adam",
     [](const auto& p) {
       return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.01).amsgrad(true));
     }},
    {"adamw", [](const auto& p) { return std::make_unique<optim::AdamW>(p); }},
    {"adagrad", [](const auto& p) { return std::make_unique<optim::Adagrad>(p); }},
    {"rmsprop",
     [](const auto& p) {
       return std::make_unique<optim::RMSprop>(
           p, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }},
};

// Six steps in one run have the bits of three steps, a saved state, and three more steps of other
// objects, whose weights and random state were different.
TEST_F(SavedStateTest, TrainingGoesOnWithTheSameBits) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const auto train = [](torch::nn::Sequential& net, optim::Optimizer& optimizer, int64_t from,
                          int64_t to) {
      for (int64_t step = from; step < to; ++step) {
        const auto [x, y] = batch(step);
        optimizer.zero_grad();
        torch::nn::functional::cross_entropy(net->forward(x), y).backward();
        optimizer.step();
      }
    };
    torch::manual_seed(3);
    torch::nn::Sequential whole = network();
    const auto optimizer = make(whole->parameters());
    train(whole, *optimizer, 0, 3);
    const Progress at_three{.step = 3, .position = 48, .plan = "p", .notes = {{"a", "b \"c\""}}};
    save_state(file_, {.model = whole.ptr(), .optimizer = optimizer.get()}, at_three);
    train(whole, *optimizer, 3, 6);
    const auto expected = bits(*whole);
    for (const bool had_state : {false, true}) {
      torch::manual_seed(77);
      torch::nn::Sequential other = network();
      const auto others_optimizer = make(other->parameters());
      if (had_state) train(other, *others_optimizer, 0, 1);
      const StateParts parts{.model = other.ptr(), .optimizer = others_optimizer.get()};
      EXPECT_EQ(load_state(file_, parts), at_three);
      train(other, *others_optimizer, 3, 6);
      expect_same(bits(*other), expected);
    }
    EXPECT_EQ(read_progress(file_), at_three);
  }
}

// The plan of the run that goes on need not be that of the run that was saved.
TEST_F(SavedStateTest, InBothModesAndAtAnyBudget) {
  const auto chain_steps = [](torch::nn::Sequential& net, optim::Optimizer& optimizer,
                              Budget budget, int64_t from, int64_t to) {
    auto planned = remat(net, batch(0).first, {.budget = budget});
    for (int64_t step = from; step < to; ++step) {
      const auto [x, y] = batch(step);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(planned->forward(x), y).backward();
      optimizer.step();
    }
  };
  const auto graph_steps = [](torch::nn::Sequential& net, optim::Optimizer& optimizer,
                              Budget budget, int64_t from, int64_t to) {
    const auto function = [&net](const Tensors& in) {
      at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(in[0]), in[1]);
      loss.backward();
      return loss;
    };
    const auto [first, target] = batch(0);
    CapturedStep step = capture(function, {first, target},
                                {.modules = {net.ptr()}, .optimizer = per_parameter(optimizer)});
    step.plan({.budget = budget, .time_limit = Nanos(200'000'000)});
    for (int64_t number = from; number < to; ++number) {
      const auto [x, y] = batch(number);
      step.run({x, y});
    }
  };
  torch::manual_seed(3);
  torch::nn::Sequential whole = network();
  optim::AdamW optimizer(whole->parameters());
  chain_steps(whole, optimizer, Budget("100%"), 0, 2);
  save_state(file_, {.model = whole.ptr(), .optimizer = &optimizer}, {.step = 2});
  chain_steps(whole, optimizer, Budget("100%"), 2, 5);
  const auto expected = bits(*whole);
  for (const bool graph : {false, true}) {
    SCOPED_TRACE(graph ? "graph" : "chain");
    torch::manual_seed(77);
    torch::nn::Sequential other = network();
    optim::AdamW others_optimizer(other->parameters());
    load_state(file_, {.model = other.ptr(), .optimizer = &others_optimizer});
    if (graph) {
      others_optimizer.zero_grad();
      graph_steps(other, others_optimizer, Budget("90%"), 2, 5);
    } else {
      chain_steps(other, others_optimizer, Budget("90%"), 2, 5);
    }
    expect_same(bits(*other), expected);
  }
}

TEST_F(SavedStateTest, AnotherModelIsRefusedAndStaysAsItIs) {
  torch::nn::Sequential net = network();
  save_state(file_, {.model = net.ptr()});
  torch::nn::Sequential wide = network(13);
  wide->push_back(torch::nn::Linear(4, 4));
  const auto before = wide->parameters()[0].detach().clone();
  const std::string text = refusal({.model = wide.ptr()});
  EXPECT_NE(text.find("another model"), std::string::npos) << text;
  EXPECT_NE(text.find("not in the file: 13.weight, 13.bias"), std::string::npos) << text;
  EXPECT_NE(text.find("0.weight has shape [13, 6] and type F32, and [12, 6] and F32 in the file"),
            std::string::npos)
      << text;
  EXPECT_TRUE(wide->parameters()[0].equal(before));
  torch::nn::Sequential shorter(torch::nn::Linear(6, 12));
  EXPECT_NE(refusal({.model = shorter.ptr()}).find("only in the file: "), std::string::npos);
  torch::nn::Sequential doubles = network();
  doubles->to(at::kDouble);
  EXPECT_NE(refusal({.model = doubles.ptr()}).find("type F64"), std::string::npos);
}

TEST_F(SavedStateTest, AnotherOptimizerIsRefusedAndNothingIsLoaded) {
  torch::nn::Sequential net = network(), other = network();
  optim::AdamW adamw(net->parameters());
  save_state(file_, {.model = net.ptr(), .optimizer = &adamw});
  const auto before = other->parameters()[0].detach().clone();
  optim::SGD sgd(other->parameters(), 0.1);
  EXPECT_NE(refusal({.model = other.ptr(), .optimizer = &sgd})
                .find("the optimizer AdamW, and the program has SGD"),
            std::string::npos);
  const std::vector<at::Tensor> all = other->parameters();
  optim::AdamW fewer(std::vector<at::Tensor>(all.begin() + 1, all.end()));
  EXPECT_NE(refusal({.model = other.ptr(), .optimizer = &fewer}).find("group 0"),
            std::string::npos);
  optim::AdamW two(std::vector<optim::OptimizerParamGroup>{
      optim::OptimizerParamGroup({all[0]}),
      optim::OptimizerParamGroup(std::vector<at::Tensor>(all.begin() + 1, all.end()))});
  EXPECT_NE(refusal({.model = other.ptr(), .optimizer = &two}).find("1 groups"), std::string::npos);
  EXPECT_TRUE(other->parameters()[0].equal(before));
  save_state(file_, {.model = net.ptr()});
  optim::AdamW right(other->parameters());
  EXPECT_NE(refusal({.model = other.ptr(), .optimizer = &right}).find("no optimizer"),
            std::string::npos);
  optim::LBFGS lbfgs(net->parameters());
  EXPECT_THROW(save_state(file_, {.model = net.ptr(), .optimizer = &lbfgs}), InputError);
}

TEST_F(SavedStateTest, DamagedFilesAndOtherVersionsAreRefused) {
  torch::nn::Sequential net = network();
  const StateParts parts{.model = net.ptr()};
  save_state(file_, parts);
  const auto size = static_cast<int64_t>(fs::file_size(file_));
  const auto before = net->parameters()[0].detach().clone();
  for (const int64_t at : {size - 1, size / 2, size / 3, int64_t{20}}) {
    save_state(file_, parts);
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char was = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(was ^ 4));
    file.close();
    EXPECT_NE(refusal(parts), "") << "byte " << at;
  }
  fs::resize_file(file_, static_cast<uintmax_t>(size / 2));
  EXPECT_NE(refusal(parts), "");
  write_tensors(file_, {{"format", "reprise.state"}, {"version", "2"}, {"writer", "reprise 9"}},
                {});
  const std::string text = refusal(parts);
  EXPECT_NE(text.find("version \"2\""), std::string::npos) << text;
  EXPECT_NE(text.find("reprise 9"), std::string::npos) << text;
  write_tensors(file_, {}, {});
  EXPECT_NE(refusal(parts).find("is no saved state"), std::string::npos);
  fs::remove(file_);
  EXPECT_NE(refusal(parts).find("cannot read"), std::string::npos);
  EXPECT_TRUE(net->parameters()[0].equal(before));
}

TEST_F(SavedStateTest, TensorsOfAllTypesAndStrides) {
  StateParts parts;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    parts.tensors.emplace_back(c10::toString(type), (at::rand({3, 5}) * 50).to(type));
  }
  parts.tensors.emplace_back("transposed", at::rand({4, 6}).t());
  parts.tensors.emplace_back("strided", at::rand({4, 6}).slice(1, 0, 6, 2));
  parts.tensors.emplace_back("empty", at::empty({0, 3}));
  parts.tensors.emplace_back("scalar", at::rand({}));
  save_state(file_, parts);
  StateParts zeros;
  for (const auto& [name, tensor] : parts.tensors) {
    zeros.tensors.emplace_back(name, at::zeros_like(tensor));
  }
  load_state(file_, zeros);
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    EXPECT_TRUE(zeros.tensors[i].second.equal(parts.tensors[i].second)) << parts.tensors[i].first;
  }
  EXPECT_THROW(save_state(file_, {.tensors = {{"c", at::zeros({2}, at::kComplexDouble)}}}),
               InputError);
  EXPECT_THROW(save_state(file_, {.tensors = {{"s", at::eye(2).to_sparse()}}}), InputError);
  EXPECT_THROW(save_state(file_, {}, {.step = -1}), InputError);
}

}  // namespace
}  // namespace reprise::runtime
