#include "runtime/chain/joined_stage.h"

#include <memory>

namespace reprise::runtime::internal::chain {
namespace {

using Sharded = std::shared_ptr<const ShardedParameters>;

Sharded both_of(const Sharded& first, const Sharded& second) {
  if (!first || !second) return first ? first : second;
  return std::make_shared<const ShardedParameters>(ShardedParameters{
      .has = [=](const at::Tensor& leaf) { return first->has(leaf) || second->has(leaf); },
      .take_gradients =
          [=] {
            return [a = first->take_gradients(), b = second->take_gradients()] {
              a();
              b();
            };
          }});
}

}  // namespace

Stage joined(const Stage& first, const Stage& second) {
  const auto in_turn = [](const auto& a, const auto& b) {
    return [=](const Tensors& x) { return b(a(x)); };
  };
  Stage both{first.name + "+" + second.name, nullptr, in_turn(first.forward, second.forward),
             both_of(first.sharded, second.sharded)};
  for (const StageWay& way : first.ways) {
    both.ways.push_back({way.name, in_turn(way.forward, second.forward)});
  }
  return both;
}

}  // namespace reprise::runtime::internal::chain
