// Gradients from before a step are aside while it runs, and there again where its function looks.
#include "runtime/step/gradients_aside.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace reprise::runtime {

using internal::step::GradientsAside;
using internal::step::ShowingGradients;

namespace {

at::Tensor leaf_with(double gradient) {
  at::Tensor leaf = at::ones({2}).set_requires_grad(true);
  leaf.mutable_grad() = at::full({2}, gradient);
  return leaf;
}

double value_of(const at::Tensor& tensor) { return tensor[0].item<double>(); }

TEST(GradientsAside, ThereIsNoneWhileTheStepRunsAndTheSumBehindIt) {
  const at::Tensor leaf = leaf_with(3);
  GradientsAside aside;
  aside.take(leaf);
  aside.take(leaf);
  EXPECT_TRUE(aside.any() && aside.has_unseen());
  EXPECT_FALSE(leaf.grad().defined());
  leaf.mutable_grad() = at::full({2}, 4);
  aside.add();
  EXPECT_EQ(value_of(leaf.grad()), 7);
}

TEST(GradientsAside, AFunctionThatLooksFindsTheOldOneAndMayDropIt) {
  const at::Tensor leaf = leaf_with(3), other = leaf_with(5);
  GradientsAside aside;
  aside.take(leaf);
  aside.take(other);
  EXPECT_TRUE(aside.show(leaf));
  EXPECT_EQ(value_of(leaf.grad()), 3);
  EXPECT_FALSE(aside.is_mixed());  // It is memory from before the step, which the step may write.
  leaf.mutable_grad() = at::Tensor();
  aside.forget_dropped();
  ASSERT_EQ(aside.seen().size(), 1);
  EXPECT_TRUE(aside.seen()[0].is_same(leaf));
  aside.put_back();
  EXPECT_FALSE(leaf.grad().defined());
  EXPECT_EQ(value_of(other.grad()), 5);
}

TEST(GradientsAside, AnOldOneCannotBeShownBehindANewOne) {
  const at::Tensor leaf = leaf_with(3), bare = at::ones({2}).set_requires_grad(true);
  GradientsAside aside;
  aside.take(leaf);
  leaf.mutable_grad() = at::full({2}, 4);
  EXPECT_FALSE(aside.show(leaf));
  EXPECT_EQ(value_of(leaf.grad()), 4);
  bare.mutable_grad() = at::full({2}, 1);
  EXPECT_TRUE(aside.show(bare));  // There was none before.
}

TEST(GradientsAside, AStepThatIsRecordedGetsTheSumWhereItLooksBehindItsBackward) {
  const at::Tensor leaf = leaf_with(3);
  GradientsAside aside;
  aside.take(leaf);
  {
    const ShowingGradients showing(aside);
    leaf.mutable_grad() = at::full({2}, 4);
    internal::step::touch_gradient(leaf);
  }
  EXPECT_EQ(value_of(leaf.grad()), 7);
  EXPECT_TRUE(aside.is_mixed());
  leaf.mutable_grad() = at::full({2}, 9);
  internal::step::touch_gradient(leaf);  // Nothing is shown on this thread any more.
  EXPECT_EQ(value_of(leaf.grad()), 9);
}

}  // namespace
}  // namespace reprise::runtime
