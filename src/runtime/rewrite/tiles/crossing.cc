#include "runtime/rewrite/tiles/crossing.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace reprise::runtime::internal::rewrite {

namespace {

// Functions that take several times as long as an arithmetic operation.
constexpr std::array kDear = {"tanh",  "sigmoid", "exp",  "expm1",    "erf",   "erfc", "log",
                              "log1p", "sin",     "cos",  "softplus", "gelu",  "silu", "mish",
                              "elu",   "atan",    "sqrt", "rsqrt",    "lgamma"};

class Crossing {
 public:
  Crossing(const Rewriter& rewriter, const TileGroups& groups, const TileChoice& choice)
      : rewriter_(rewriter), groups_(groups), choice_(choice) {
    for (const TileGroup& group : choice.forward) {
      for (const int32_t c : group.calls) maker_[groups.element_call(c).result.index] = c;
    }
    const std::vector<int32_t> calls = choice.calls();
    inside_.insert(calls.begin(), calls.end());
  }

  // Returns all groups, each by itself.
  std::vector<TilePiece> everything() const {
    std::vector<TilePiece> pieces;
    for (const auto* list : {&choice_.forward, &choice_.backward}) {
      for (const TileGroup& group : *list) {
        const std::set<int32_t> own(group.calls.begin(), group.calls.end());
        pieces.push_back({.after = group.after, .source = source_of(group.calls)});
        pieces.back().source.outputs = values_leaving(rewriter_, groups_, group.calls, own);
      }
    }
    return pieces;
  }

  // The backward makes again what does not cross. Returns nothing if nothing is made again, or if
  // something that it needs for this is written over by then.
  std::optional<std::vector<TilePiece>> rebuilt(bool dear_crosses) const {
    std::vector<TilePiece> backward;
    std::set<int32_t> crossing;
    bool rebuilds = false;
    for (const TileGroup& group : choice_.backward) {
      std::set<int32_t> again;
      for (const int32_t c : group.calls) {
        if (!follow(c, group, dear_crosses, again, crossing)) return std::nullopt;
      }
      rebuilds = rebuilds || !again.empty();
      std::vector<int32_t> calls(again.begin(), again.end());
      std::ranges::copy(group.calls, std::back_inserter(calls));
      const std::set<int32_t> own(group.calls.begin(), group.calls.end());
      backward.push_back({.name = again.empty() ? "" : "rebuild",
                          .after = group.after,
                          .source = source_of(calls)});
      backward.back().source.outputs = values_leaving(rewriter_, groups_, group.calls, own);
    }
    if (!rebuilds) return std::nullopt;
    std::vector<TilePiece> pieces;
    for (const TileGroup& group : choice_.forward) {
      std::set<int32_t> own(group.calls.begin(), group.calls.end());
      for (const TileGroup& other : choice_.backward)
        own.insert(other.calls.begin(), other.calls.end());
      TileSource source = source_of(group.calls);
      source.outputs = values_leaving(rewriter_, groups_, group.calls, own);
      for (const int32_t c : group.calls) {
        const int32_t value = groups_.element_call(c).result.index;
        if (crossing.contains(value) &&
            std::ranges::find(source.outputs, value) == source.outputs.end()) {
          source.outputs.push_back(value);
        }
      }
      pieces.push_back({.after = group.after, .source = std::move(source)});
    }
    std::ranges::move(backward, std::back_inserter(pieces));
    return pieces;
  }

 private:
  TileSource source_of(const std::vector<int32_t>& calls) const {
    TileSource source;
    for (const int32_t c : calls) source.calls.push_back(groups_.element_call(c));
    return source;
  }

  // Says for each operand of the call whether it crosses or is made again.
  bool follow(int32_t c, const TileGroup& group, bool dear_crosses, std::set<int32_t>& again,
              std::set<int32_t>& crossing) const {
    for (const Argument& argument : groups_.element_call(c).arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory != Memory::kValue) continue;
        const auto made = maker_.find(ref.index);
        if (made == maker_.end() || crosses(ref.index, made->second, dear_crosses)) {
          // The operands of calls of the group are there (TileGroups). Other values may be gone.
          const bool is_of_group = std::ranges::binary_search(group.calls, c);
          if (!is_of_group && groups_.overwritten_by(ref.index) <= group.after) return false;
          if (made != maker_.end()) crossing.insert(ref.index);
          continue;
        }
        if (!again.insert(made->second).second) continue;
        if (!follow(made->second, group, dear_crosses, again, crossing)) return false;
      }
    }
    return true;
  }

  bool crosses(int32_t value, int32_t maker, bool dear_crosses) const {
    if (dear_crosses && is_dear(groups_.element_call(maker))) return true;
    const auto& calls = rewriter_.recording().calls;
    return rewriter_.is_result(value) ||
           std::ranges::any_of(rewriter_.readers(value), [&](int32_t reader) {
             return calls[reader].phase == Phase::kBackward && !inside_.contains(reader);
           });
  }

  const Rewriter& rewriter_;
  const TileGroups& groups_;
  const TileChoice& choice_;
  std::map<int32_t, int32_t> maker_;  // by value that the forward makes: the call
  std::set<int32_t> inside_;          // the calls of the choice
};

std::set<int32_t> outputs_of(const std::vector<TilePiece>& pieces) {
  std::set<int32_t> all;
  for (const TilePiece& piece : pieces) {
    all.insert(piece.source.outputs.begin(), piece.source.outputs.end());
  }
  return all;
}

}  // namespace

bool is_dear(const ElementCall& call) {
  return std::ranges::find(kDear, call.name()) != kDear.end();
}

std::vector<std::vector<TilePiece>> crossings(const Rewriter& rewriter, const TileGroups& groups,
                                              const TileChoice& choice) {
  const Crossing crossing(rewriter, groups, choice);
  std::vector<std::vector<TilePiece>> all{crossing.everything()};
  if (auto of_inputs = crossing.rebuilt(/*dear_crosses=*/false)) {
    auto of_dear = crossing.rebuilt(/*dear_crosses=*/true);
    const bool differs = of_dear && outputs_of(*of_dear) != outputs_of(*of_inputs);
    all.push_back(*std::move(of_inputs));
    if (differs) all.push_back(*std::move(of_dear));
  }
  return all;
}

}  // namespace reprise::runtime::internal::rewrite
