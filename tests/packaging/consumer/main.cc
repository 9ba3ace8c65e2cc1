// Reads, plans, verifies and writes, so that something of every part of the library has to be
// linked.
#include <reprise/reprise.h>

#include <cstdio>

int main() {
  const reprise::Chain chain = reprise::parse_chain(R"({"format": "reprise.chain", "version": 1,
    "name": "c", "input": {"bytes": 10}, "stages": [{"name": "s", "output_bytes": 20,
    "forward": {"ns": 1}, "options": [{"name": "keep", "saved_bytes": 7, "forward": {"ns": 1},
    "backward": {"ns": 2}}]}]})");
  const reprise::PlanResult result = reprise::plan(chain, {.budget = "100%"});
  if (!result.plan) return 1;
  const reprise::Graph graph = reprise::lower(chain);
  if (!reprise::verify(graph, *result.plan, result.budget).empty()) return 2;
  try {
    reprise::parse_plan("{}", "plan.json");
    return 3;
  } catch (const reprise::InputError& error) {  // thrown in the library, caught here
    if (error.where().file != "plan.json") return 4;
  }
  std::printf("peak %lld of %zu bytes of file\n", static_cast<long long>(result.plan->peak.count()),
              reprise::to_json(*result.plan).size());
  return 0;
}
