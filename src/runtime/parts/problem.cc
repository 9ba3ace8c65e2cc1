#include "runtime/parts/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/report/pipeline.h"

namespace reprise::runtime::internal::parts {
namespace {

// Checks that what part q - 1 sends has the bytes of what part q reads, both ways.
void join(size_t q, const PartFacts& before, const PartFacts& part, reprise::Stage& last) {
  const ChainInput& got = part.alone.chain.input;
  const auto check = [&](Bytes one, Bytes other, const char* mine, const char* theirs) {
    if (one == other) return;
    throw InputError(
        fmt::format("the {} of part {} has {} bytes, and the {} of part {} has {}: messages are "
                    "whole contiguous tensors, and every one of them that needs a gradient gets "
                    "one of its own size. Cut the model at another stage",
                    mine, q - 1, one.count(), theirs, q, other.count()));
  };
  check(last.output, got.bytes, "output", "input");
  check(before.output_gradient, got.gradient, "output's gradient", "input's gradient");
  last.output_gradient = got.gradient;
}

std::vector<int64_t> cuts_of(const std::vector<PartFacts>& parts) {
  std::vector<int64_t> cuts;
  int64_t first = 0;
  for (size_t q = 0; q + 1 < parts.size(); ++q) {
    first += static_cast<int64_t>(parts[q].alone.chain.stages.size());
    cuts.push_back(first);
  }
  return cuts;
}

// Returns why no stage of the pipeline can be split.
std::string reasons(const std::vector<PartFacts>& parts) {
  std::vector<std::string> all;
  for (const PartFacts& part : parts) {
    all.insert(all.end(), part.not_split.begin(), part.not_split.end());
  }
  return all.empty() ? "no stage has weights" : fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace

Bytes input_bytes(const std::vector<PartFacts>& parts, int64_t micro_batches) {
  return Bytes(parts.front().alone.chain.input.bytes.count() * micro_batches);
}

Pipeline problem_of(const std::vector<PartFacts>& parts, const std::vector<RankFacts>& ranks,
                    const ProblemOptions& options) {
  const size_t size = ranks.size();
  Pipeline problem;
  problem.name = problem.chain.name = options.name;
  problem.micro_batches = options.micro_batches;
  problem.chain.input = parts.front().alone.chain.input;
  problem.chain.loss = parts.back().alone.chain.loss;
  for (size_t q = 0; q < parts.size(); ++q) {
    const Pipeline& alone = parts[q].alone;
    if (q > 0) join(q, parts[q - 1], parts[q], problem.chain.stages.back());
    for (size_t i = 0; i < alone.chain.stages.size(); ++i) {
      reprise::Stage stage = alone.chain.stages[i];
      stage.name = fmt::format("{}.{}", q, stage.name);
      problem.chain.stages.push_back(std::move(stage));
      PipelineStage facts = alone.stages[i];
      // The first stage of the first part of a rank holds the bytes that live between the steps.
      const Bytes inputs = q == 0 ? input_bytes(parts, options.micro_batches) : Bytes(0);
      const Bytes held = i == 0 && q < size ? ranks[q].level : Bytes(0);
      facts.fixed = held - std::min(held, inputs);
      problem.stages.push_back(std::move(facts));
    }
  }
  for (size_t rank = 0; rank < size; ++rank) {
    PipelineDevice device{.name = fmt::format("rank{}", rank)};
    if (!ranks[rank].share && ranks[rank].budget >= 0) device.memory = Bytes(ranks[rank].budget);
    problem.devices.push_back(std::move(device));
  }
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t q = 0; size > 1 && q + 1 < parts.size(); ++q) {
    const auto from = static_cast<int32_t>(q % size), to = static_cast<int32_t>((q + 1) % size);
    pairs.insert({from, to});
    pairs.insert({to, from});
  }
  for (const auto& [from, to] : pairs) {
    problem.links.push_back(
        {.from = from, .to = to, .bytes_per_second = options.link_bytes_per_second});
  }
  return problem;
}

PipelinePlan plan_of(const Pipeline& problem, const std::vector<PartFacts>& parts,
                     const std::vector<RankFacts>& ranks, PipelineOptions options) {
  const bool shares = ranks.front().share;
  for (const RankFacts& rank : ranks) {
    if (rank.share == shares && (!shares || rank.budget == ranks.front().budget)) continue;
    throw InputError(
        "a share of the plain pipeline's peak is the budget of all ranks, and another rank has "
        "another budget");
  }
  const size_t each = parts.size() / ranks.size();
  const bool splits = std::any_of(problem.stages.begin(), problem.stages.end(),
                                  [](const PipelineStage& s) { return s.weight_part.has_value(); });
  if (options.planner == "zb_h1" && !splits) {
    throw InputError("zb_h1 splits backwards, and none can be split: " + reasons(parts));
  }
  // The problem has the budgets of ranks that are numbers.
  if (!shares) options.budget = {};
  if (options.planner.empty()) options.planner = each == 1 ? "pipeline" : "interleaved";
  options.cuts = cuts_of(parts);
  options.parts_per_device = static_cast<int64_t>(each);
  PipelineResult result = reprise::plan(problem, options);
  if (!result.plan) {
    throw BudgetError(explain_no_plan(result, problem), 0, 0,
                      result.needed.value_or(Bytes(0)).count());
  }
  for (size_t q = 0; q < parts.size(); ++q) {
    const reprise::PipelinePart* const part =
        q < result.plan->parts.size() ? &result.plan->parts[q] : nullptr;
    if (part != nullptr && static_cast<size_t>(part->device) == q % ranks.size() &&
        static_cast<size_t>(part->stages) == parts[q].alone.chain.stages.size()) {
      continue;
    }
    throw InternalError(fmt::format("the plan has another part {} than the pipeline", q));
  }
  result.plan->problem = problem_id(problem);
  return *std::move(result.plan);
}

}  // namespace reprise::runtime::internal::parts
