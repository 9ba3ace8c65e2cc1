// CaptureOptions::cache keeps measured costs. Whatever is in the folder, a step is captured right, and
// costs are taken only for the step and the circumstances that they were measured for.
#include <torch/optim/adam.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "reprise/io/json.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/miss.h"

namespace reprise::runtime::testing {
namespace {

namespace fs = std::filesystem;

class CaptureCache : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    folder_ = fs::path(::testing::TempDir()) /
              fmt::format("reprise_cache_{}_{}", ::getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    RuntimeTest::TearDown();
  }

  at::Tensor step(const Tensors& in) {
    ++calls_;
    at::Tensor loss = layer_->forward(in[0]).relu().square().mean();
    if (odd_calls_ > 0 && calls_ % odd_calls_ == 0) loss = loss * 2;
    loss.backward();
    return loss;
  }

  CapturedStep captured(CaptureOptions options = {}) {
    heard_.clear();
    options.modules = {layer_.ptr()};
    if (options.cache.empty()) options.cache = folder_.string();
    options.measure.min_repeats = 2;
    options.measure.min_time = Nanos(0);
    options.measure.observer = [this](const Progress& progress) {
      heard_.push_back(progress.message);
    };
    return capture([this](const Tensors& in) { return step(in); }, inputs_, options);
  }

  bool measured() const {
    return std::any_of(heard_.begin(), heard_.end(),
                       [](const std::string& what) { return what == "in order"; });
  }

  void expect_plain_bits(CapturedStep& captured) {
    layer_->zero_grad();
    const at::Tensor plain = step(inputs_), gradient = layer_->weight.grad().clone();
    layer_->zero_grad();
    EXPECT_TRUE(plain.equal(captured.run(inputs_)));
    EXPECT_TRUE(gradient.equal(layer_->weight.grad()));
    layer_->zero_grad();
  }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path());
    return all;
  }

  // Captures, and expects that the costs were measured with a warning that has this text.
  void expect_warning(const std::string& text) {
    CapturedStep step = captured();
    const CacheUse use = step.cache_use();
    EXPECT_FALSE(use.found);
    EXPECT_TRUE(measured());
    EXPECT_NE(use.warning.find(text), std::string::npos) << use.warning;
    EXPECT_EQ(use.warning.find('\n'), std::string::npos);
    EXPECT_EQ(std::count(heard_.begin(), heard_.end(), use.warning), 1);
    expect_plain_bits(step);
  }

  fs::path folder_;
  nn::Linear layer_{64, 64};
  Tensors inputs_{at::randn({256, 64})};
  int calls_ = 0;
  int odd_calls_ = 0;  // every call of this number does something else; 0 for none
  std::vector<std::string> heard_;
};

TEST_F(CaptureCache, TheSecondCaptureFindsWhatTheFirstOneMeasured) {
  CapturedStep first = captured();
  EXPECT_EQ(first.cache_use(), CacheUse());
  EXPECT_TRUE(measured());
  ASSERT_EQ(entries().size(), 1U);  // No temporary file is left.
  calls_ = 0;
  CapturedStep second = captured();
  EXPECT_EQ(second.cache_use(), (CacheUse{.found = true}));
  EXPECT_FALSE(measured());
  EXPECT_EQ(calls_, 2);  // Lockstep compares the next two calls.
  Graph before = first.graph(), now = second.graph();
  before.fixed = now.fixed = Bytes(0);
  EXPECT_EQ(before, now);
  EXPECT_EQ(first.profile().spread, second.profile().spread);
  expect_plain_bits(second);
}

TEST_F(CaptureCache, TheFunctionRunsLessOftenOnlyWhereLockstepComparesIt) {
  calls_ = 0;
  captured();
  EXPECT_EQ(calls_, CaptureOptions().runs);
  calls_ = 0;
  EXPECT_TRUE(captured({.runs = 5}).cache_use().found);
  EXPECT_EQ(calls_, 2);
  calls_ = 0;
  EXPECT_TRUE(captured({.lockstep = Lockstep::kNever}).cache_use().found);
  EXPECT_EQ(calls_, CaptureOptions().runs);
}

