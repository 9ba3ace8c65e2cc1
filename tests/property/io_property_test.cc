// A file that is written is read back equal. A damaged file gives an InputError or another valid
// problem, and nothing else.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "support/io_text.h"
#include "support/random_chain.h"
#include "support/random_graph.h"

namespace reprise::testing {
namespace {

std::mt19937_64 random_engine() {
  return std::mt19937_64(
      *rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>())));
}

RC_GTEST_PROP(IoProperty, ChainsAreReadBackEqual, ()) {
  std::mt19937_64 random = random_engine();
  RandomChainOptions options;
  options.inexact_options = true;
  options.max_size = random() % 2 == 0 ? 10 : int64_t{1} << 50;
  options.max_time = options.max_size;
  const Chain chain = random_chain(random, options);
  const std::string text = to_json(chain);
  RC_LOG() << text;
  RC_ASSERT(parse_chain(text) == chain);
  const Problem problem = parse_problem(text);
  RC_ASSERT(problem.id == problem_id(chain));
  RC_ASSERT(problem.graph() == lower(chain));
}

RC_GTEST_PROP(IoProperty, GraphsAndPlansAreReadBackEqual, ()) {
  std::mt19937_64 random = random_engine();
  const Graph graph = random_graph(random);
  const std::string text = to_json(graph);
  RC_LOG() << text;
  RC_ASSERT(parse_graph(text) == graph);
  RC_ASSERT(parse_problem(text).id == problem_id(graph));

  Plan plan;
  plan.problem = problem_id(graph);
  plan.planner = "random";
  plan.budget = Bytes(static_cast<int64_t>(random() >> 1));
  plan.peak = Bytes(static_cast<int64_t>(random() >> 1));
  plan.actions = with_frees(graph, random_runs(random, graph, 3));
  RC_ASSERT(parse_plan(to_json(plan)) == plan);
}

// Names are what users call their modules, so they may be any text.
RC_GTEST_PROP(IoProperty, AnyNameIsReadBackOrRefused, (const std::string& name)) {
  Chain chain = parse_chain(kChainText);
  chain.name = name;
  std::string text;
  try {
    text = to_json(chain);
  } catch (const InputError&) {
    return;  // not UTF-8
  }
  RC_ASSERT(parse_chain(text) == chain);
}

// Reads `text`. Returns true if it was accepted; the value must then be valid and be read back
// equal. Anything but InputError escapes and fails the test.
bool accepted(const std::string& text) {
  try {
    const Chain chain = parse_chain(text);
    validate(chain);
    EXPECT_EQ(parse_chain(to_json(chain)), chain) << text;
    return true;
  } catch (const InputError& error) {
    EXPECT_FALSE(error.where().file.empty()) << text;
    EXPECT_GT(error.where().line, 0) << text;
    return false;
  }
}

const std::string kOneStage =
    R"({"format": "reprise.chain", "version": 1, "name": "n", "fixed_bytes": 3, "input": {"bytes": 1},
"stages": [{"name": "s", "output_bytes": 2, "random": true, "forward": {"ns": 1},
"options": [{"name": "keep", "saved_bytes": 7, "reads_output": false, "consumes": true,
"forward": {"ns": 1}, "backward": {"ns": 2}, "exactness": "rounding"}]}], "loss": {"ns": 0}})";

TEST(DamagedFile, EverySingleByteChangeIsRefusedOrValid) {
  ASSERT_TRUE(accepted(kOneStage));
  int valid = 0;
  for (size_t at = 0; at < kOneStage.size(); ++at) {
    std::string text = kOneStage;
    for (int byte = 0; byte < 256; ++byte) {
      text[at] = static_cast<char>(byte);
      valid += accepted(text) ? 1 : 0;
    }
  }
  EXPECT_GT(valid, 256);  // other digits, other letters in names
}

TEST(DamagedFile, EveryTruncationIsRefused) {
  for (const std::string& good : {kOneStage, kChainText}) {
    const size_t end = good.find_last_of('}');
    for (size_t size = 0; size <= end; ++size) EXPECT_FALSE(accepted(good.substr(0, size))) << size;
  }
  for (size_t size = 0; size <= kPlanText.find_last_of('}'); ++size) {
    EXPECT_THROW(parse_plan(kPlanText.substr(0, size)), InputError) << size;
  }
}

TEST(DamagedFile, EveryByteLeftOutOrTwiceIsRefusedOrValid) {
  for (size_t at = 0; at < kOneStage.size(); ++at) {
    accepted(std::string(kOneStage).erase(at, 1));
    accepted(std::string(kOneStage).insert(at, 1, kOneStage[at]));
  }
}

}  // namespace
}  // namespace reprise::testing
