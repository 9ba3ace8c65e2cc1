// Tests reversible networks: what is refused, and what the error says.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/reversible.h"
#include "support/refusal.h"

namespace reprise::runtime::nn {
namespace {

using reprise::testing::expect_refusal;

namespace tn = torch::nn;
using Network = std::shared_ptr<ReversibleSequence>;

Network sequence_of(std::vector<ReversibleBlock> blocks, ReversibleOptions options = {}) {
  return std::make_shared<ReversibleSequence>(std::move(blocks), options);
}

TEST(Reversible, RefusesWithTheReason) {
  const Stage good = branch(tn::Linear(4, 4));
  const at::Tensor x = at::randn({2, 4}).requires_grad_(), y = at::randn({2, 4});
  const auto with = [&](const std::function<Tensors(const Tensors&)>& f) {
    sequence_of({{good, {"odd", nullptr, f}}})->forward(x, y);
  };
  expect_refusal([&] { with([](const Tensors& in) -> Tensors { return {in[0].sum(1, true)}; }); },
                 "branch 'odd' of a reversible network returns the shape [2, 1]");
  expect_refusal([&] { with([](const Tensors& in) -> Tensors { return {in[0].mul_(2)}; }); },
                 "in place");
  expect_refusal([&] { with([](const Tensors&) -> Tensors { return {}; }); }, "0 tensors");
  expect_refusal([&] { with([](const Tensors& in) -> Tensors { return {in[0] > 0}; }); },
                 "real numbers");
  expect_refusal([&] { sequence_of({}); }, "at least one block");
  expect_refusal([&] { sequence_of({{good, {}}}); }, "'0.g' has no function");
  expect_refusal([&] { sequence_of({{good, good}}, {.fraction_bits = 0}); }, "1 to 52");
  expect_refusal(
      [&] {
        sequence_of({{good, good}}, {.fraction_bits = 31})->forward(x, y);
      },
      "30 or fewer");
  const Network network = sequence_of({{good, good}});
  expect_refusal([&] { network->forward(x, at::Tensor()); }, "two dense tensors");
  expect_refusal([&] { network->forward(x, y.to(at::kDouble)); }, "of one type");
  expect_refusal([&] { network->forward(at::randn({2, 5})); }, "even size");
  expect_refusal(
      [&] {
        const auto [y1, y2] = network->forward(x, y);
        torch::autograd::grad({y1.sum()}, {x}, {}, true, true);
      },
      "second derivative");
  expect_refusal(
      [&] {
        const auto [y1, y2] = network->forward(x, y);
        y1.sum().backward({}, true);
        y1.sum().backward();
      },
      "already");
  expect_refusal(
      [&] {
        const auto [y1, y2] = network->forward(x, y);
        {
          const at::NoGradGuard no_grad;
          network->parameters()[0].mul_(2);
        }
        y1.sum().backward();
      },
      "was changed between");
  const Network floating = sequence_of({{good, good}}, {.streams = StreamNumbers::kFloatingPoint});
  expect_refusal(
      [&] {
        auto [y1, y2] = floating->forward(x, y);
        y1.detach().mul_(2);
        y1.sum().backward();
      },
      "changed in place");
  // With fixed-point streams the results are the caller's.
  auto [y1, y2] = network->forward(x, y);
  const at::Tensor sum = y1.sum();
  y1.detach().mul_(2);
  sum.backward();
}

}  // namespace
}  // namespace reprise::runtime::nn