TEST_F(CaptureCache, AChangeAtEveryThirdCallIsFoundBeforeAnythingIsWrong) {
  captured();
  calls_ = 0, odd_calls_ = 3;
  CapturedStep found = captured();
  ASSERT_TRUE(found.cache_use().found);
  found.plan();
  layer_->zero_grad();
  EXPECT_THROW(found.run(inputs_), StepMiss);
  EXPECT_FALSE(layer_->weight.grad().defined());
  // Without lockstep and without an entry, the capture itself finds it.
  calls_ = 0;
  EXPECT_THROW(captured({.lockstep = Lockstep::kNever, .runs = 3}), InputError);
  fs::remove_all(folder_);
  calls_ = 0;
  EXPECT_THROW(captured(), InputError);
}

TEST_F(CaptureCache, UpdatesOfTheOptimizerAreKeptToo) {
  torch::optim::Adam adam(layer_->parameters(), torch::optim::AdamOptions(1e-3));
  CapturedStep first = captured({.optimizer = per_parameter(adam)});
  CapturedStep second = captured({.optimizer = per_parameter(adam)});
  EXPECT_TRUE(second.cache_use().found);
  Graph before = first.graph(), now = second.graph();
  before.fixed = now.fixed = Bytes(0);
  EXPECT_EQ(before, now);
  EXPECT_NO_THROW(second.run(inputs_));
  EXPECT_EQ(second.last_step().fallbacks, 0);
}

TEST_F(CaptureCache, OtherStepsAndOtherCircumstancesHaveEntriesOfTheirOwn) {
  captured();
  const auto is_found = [&](const CaptureOptions& options = {}) {
    return captured(options).cache_use().found;
  };
  EXPECT_TRUE(is_found());
  EXPECT_FALSE(is_found({.alternatives = {.without = {"in-place"}}}));
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  EXPECT_FALSE(is_found());
  at::set_num_threads(threads);
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_FALSE(is_found());
  at::globalContext().setUserEnabledMkldnn(true);
  inputs_ = {at::randn({128, 64})};
  EXPECT_FALSE(is_found());
  inputs_ = {at::randn({256, 64})};
  EXPECT_TRUE(is_found());
  EXPECT_EQ(entries().size(), 5U);
}

TEST_F(CaptureCache, DamagedAndForeignEntriesAreIgnoredWithAWarningAndReplaced) {
  captured();
  const fs::path path = entries().at(0);
  const std::string good = read_file(path);
  const size_t digits = good.find("\"median_ns\":");
  ASSERT_NE(digits, std::string::npos);
  std::string other_time = good;
  other_time.insert(good.find_first_of("0123456789", digits), "1");
  const size_t body = good.find('\n') + 1;
  for (const std::string& text :
       {std::string(), std::string("nonsense"), good.substr(0, good.size() / 2), good.substr(body),
        good.substr(0, body), other_time, std::string(100, '\0'),
        "reprise-costs 3" + good.substr(good.find(' ', 15))}) {
    SCOPED_TRACE(text.substr(0, 200));
    write_file(path, text);
    expect_warning("is not used, and will be replaced");
    EXPECT_TRUE(captured().cache_use().found);
  }
  // An entry under the name of another one.
  inputs_ = {at::randn({128, 64})};
  captured();
  const std::vector<fs::path> both = entries();
  ASSERT_EQ(both.size(), 2U);
  write_file(both[0] == path ? both[1] : both[0], good);
  expect_warning("another entry");
}

TEST_F(CaptureCache, AFolderThatCannotBeUsedIsAWarning) {
  std::ofstream(folder_) << "a file";
  expect_warning("could not be kept");
}

}  // namespace
}  // namespace reprise::runtime::testing
