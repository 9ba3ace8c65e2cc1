#include "report/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reprise/model/lower.h"

namespace reprise::report {

namespace {

// Finds the op with which the forward pass is over: the first op of loss or backward that reads a
// value of a forward op. Loss and backward run once and in one order, so it is the same op in every
// plan. -1: none.
OpIndex find_turn(const Graph& graph) {
  std::vector<char> from_forward(graph.values.size(), 0);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const Variant& variant : graph.ops[o].variants) {
      if (graph.ops[o].phase == Phase::kForward) {
        for (const ValueIndex value : variant.writes) from_forward[value] = 1;
      } else if (std::any_of(variant.reads.begin(), variant.reads.end(),
                             [&](ValueIndex value) { return from_forward[value] != 0; })) {
        return static_cast<OpIndex>(o);
      }
    }
  }
  return -1;
}

// Returns the position of the op's first run, or that behind the last action.
size_t first_run(const Walk& walk, OpIndex op, size_t actions) {
  for (const std::vector<RunSpan>* spans : {&walk.spans, &walk.elsewhere}) {
    const auto found =
        std::find_if(spans->begin(), spans->end(), [op](const RunSpan& m) { return m.op == op; });
    if (found != spans->end()) return static_cast<size_t>(found->action);
  }
  return actions;
}

// Returns for each op the bytes that it wrote and that are live on the device where it ran, just
// before the turn.
std::vector<Bytes> held_at_the_turn(const Graph& graph, const std::vector<Action>& actions,
                                    const Walk& walk, const Machine& machine) {
  const size_t end = first_run(walk, find_turn(graph), actions.size());
  std::map<std::pair<ValueIndex, int32_t>, OpIndex> writer;  // by value and memory
  const std::vector<BoundAction> bound = bind(graph, actions, machine);
  for (size_t a = 0; a < end; ++a) {
    const BoundAction& action = bound[a];
    switch (action.kind) {
      case ActionKind::kRun: {
        const Op& op = graph.ops[action.target];
        const Variant& variant = op.variants[action.variant];
        for (const ValueIndex v : variant.consumes) writer.erase({v, action.at});
        for (const auto& [written, v] : variant.reuses) writer.erase({v, action.at});
        for (const ValueIndex v : variant.writes) writer[{v, action.at}] = action.target;
        break;
      }
      case ActionKind::kFree:
        writer.erase({action.target, action.at});
        break;
      case ActionKind::kCopy:  // A value that has come back is the copy's, and nobody's here.
      case ActionKind::kWait:
      case ActionKind::kSend:
      case ActionKind::kReceive:
        break;
    }
  }
  std::vector<Bytes> held(graph.ops.size());
  for (const auto& [place, op] : writer) {
    held[op] += graph.values[place.first].bytes;
  }
  return held;
}

Verdict verdict_on(const Decision& decision) {
  if (decision.runs > 1) return Verdict::kRecomputed;
  if (decision.plain_held == Bytes(0) && decision.plan_held == Bytes(0)) return Verdict::kPassing;
  return decision.plan_held < decision.plain_held ? Verdict::kLighter : Verdict::kKept;
}

// Returns the cost of a byte in time: "0.26 ms/MiB".
std::string price(Nanos time, Bytes bytes) {
  const double mebibytes = static_cast<double>(bytes.count()) / 0x1p20;
  return fmt::format("{:.3g} ms/MiB", static_cast<double>(time.count()) / mebibytes / 1e6);
}

std::string freed_for(Bytes freed, Nanos extra) {
  if (extra <= Nanos(0)) return fmt::format("frees {} for no time", format_bytes(freed));
  return fmt::format("frees {} for {} ({})", format_bytes(freed), format_duration(extra),
                     price(extra, freed));
}

std::string reason(const Decision& decision) {
  const Bytes freed = decision.plain_held - decision.plan_held;
  switch (decision.verdict) {
    case Verdict::kKept:
      return fmt::format("running it again would take {} and free {} ({})",
                         format_duration(decision.once), format_bytes(decision.plan_held),
                         price(decision.once, decision.plan_held));
    case Verdict::kRecomputed:
      if (freed > Bytes(0)) return freed_for(freed, decision.extra);
      return fmt::format("dropped stages need its output again, for {}",
                         format_duration(decision.extra));
    case Verdict::kLighter:
      return freed_for(freed, decision.extra);
    case Verdict::kPassing:
      return "the backward needs none of its values";
  }
  return "";
}

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kKept:
      return "kept";
    case Verdict::kRecomputed:
      return "recomputed";
    case Verdict::kLighter:
      return "kept in part";
    case Verdict::kPassing:
      return "not needed later";
  }
  return "?";
}

std::vector<OpIndex> own_backwards(const Problem& problem, const Graph& graph) {
  std::vector<OpIndex> result(graph.ops.size(), -1);
  if (problem.chain() == nullptr) return result;
  const ChainIndex index = {problem.chain()->stages.size()};
  for (size_t s = 0; s < index.stages; ++s) {
    result[index.forward(s)] = index.backward(s);
  }
  return result;
}

std::vector<Decision> decisions(const Graph& graph, const std::vector<OpIndex>& backwards,
                                const std::vector<Action>& plain, const Walk& plain_walk,
                                const std::vector<Action>& plan, const Walk& plan_walk,
                                const Machine& machine) {
  const std::vector<Bytes> in_plain = held_at_the_turn(graph, plain, plain_walk, machine);
  const std::vector<Bytes> in_plan = held_at_the_turn(graph, plan, plan_walk, machine);
  const auto variant_of = [&](const RunSpan& moment) -> const Variant& {
    return graph.ops[moment.op].variants[moment.variant];
  };
  std::vector<Nanos> more(graph.ops.size());  // time beyond plain training's
  std::vector<Decision> all(graph.ops.size());
  std::vector<char> is_plain(graph.ops.size(), 0);  // run by plain training, too
  for (const RunSpan& moment : plain_walk.spans) {
    is_plain[moment.op] = 1;
    all[moment.op].once = variant_of(moment).time;
    more[moment.op] -= variant_of(moment).time;
  }
  const auto count = [&](const RunSpan& moment) {
    const auto op = static_cast<size_t>(moment.op);
    ++all[op].runs;
    more[op] += variant_of(moment).time;
    if (all[op].runs == 1 && !is_plain[op]) all[op].once = variant_of(moment).time;
    if (graph.ops[op].variants.size() > 1) all[op].variant = variant_of(moment).name;
  };
  for (const RunSpan& moment : plan_walk.spans) count(moment);
  for (const RunSpan& moment : plan_walk.elsewhere) count(moment);
  std::vector<Decision> result;
  for (size_t o = 0; o < all.size(); ++o) {
    if (graph.ops[o].phase != Phase::kForward || all[o].runs == 0) continue;
    Decision& decision = all[o];
    decision.op = static_cast<OpIndex>(o);
    decision.extra = more[o];
    if (backwards[o] >= 0) decision.extra += more[backwards[o]];
    decision.plain_held = in_plain[o];
    decision.plan_held = in_plan[o];
    decision.verdict = verdict_on(decision);
    decision.why = reason(decision);
    result.push_back(std::move(decision));
  }
  return result;
}

}  // namespace reprise::report
