#include "reprise/model/chain.h"

#include <gtest/gtest.h>

#include "reprise/model/errors.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

TEST(ChainModel, BoundariesAreTheInputAndTheOutputsOfTheStages) {
  Chain chain = example_chain();
  chain.stages[1].output_gradient = Bytes(31);
  EXPECT_EQ(boundary_bytes(chain, 0), Bytes(10));
  EXPECT_EQ(boundary_bytes(chain, 2), Bytes(30));
  EXPECT_EQ(boundary_gradient_bytes(chain, 0), Bytes(5));
  EXPECT_EQ(boundary_gradient_bytes(chain, 1), Bytes(20));  // as large as the output when absent
  EXPECT_EQ(boundary_gradient_bytes(chain, 2), Bytes(31));
}

TEST(ChainModel, AWellFormedChainIsAccepted) { EXPECT_NO_THROW(validate(example_chain())); }

TEST(ChainModel, ZeroSizesAndTimesAreLegal) {
  Chain chain;
  chain.stages = {Stage{}};
  chain.stages[0].options = {StageOption{}};
  EXPECT_NO_THROW(validate(chain));
}

TEST(ChainModel, OptionsLessExactThanAllowedAreRemoved) {
  Chain chain = example_chain();
  chain.stages[0].options[1].exactness = Exactness::kRounding;
  EXPECT_EQ(restrict_exactness(chain, Exactness::kApproximate), chain);
  EXPECT_EQ(restrict_exactness(chain, Exactness::kRounding), chain);
  const Chain bitwise = restrict_exactness(chain, Exactness::kBitwise);
  ASSERT_EQ(bitwise.stages[0].options.size(), 1u);
  EXPECT_EQ(bitwise.stages[0].options[0].name, "keep");
}

TEST(ChainModel, AStageThatLosesEveryOptionIsNamed) {
  Chain chain = example_chain();
  chain.stages[1].options[0].exactness = Exactness::kApproximate;
  try {
    restrict_exactness(chain, Exactness::kRounding);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/stages/1/options");
    EXPECT_NE(std::string(error.what()).find("\"second\""), std::string::npos);
  }
}

TEST(ChainModel, ExactnessIsPrintedAsInFiles) {
  EXPECT_STREQ(to_string(Exactness::kBitwise), "bitwise");
  EXPECT_STREQ(to_string(Exactness::kRounding), "rounding");
  EXPECT_STREQ(to_string(Exactness::kApproximate), "approximate");
}

}  // namespace
}  // namespace reprise::testing
