#include "reprise/model/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "model/stages.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise {
namespace {

void check_branch_name(const std::string& name, const std::string& pointer) {
  if (name.empty()) throw InputError("a branch needs a name", {.pointer = pointer});
  if (name.find('/') != std::string::npos) {
    throw InputError(fmt::format("the branch name \"{}\" has a '/' in it, which ends the name of a "
                                 "branch in the ids of its operations",
                                 name),
                     {.pointer = pointer});
  }
}

// Adds the values of a branch, and returns the position of its first value.
size_t add_values(const Branch& branch, const Graph& own, Graph& graph) {
  const size_t first = graph.values.size();
  for (Value value : own.values) {
    value.id = branch.name + "/" + value.id;
    graph.values.push_back(std::move(value));
  }
  return first;
}

void shift(std::vector<ValueIndex>& values, size_t first) {
  for (ValueIndex& value : values) value += static_cast<ValueIndex>(first);
}

Variant shifted(Variant variant, size_t first) {
  shift(variant.reads, first);
  shift(variant.writes, first);
  shift(variant.consumes, first);
  return variant;
}

Op op_of(const Branch& branch, Op op, size_t first) {
  op.id = branch.name + "/" + op.id;
  for (Variant& variant : op.variants) variant = shifted(std::move(variant), first);
  return op;
}

void require_interleaving(const Join& join, const Interleaving& interleaving) {
  std::vector<size_t> missing;
  for (const Branch& branch : join.branches) missing.push_back(branch.stages.size());
  bool fits = true;
  for (const size_t branch : interleaving) {
    fits = fits && branch < missing.size() && missing[branch]-- > 0;
  }
  if (!fits || !std::ranges::all_of(missing, [](size_t rest) { return rest == 0; })) {
    throw InputError("an interleaving has each branch of the join once for each of its stages");
  }
  if (!keeps_shared_order(join, interleaving)) {
    throw InputError(
        "in an interleaving, the backwards of stages that share weights run in plain training's "
        "order: those of a later branch first");
  }
}

void check_shared(const Join& join, const SharedWeights& uses, const std::string& pointer) {
  std::set<size_t> branches;
  std::set<std::pair<size_t, size_t>> places;
  for (size_t u = 0; u < uses.size(); ++u) {
    const auto [branch, stage] = uses[u];
    const std::string here = fmt::format("{}/{}", pointer, u);
    if (branch >= join.branches.size() || stage >= join.branches[branch].stages.size()) {
      throw InputError(
          fmt::format("there is no stage {} in branch {}; both count from 0", stage, branch),
          {.pointer = here});
    }
    if (!places.emplace(branch, stage).second) {
      throw InputError("the stage is named twice among the uses of one weight", {.pointer = here});
    }
    branches.insert(branch);
  }
  if (branches.size() < 2) {
    throw InputError(
        "shared weights have uses in two branches at least; those of one branch need no entry",
        {.pointer = pointer});
  }
}

}  // namespace

void validate(const Join& join) {
  internal::Sums sums;
  sums.add(join.fixed, "/fixed_bytes");
  if (join.branches.size() < 2) {
    throw InputError("a join needs at least two branches; one branch is a chain",
                     {.pointer = "/branches"});
  }
  std::set<std::string_view> names;
  for (size_t b = 0; b < join.branches.size(); ++b) {
    const Branch& branch = join.branches[b];
    const std::string here = fmt::format("/branches/{}", b);
    check_branch_name(branch.name, here + "/name");
    if (!names.insert(branch.name).second) {
      throw InputError(fmt::format("two branches are named \"{}\"; names are unique", branch.name),
                       {.pointer = here + "/name"});
    }
    internal::check_stages(branch.input, branch.stages, "branch", here, sums);
    internal::check_loss(join.loss, branch.stages);
  }
  sums.add(join.loss.cost, "/loss");
  for (size_t w = 0; w < join.shared.size(); ++w) {
    check_shared(join, join.shared[w], fmt::format("/shared_weights/{}", w));
  }
}

Chain branch_chain(const Branch& branch) {
  Chain chain;
  chain.name = branch.name;
  chain.input = branch.input;
  chain.stages = branch.stages;
  return chain;
}

