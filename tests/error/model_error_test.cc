// Malformed chains and graphs are refused with InputError at the right place. A test here fails
// when the refusal is an InternalError or anything else: that would be our defect, not the
// caller's.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/chain.h"
#include "reprise/model/errors.h"
#include "reprise/model/graph.h"
#include "reprise/model/lower.h"
#include "support/build_graph.h"
#include "support/example_chain.h"

namespace reprise::testing {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

template <class Model>
struct BadModel {
  const char* pointer;
  std::function<void(Model&)> damage;
};

// Returns the pointer of the InputError that `check` throws. Any other error fails the test.
template <class Model>
std::string refusal(const Model& model, const std::function<void(const Model&)>& check) {
  try {
    check(model);
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()), "");
    return error.where().pointer;
  } catch (const std::exception& error) {
    return std::string("wrong exception: ") + error.what();
  }
  return "accepted";
}

TEST(ModelError, MalformedChainsAreRefusedAtTheirFault) {
  const std::vector<BadModel<Chain>> cases = {
      {"/stages", [](Chain& c) { c.stages.clear(); }},
      {"/stages/1/options", [](Chain& c) { c.stages[1].options.clear(); }},
      {"/stages/0/options/1/name", [](Chain& c) { c.stages[0].options[1].name = "keep"; }},
      {"/stages/0/options/1/name", [](Chain& c) { c.stages[0].options[1].name = ""; }},
      {"/stages/0/options/0/name", [](Chain& c) { c.stages[0].options[0].name = "fast"; }},
      {"/fixed_bytes", [](Chain& c) { c.fixed = Bytes(-1); }},
      {"/input/bytes", [](Chain& c) { c.input.bytes = Bytes(-1); }},
      {"/input/gradient_bytes", [](Chain& c) { c.input.gradient = Bytes(-1); }},
      {"/stages/0/output_bytes", [](Chain& c) { c.stages[0].output = Bytes(-1); }},
      {"/stages/0/output_gradient_bytes",
       [](Chain& c) { c.stages[0].output_gradient = Bytes(-1); }},
      {"/stages/1/weight_gradient_bytes",
       [](Chain& c) { c.stages[1].weight_gradient = Bytes(-1); }},
      {"/stages/1/forward/ns", [](Chain& c) { c.stages[1].forward.time = Nanos(-1); }},
      {"/stages/1/forward/workspace_bytes",
       [](Chain& c) { c.stages[1].forward.workspace = Bytes(-1); }},
      {"/stages/0/options/1/saved_bytes",
       [](Chain& c) { c.stages[0].options[1].saved = Bytes(-1); }},
      {"/stages/0/options/1/forward/ns",
       [](Chain& c) { c.stages[0].options[1].forward.time = Nanos(-1); }},
      {"/stages/0/options/1/backward/workspace_bytes",
       [](Chain& c) { c.stages[0].options[1].backward.workspace = Bytes(-1); }},
      {"/loss/ns", [](Chain& c) { c.loss.cost.time = Nanos(-1); }},
      {"/loss/workspace_bytes", [](Chain& c) { c.loss.cost.workspace = Bytes(-1); }},
      {"/loss/consumes", [](Chain& c) { c.loss.consumes = true; }},
      // If a sum does not fit, the pointer names the term at which the sum exceeds 64 bits.
      {"/stages/1/output_gradient_bytes",
       [](Chain& c) { c.stages[1].output = Bytes(kLargest - 200); }},
      {"/stages/0/options/0/forward/ns",
       [](Chain& c) { c.stages[0].forward.time = Nanos(kLargest); }},
      {"/input/bytes", [](Chain& c) { c.fixed = Bytes(kLargest); }},
  };
  for (const BadModel<Chain>& each : cases) {
    Chain chain = example_chain();
    each.damage(chain);
    EXPECT_EQ(refusal<Chain>(chain, [](const Chain& c) { validate(c); }), each.pointer);
    EXPECT_EQ(refusal<Chain>(chain, [](const Chain& c) { lower(c); }), each.pointer);
  }
}

// Nothing may read a consumed input later: neither the caller nor an option of the stage before.
TEST(ModelError, AConsumedInputIsRefusedUnlessTheStageIsItsLastReader) {
  const auto place = [](const Chain& chain) {
    return refusal<Chain>(chain, [](const Chain& c) { validate(c); });
  };
  Chain first = example_chain();
  first.stages[0].options[1].consumes_input = true;
  EXPECT_EQ(place(first), "/stages/0/options/1/consumes_input");

  Chain chain = example_chain();
  StageOption& option = chain.stages[1].options[0];
  option.consumes_input = true;
  chain.stages[0].options[0].reads_output = chain.stages[0].options[1].reads_output = false;
  EXPECT_NO_THROW(validate(chain));
  for (StageOption& before : chain.stages[0].options) {
    before.reads_output = true;
    EXPECT_EQ(place(chain), "/stages/1/options/0/consumes_input");
    before.reads_output = false;
  }
}

