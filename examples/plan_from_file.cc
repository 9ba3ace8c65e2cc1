// Plans a chain at several budgets and prints what each costs. Needs the core only: no framework,
// no model, no accelerator.
//
//   plan_from_file                 a small chain that is built below
//   plan_from_file resnet18.json   a chain from a file
#include <reprise/reprise.h>

#include <cstdio>
#include <string>

namespace {

// Twelve convolution-like stages: activations shrink, work grows towards the end.
reprise::Chain example_chain() {
  using reprise::Bytes;
  using reprise::Nanos;
  constexpr int64_t kMiB = 1 << 20;
  reprise::Chain chain;
  chain.name = "example";
  chain.fixed = Bytes(20 * kMiB);  // parameters and optimizer state
  chain.input.bytes = Bytes(4 * kMiB);
  for (int i = 0; i < 12; ++i) {
    const int64_t output = (32 * kMiB) >> (i / 4);
    const int64_t work = 1'000'000 + 250'000 * i;
    reprise::Stage stage;
    stage.name = "block" + std::to_string(i);
    stage.output = Bytes(output);
    stage.weight_gradient = Bytes(kMiB << (i / 4));
    stage.forward = {.time = Nanos(work), .workspace = Bytes(2 * kMiB)};

    reprise::StageOption keep;  // run forward so that the backward can run later
    keep.saved = Bytes(2 * output);
    keep.forward = stage.forward;
    keep.backward = {.time = Nanos(2 * work), .workspace = Bytes(4 * kMiB)};
    stage.options = {keep};
    chain.stages.push_back(stage);
  }
  return chain;
}

void print_row(const std::string& budget, const reprise::PlanResult& result) {
  if (!result.plan) {
    const std::string floor =
        result.smallest_budget ? reprise::format_bytes_exact(*result.smallest_budget) : "unknown";
    std::printf("%8s  %s; the smallest budget is %s, set by %s\n", budget.c_str(),
                reprise::to_string(result.termination), floor.c_str(), result.blocking_op.c_str());
    return;
  }
  const reprise::Plan& plan = *result.plan;
  const double overhead = 100.0 * static_cast<double>((plan.time - plan.baseline.time).count()) /
                          static_cast<double>(plan.baseline.time.count());
  std::printf("%8s  %-9s peak %-11s time %-9s (%+.1f %%), %zu actions\n", budget.c_str(),
              reprise::to_string(result.termination), reprise::format_bytes(plan.peak).c_str(),
              reprise::format_duration(plan.time).c_str(), overhead, plan.actions.size());
}

// [plan]
// The fastest schedule of one training step that fits, for several shares of plain training's peak.
void plan_at_several_budgets(const reprise::Chain& chain) {
  for (const std::string budget : {"100%", "80%", "60%", "40%", "20%"}) {
    const reprise::PlanResult result = reprise::plan(chain, {.budget = budget});
    print_row(budget, result);
  }
}
// [/plan]

// [check]
// Plans are checked before they are returned. A plan from elsewhere can be checked the same way.
bool check(const reprise::Chain& chain, const reprise::Plan& plan) {
  const reprise::Graph graph = reprise::lower(chain);
  for (const reprise::Violation& violation : reprise::verify(graph, plan, plan.budget)) {
    std::printf("%s\n", violation.message.c_str());
    return false;
  }
  return reprise::simulate(graph, plan).peak == plan.peak;
}
// [/check]

int run(const reprise::Chain& chain) {
  const reprise::Baseline plain = reprise::baseline(reprise::lower(chain));
  std::printf("%s: %zu stages; plain training peaks at %s and takes %s\n\n", chain.name.c_str(),
              chain.stages.size(), reprise::format_bytes_exact(plain.peak).c_str(),
              reprise::format_duration(plain.time).c_str());
  plan_at_several_budgets(chain);

  const reprise::Frontier curve = reprise::frontier(chain);
  std::printf("\nthe whole curve has %zu points, from %s to %s\n", curve.points.size(),
              reprise::format_bytes(curve.points.front().budget).c_str(),
              reprise::format_bytes(curve.points.back().budget).c_str());

  const reprise::PlanResult least = reprise::plan(chain, {.budget = curve.points.front().budget});
  return least.plan && check(chain, *least.plan) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? reprise::load_chain(argv[1]) : example_chain());
  } catch (const reprise::Error& error) {
    std::fprintf(stderr, "plan_from_file: %s\n", error.what());
    return 2;
  }
}