Join restrict_exactness(const Join& join, Exactness allowed) {
  Join result = join;
  for (size_t b = 0; b < join.branches.size(); ++b) {
    internal::restrict_stages(result.branches[b].stages, allowed, fmt::format("/branches/{}", b));
  }
  return result;
}

Interleaving plain_interleaving(const Join& join) {
  Interleaving interleaving;
  for (size_t b = join.branches.size(); b-- > 0;) {
    interleaving.insert(interleaving.end(), join.branches[b].stages.size(), b);
  }
  return interleaving;
}

bool keeps_shared_order(const Join& join, const Interleaving& interleaving) {
  // The moment of each backward, by branch and stage.
  std::vector<std::vector<size_t>> moment(join.branches.size());
  std::vector<size_t> left;
  for (size_t b = 0; b < join.branches.size(); ++b) {
    left.push_back(join.branches[b].stages.size());
    moment[b].resize(left[b]);
  }
  for (size_t m = 0; m < interleaving.size(); ++m) {
    moment[interleaving[m]][--left[interleaving[m]]] = m;
  }
  return std::ranges::all_of(join.shared, [&](const SharedWeights& uses) {
    return std::ranges::all_of(uses, [&](const StagePlace& use) {
      return std::ranges::none_of(uses, [&](const StagePlace& other) {
        return use.branch > other.branch &&
               moment[use.branch][use.stage] > moment[other.branch][other.stage];
      });
    });
  });
}

Interleaving interleaving_of(const Join& join, const std::vector<Action>& actions) {
  std::unordered_map<std::string, size_t> branch_of;  // by the id of a backward
  for (size_t b = 0; b < join.branches.size(); ++b) {
    for (size_t i = 0; i < join.branches[b].stages.size(); ++i) {
      branch_of.emplace(fmt::format("{}/B{}", join.branches[b].name, i), b);
    }
  }
  Interleaving interleaving;
  for (const Action& action : actions) {
    if (action.kind != ActionKind::kRun) continue;
    const auto found = branch_of.find(action.id);
    if (found == branch_of.end()) continue;
    interleaving.push_back(found->second);
    branch_of.erase(found);  // A second run does not count.
  }
  std::vector<size_t> missing(join.branches.size(), 0);
  for (const auto& [id, branch] : branch_of) ++missing[branch];
  for (size_t b = join.branches.size(); b-- > 0;) {
    interleaving.insert(interleaving.end(), missing[b], b);
  }
  return keeps_shared_order(join, interleaving) ? interleaving : plain_interleaving(join);
}

JoinIndex::JoinIndex(const Join& join) {
  for (const Branch& branch : join.branches) {
    first_.push_back(stages_);
    stages_ += branch.stages.size();
  }
}

Graph lower(const Join& join, const Interleaving& interleaving) {
  validate(join);
  require_interleaving(join, interleaving);
  Graph graph;
  graph.name = join.name;
  graph.fixed = join.fixed;
  Op loss{.id = "loss", .phase = Phase::kLoss, .variants = {Variant{}}};
  Variant& way = loss.variants.front();
  way.time = join.loss.cost.time;
  way.workspace = join.loss.cost.workspace;
  std::vector<std::vector<Op>> backwards;  // by branch, in the order of the branch
  for (const Branch& branch : join.branches) {
    const Graph own = lower(branch_chain(branch));
    const ChainIndex index{branch.stages.size()};
    const size_t first = add_values(branch, own, graph);
    backwards.emplace_back();
    for (const Op& op : own.ops) {
      if (op.phase == Phase::kForward) graph.ops.push_back(op_of(branch, op, first));
      if (op.phase == Phase::kBackward) backwards.back().push_back(op_of(branch, op, first));
    }
    const auto position = [&](ValueIndex value) { return value + static_cast<ValueIndex>(first); };
    way.reads.push_back(position(index.activation(index.stages)));
    way.writes.push_back(position(index.gradient(index.stages)));
    for (const ValueIndex result : own.results) graph.results.push_back(position(result));
  }
  if (join.loss.consumes) way.consumes = way.reads;
  graph.ops.push_back(std::move(loss));
  std::vector<size_t> next(join.branches.size(), 0);
  for (const size_t branch : interleaving) {
    graph.ops.push_back(std::move(backwards[branch][next[branch]++]));
  }
  return graph;
}

Graph lower(const Join& join) { return lower(join, plain_interleaving(join)); }

}  // namespace reprise