TEST(ModelError, ARunThatStopsEarlyLeavesOutTheOutputAndTakesNoMoreThanTheWhole) {
  const auto place = [](const Chain& chain) {
    return refusal<Chain>(chain, [](const Chain& c) { validate(c); });
  };
  Chain chain = example_chain();
  std::vector<StageOption>& options = chain.stages[0].options;
  const char* const pointer = "/stages/0/options/0/stopped";
  options[0].stopped = options[0].forward;
  options[0].reads_output = true;
  EXPECT_EQ(place(chain), pointer);
  options[0].reads_output = false;
  EXPECT_NO_THROW(validate(chain));
  options[0].stopped->time += Nanos(1);
  EXPECT_EQ(place(chain), pointer);
  options[0].stopped = options[0].forward;
  options[0].stopped->workspace += chain.stages[0].output + Bytes(1);
  EXPECT_EQ(place(chain), pointer);
  options[0].stopped = options[0].forward;
  options[1].name = stopped_name(options[0]);
  EXPECT_EQ(place(chain), pointer);
}

// The last output must not be read by any option, not only by the first.
TEST(ModelError, AConsumingLossIsRefusedIfAnyLastOptionReadsTheOutput) {
  Chain chain = example_chain();
  chain.loss.consumes = true;
  StageOption other = chain.stages[1].options[0];
  other.name = "other";
  chain.stages[1].options.push_back(other);
  chain.stages[1].options[0].reads_output = false;
  EXPECT_THROW(validate(chain), InputError);
  chain.stages[1].options[1].reads_output = false;
  EXPECT_NO_THROW(validate(chain));
}

// A sum of exactly the largest number is legal in the chain and in its graph.
TEST(ModelError, SumsUpTo64BitsAreAccepted) {
  Chain chain = example_chain();
  const Graph graph = lower(chain);
  int64_t sum = graph.fixed.count();
  for (const Value& value : graph.values) sum += value.bytes.count();
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) sum += variant.workspace.count();
  }
  chain.fixed += Bytes(kLargest - sum);
  EXPECT_NO_THROW(validate(chain));
  EXPECT_NO_THROW(validate(lower(chain)));
  EXPECT_NO_THROW(baseline(lower(chain)));
  chain.fixed += Bytes(1);
  EXPECT_THROW(validate(chain), InputError);
}

std::vector<BadModel<Graph>> bad_ids() {
  return {
      {"/values/1/id", [](Graph& g) { g.values[1].id = ""; }},
      {"/values/2/id", [](Graph& g) { g.values[2].id = "x"; }},
      {"/ops/0/id", [](Graph& g) { g.ops[0].id = ""; }},
      {"/ops/1/id", [](Graph& g) { g.ops[1].id = "a"; }},
      {"/ops/0/variants/0/name", [](Graph& g) { g.ops[0].variants[0].name = ""; }},
      {"/ops/0/variants/1/name",
       [](Graph& g) { g.ops[0].variants.push_back(g.ops[0].variants[0]); }},
      {"/ops/0/variants", [](Graph& g) { g.ops[0].variants.clear(); }},
      {"/ops/0/variants", [](Graph& g) { g.ops[0].variants[0].role = Role::kReplay; }},
      {"/results/0", [](Graph& g) { g.results = {3}; }},
      {"/results/0", [](Graph& g) { g.results = {-1}; }},
      {"/results/1",
       [](Graph& g) {
         g.results = {2, 2};
       }},
      {"/results", [](Graph& g) { g.results = {add_value(g, "orphan", 1)}; }},
  };
}

