#include "support/random_join.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/io/json.h"

namespace reprise::testing {

Join random_join(std::mt19937_64& random, const RandomJoinOptions& options) {
  Join join;
  join.name = "random";
  const auto more = static_cast<uint64_t>(options.max_branches - options.min_branches + 1);
  const auto branches = static_cast<size_t>(options.min_branches) + random() % more;
  bool may_consume = true;
  for (size_t b = 0; b < branches; ++b) {
    const Chain chain = random_chain(random, options.chain);
    join.fixed = chain.fixed;
    join.branches.push_back({fmt::format("b{}", b), chain.input, chain.stages});
    join.loss = chain.loss;
    may_consume = may_consume && std::ranges::none_of(
                                     chain.stages.back().options,
                                     [](const StageOption& option) { return option.reads_output; });
  }
  join.loss.consumes = may_consume && options.chain.consumes && random() % 2 == 0;
  const auto weights =
      options.max_shared > 0 ? random() % (static_cast<uint64_t>(options.max_shared) + 1) : 0;
  for (uint64_t w = 0; w < weights; ++w) {
    SharedWeights uses;
    for (size_t b = 0; b < branches; ++b) {
      if (b > 1 && random() % 2 == 0) continue;  // two branches at least
      uses.push_back({b, random() % join.branches[b].stages.size()});
    }
    join.shared.push_back(std::move(uses));
  }
  return join;
}

std::string describe(const Join& join) { return to_json(join); }

}  // namespace reprise::testing
