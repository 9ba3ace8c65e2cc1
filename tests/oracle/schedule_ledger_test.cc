// A ledger says what a schedule costs, after any number of changes and of changes taken back. The
// simulator must say the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/graph/schedule/ledger.h"
#include "reprise/check/simulate.h"
#include "support/graph_families.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {
namespace {

using internal::schedule::Keeping;
using internal::schedule::ScheduleLedger;
using internal::schedule::ScheduleModel;

void expect_costs_of_simulator(const Graph& graph, const ScheduleLedger& ledger) {
  const Timeline timeline = simulate(graph, with_frees(graph, ledger.runs()));
  ASSERT_EQ(timeline.time.count(), ledger.time());
  ASSERT_EQ(timeline.peak.count(), ledger.peak());
}

class RandomChange {
 public:
  RandomChange(const ScheduleModel& model, ScheduleLedger& ledger, std::mt19937_64& random)
      : model_(model), ledger_(ledger), random_(random) {}

  void operator()() {
    const Graph& graph = model_.graph();
    const auto position = static_cast<int32_t>(below(model_.plain().size()));
    const auto variants = graph.ops[static_cast<size_t>(position)].variants.size();
    switch (below(8)) {
      case 0:
        if (model_.can_wait(position)) ledger_.set_variant(position, internal::schedule::kPutOff);
        break;
      case 1:
        set_variant(position);
        break;
      case 2:
        ledger_.set_on_demand(position, static_cast<int32_t>(below(variants + 1)) - 1);
        break;
      case 3:
        set_realization();
        break;
      case 4:
        set_early();
        break;
      default:
        set_interval();
    }
  }

 private:
  size_t below(size_t count) { return random_() % count; }

  void set_interval() {
    if (model_.intervals().empty()) return;
    const size_t interval = below(model_.intervals().size());
    if (model_.intervals()[interval].must_keep) return;
    ledger_.set_interval(static_cast<int32_t>(interval), static_cast<Keeping>(below(3)));
  }

  void set_variant(int32_t position) {
    const Op& op = model_.graph().ops[static_cast<size_t>(position)];
    const size_t variant = below(op.variants.size());
    if (op.variants[variant].role == Role::kReplay) return;
    ledger_.set_variant(position, static_cast<int32_t>(variant));
  }

  void set_realization() {
    const std::vector<Choice>& choices = model_.graph().choices;
    if (choices.empty()) return;
    const size_t choice = below(choices.size());
    const size_t count = choices[choice].realizations.size();
    ledger_.set_realization(static_cast<int32_t>(choice), static_cast<int32_t>(below(count)));
  }

  void set_early() {
    std::vector<internal::schedule::Early> early = ledger_.schedule().early;
    if (!early.empty() && below(2) == 0) early.pop_back();
    if (!model_.intervals().empty() && below(2) == 0) {
      const auto interval = static_cast<int32_t>(below(model_.intervals().size()));
      const internal::schedule::Interval& of = model_.intervals()[static_cast<size_t>(interval)];
      const auto length = static_cast<size_t>(of.end - of.begin);
      early.push_back({of.begin + 1 + static_cast<int32_t>(below(length)), interval});
      std::sort(early.begin(), early.end());
    }
    ledger_.set_early(early);
  }

  const ScheduleModel& model_;
  ScheduleLedger& ledger_;
  std::mt19937_64& random_;
};

// First runs of ops that draw random numbers keep the order of the graph, whether they are put off
// or not.
void expect_random_numbers_of_plain_training(const Graph& graph, const ScheduleLedger& ledger) {
  std::vector<char> has_run(graph.ops.size(), 0);
  OpIndex last = -1;
  for (const Run& run : ledger.runs()) {
    if (!has_run[run.op] && graph.ops[run.op].random) {
      ASSERT_GT(run.op, last);
      last = run.op;
    }
    has_run[run.op] = 1;
  }
}

class ScheduleLedgers : public ::testing::TestWithParam<GraphFamily> {};

TEST_P(ScheduleLedgers, CostWhatTheSimulatorSays) {
  int64_t refused = 0, changed = 0;
  for_graphs(GetParam(), [&](const Graph& graph, std::mt19937_64& random) {
    const ScheduleModel model(graph);
    ScheduleLedger ledger(model), fresh(model);
    ASSERT_TRUE(ledger.assign(model.keep_all()));
    EXPECT_EQ(ledger.runs(), plain_runs(graph));
    EXPECT_EQ((Baseline{Bytes(ledger.peak()), Nanos(ledger.time())}), baseline(graph));
    RandomChange change(model, ledger, random);
    for (int draw = 0; draw < 40; ++draw) {
      SCOPED_TRACE("draw " + std::to_string(draw));
      const internal::schedule::Schedule before = ledger.schedule();
      const int64_t time = ledger.time(), peak = ledger.peak();
      for (size_t k = random() % 3 + 1; k > 0; --k) change();
      const bool runs = ledger.apply_changes();
      ASSERT_EQ(fresh.assign(ledger.schedule()), runs);
      if (runs) {
        ASSERT_EQ(fresh.runs(), ledger.runs());
        expect_costs_of_simulator(graph, ledger);
        const int64_t limit = ledger.peak() - static_cast<int64_t>(random() % 20);
        double excess = 0;
        for (const int64_t level : ledger.levels()) {
          excess += static_cast<double>(std::max<int64_t>(0, level - limit));
        }
        EXPECT_EQ(ledger.excess(limit), excess);
        expect_random_numbers_of_plain_training(graph, ledger);
      }
      if (runs && random() % 2 == 0) {
        ledger.commit();
        ++changed;
        continue;
      }
      refused += !runs;
      ledger.undo();
      ASSERT_EQ(ledger.schedule(), before);
      ASSERT_EQ(ledger.time(), time);
      ASSERT_EQ(ledger.peak(), peak);
      expect_costs_of_simulator(graph, ledger);
    }
  });
  EXPECT_GT(changed, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ScheduleLedgers, ::testing::ValuesIn(graph_families()),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace reprise::testing