std::vector<BadModel<Graph>> bad_uses() {
  return {
      {"/ops/0/variants/0/reads/0", [](Graph& g) { g.ops[0].variants[0].reads = {3}; }},
      {"/ops/0/variants/0/reads/1",
       [](Graph& g) {
         g.ops[0].variants[0].reads = {0, 0};
       }},
      {"/ops/0/variants/0/writes/1",
       [](Graph& g) {
         g.ops[0].variants[0].writes = {1, -7};
       }},
      {"/ops/0/variants/0/writes/1",
       [](Graph& g) {
         g.ops[0].variants[0].writes = {1, 1};
       }},
      // This is a cycle: a reads what b writes, and b reads what a writes.
      {"/ops/0/variants/0/reads", [](Graph& g) { g.ops[0].variants[0].reads = {2}; }},
      {"/ops/0/variants/0/reads", [](Graph& g) { g.ops[0].variants[0].reads = {1}; }},
      {"/ops/1/variants/0/writes",
       [](Graph& g) {
         g.ops[1].variants[0].writes = {1, 2};
       }},
      {"/ops/1/variants/0/writes",
       [](Graph& g) {
         g.ops[1].variants[0].writes = {0, 2};
       }},
      {"/ops/1/variants/0/reuses/0",  // of different size
       [](Graph& g) {
         g.ops[1].variants[0].reuses = {{2, 1}};
       }},
      {"/ops/1/variants/0/reuses/0",  // the wrong way round
       [](Graph& g) {
         g.ops[1].variants[0].reuses = {{1, 2}};
       }},
      {"/ops/1/variants/0/reuses/0",  // out of range
       [](Graph& g) {
         g.ops[1].variants[0].reuses = {{2, 50}};
       }},
      {"/ops/0/variants/0/reuses/0",  // an input
       [](Graph& g) {
         g.values[1].bytes = g.values[0].bytes;
         g.ops[0].variants[0].reuses = {{1, 0}};
       }},
      {"/ops/1/variants/0/reuses/1",  // twice
       [](Graph& g) {
         g.values[2].bytes = g.values[1].bytes;
         g.ops[1].variants[0].reuses = {{2, 1}, {2, 1}};
       }},
      {"/ops/1/variants/0/consumes/0", [](Graph& g) { g.ops[1].variants[0].consumes = {50}; }},
      {"/ops/1/variants/0/consumes", [](Graph& g) { g.ops[1].variants[0].consumes = {2}; }},
      {"/ops/0/variants/0/consumes", [](Graph& g) { g.ops[0].variants[0].consumes = {0}; }},
      {"/ops/1/variants/0/consumes",  // a result
       [](Graph& g) {
         g.results = {1, 2};
         g.ops[1].variants[0].consumes = {1};
       }},
      {"/ops/1/variants/0/consumes",  // also reused
       [](Graph& g) {
         g.values[2].bytes = g.values[1].bytes;
         g.ops[1].variants[0].reuses = {{2, 1}};
         g.ops[1].variants[0].consumes = {1};
       }},
  };
}

std::vector<BadModel<Graph>> bad_numbers_and_choices() {
  return {
      {"/fixed_bytes", [](Graph& g) { g.fixed = Bytes(-1); }},
      {"/values/1/bytes", [](Graph& g) { g.values[1].bytes = Bytes(-1); }},
      {"/ops/1/variants/0/ns", [](Graph& g) { g.ops[1].variants[0].time = Nanos(-1); }},
      {"/ops/1/variants/0/workspace_bytes",
       [](Graph& g) { g.ops[1].variants[0].workspace = Bytes(-1); }},
      {"/values/2/bytes", [](Graph& g) { g.values[1].bytes = Bytes(kLargest - 120); }},
      {"/ops/1/variants/0/ns", [](Graph& g) { g.ops[0].variants[0].time = Nanos(kLargest); }},
      {"/choices/0/id",
       [](Graph& g) {
         g.choices = {{"", {{"", {0}}}}};
       }},
      {"/choices/1/id",
       [](Graph& g) {
         g.choices = {{"c", {{"", {0}}}}, {"c", {{"", {1}}}}};
       }},
      {"/choices/0/realizations",
       [](Graph& g) {
         g.choices = {{"c", {}}};
       }},
      {"/choices/0/realizations/1",
       [](Graph& g) {
         g.choices = {{"c", {{"", {0}}, {"", {}}}}};
       }},
      {"/choices/0/realizations/0",
       [](Graph& g) {
         g.choices = {{"c", {{"", {2}}}}};
       }},
      {"/choices/0/realizations/0",
       [](Graph& g) {
         g.choices = {{"c", {{"", {-1}}}}};
       }},
      {"/choices/0/realizations/1",
       [](Graph& g) {
         g.choices = {{"c", {{"", {0}}, {"", {0}}}}};
       }},
      {"/choices/1/realizations/0",
       [](Graph& g) {
         g.choices = {{"c", {{"", {0}}}}, {"d", {{"", {0}}}}};
       }},
  };
}

TEST(ModelError, MalformedGraphsAreRefusedAtTheirFault) {
  std::vector<BadModel<Graph>> cases = bad_ids();
  for (const auto& more : {bad_uses(), bad_numbers_and_choices()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (size_t k = 0; k < cases.size(); ++k) {
    Graph graph = two_op_graph();
    cases[k].damage(graph);
    EXPECT_EQ(refusal<Graph>(graph, [](const Graph& g) { validate(g); }), cases[k].pointer) << k;
    EXPECT_EQ(refusal<Graph>(graph, [](const Graph& g) { simulate(g, std::vector<Action>{}); }),
              cases[k].pointer)
        << k;
  }
}

}  // namespace
}  // namespace reprise::testing
