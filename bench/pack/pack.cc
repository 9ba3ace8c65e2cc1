// Measures how low blocks of memory are packed and how long that takes, on plans and on random
// blocks, in one run. Reprise's pack() stands beside an allocator that serves each request when it
// comes.
#include "reprise/pack/pack.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/run_info.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/pack/pages.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/plan/plan.h"

namespace reprise::bench {
namespace {

struct Instance {
  std::string name;
  std::vector<Block> blocks;
};

int64_t between(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

Chain random_chain(size_t stages) {
  std::mt19937_64 random(1);
  Chain chain;
  chain.name = fmt::format("random_{}", stages);
  chain.input = {Bytes(1 << 20), Bytes(0)};
  for (size_t k = 0; k < stages; ++k) {
    Stage stage;
    stage.name = fmt::format("s{}", k);
    stage.output = Bytes(between(random, 1 << 18, 1 << 22));
    stage.weight_gradient = Bytes(between(random, 0, 1 << 18));
    stage.forward = {Nanos(between(random, 100, 1000)), Bytes(between(random, 0, 1 << 21))};
    StageOption option;
    option.saved = Bytes(between(random, 0, 1 << 23));
    option.forward = stage.forward;
    option.backward = {Nanos(between(random, 200, 2000)), Bytes(between(random, 0, 1 << 22))};
    stage.options = {option};
    chain.stages.push_back(stage);
  }
  return chain;
}

void add_plans(const Chain& chain, const std::string& planner, const std::vector<int>& shares,
               std::vector<Instance>& instances) {
  const Graph graph = lower(chain);
  for (const int share : shares) {
    PlanOptions options;
    options.budget = fmt::format("{}%", share);
    options.planner = planner;
    options.time_limit = Nanos(2'000'000'000);
    const PlanResult result = plan(chain, options);
    if (!result.plan) continue;
    instances.push_back({fmt::format("plan of {}, {} %", chain.name, share),
                         plan_blocks(graph, result.plan->actions)});
  }
}

Instance random_instance(int count, int64_t longest) {
  std::mt19937_64 random(static_cast<uint64_t>(count));
  Instance instance{fmt::format("random, lives up to {}", longest), {}};
  for (int k = 0; k < count; ++k) {
    const int64_t begin = between(random, 0, 2 * count);
    instance.blocks.push_back(
        {Bytes(between(random, 1, 100'000)), begin, begin + between(random, 1, longest)});
  }
  return instance;
}

// Every time has the same number of live bytes. No instance is harder.
Instance full_instance(int64_t times, int64_t bytes, int64_t longest) {
  std::mt19937_64 random(1);
  Instance instance{fmt::format("full, lives up to {}", longest), {}};
  std::vector<int64_t> room(static_cast<size_t>(times), bytes);
  for (;;) {
    const auto begin = std::max_element(room.begin(), room.end());
    if (*begin == 0) return instance;
    const int64_t most = between(random, 1, longest);
    int64_t least = *begin;
    auto end = begin + 1;
    for (; end != room.end() && end - begin<most&& * end> 0; ++end) least = std::min(least, *end);
    const int64_t size = between(random, 1, std::min(least, bytes / 4));
    for (auto at = begin; at != end; ++at) *at -= size;
    instance.blocks.push_back({Bytes(64 * size), begin - room.begin(), end - room.begin()});
  }
}

std::vector<Instance> instances_of(const std::string& folder, bool fast) {
  std::vector<Instance> instances;
  for (const char* name : {"gpt_like", "resnet18_like", "cnn_100", "random_100", "noisy_100"}) {
    add_plans(load_chain(fmt::format("{}/{}.json", folder, name)), "chain", {100, 60, 30},
              instances);
    if (fast) break;
  }
  if (!fast) {
    add_plans(random_chain(800), "chain_slots", {100, 50, 20}, instances);
    add_plans(random_chain(2500), "keep_all", {100}, instances);
    add_plans(random_chain(2500), "chain_slots", {50}, instances);
  }
  for (const auto& [count, longest] : std::vector<std::pair<int, int64_t>>{
           {100, 20}, {100, 200}, {300, 200}, {1000, 20}, {1000, 200}, {10'000, 100}}) {
    if (!fast || count <= 100) instances.push_back(random_instance(count, longest));
  }
  if (!fast) instances.push_back(full_instance(30, 100, 10));
  if (!fast) instances.push_back(full_instance(60, 200, 20));
  return instances;
}

// Puts each block at the lowest gap when it is asked for, in order of time. Nothing is known of
// later requests.
Bytes online_first_fit(const std::vector<Block>& blocks) {
  std::vector<size_t> order;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (blocks[k].begin < blocks[k].end && blocks[k].bytes > Bytes(0)) order.push_back(k);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
  std::set<std::pair<int64_t, size_t>> live;  // sorted by offset
  std::set<std::pair<int64_t, size_t>> ends;
  std::vector<int64_t> offsets(blocks.size());
  const auto rounded = [&](size_t k) { return (blocks[k].bytes.count() + 63) / 64 * 64; };
  int64_t height = 0;
  for (const size_t k : order) {
    while (!ends.empty() && ends.begin()->first <= blocks[k].begin) {
      live.erase({offsets[ends.begin()->second], ends.begin()->second});
      ends.erase(ends.begin());
    }
    int64_t offset = 0;
    for (const auto& [at, other] : live) {
      if (at - offset >= rounded(k)) break;
      offset = std::max(offset, at + rounded(other));
    }
    offsets[k] = offset;
    live.insert({offset, k});
    ends.insert({blocks[k].end, k});
    height = std::max(height, offset + rounded(k));
  }
  return Bytes(height);
}

// Returns the best of three runs, or of fewer if the runs are slow.
template <class Work>
double milliseconds(Work&& work) {
  double best = 1e12, total = 0;
  for (int run = 0; run < 3 && total < 500; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
    total += time.count();
  }
  return best;
}

// Throws InternalError for a packing that is not valid, as pack() and in_pages() themselves do.
std::string row(const Instance& instance) {
  PackOptions quick;
  quick.steps = 0;
  Packing heuristic, full;
  PagedPacking paged;
  const double heuristic_ms = milliseconds([&] { heuristic = pack(instance.blocks, quick); });
  const double paged_ms = milliseconds([&] { paged = in_pages(instance.blocks, heuristic); });
  const double full_ms = milliseconds([&] { full = pack(instance.blocks); });
  for (const Packing* packing : {&heuristic, &full}) {
    if (!verify_packing(instance.blocks, *packing).empty()) throw InternalError("not valid");
  }
  const auto ratio = [&](Bytes height) {
    return static_cast<double>(height.count()) / static_cast<double>(full.live_bytes.count());
  };
  return fmt::format(
      "| {} | {} | {} | {:.4f} | {:.4f} | {:.2f} | {:.4f} | {:.2f} | "
      "{:.4f} | {:.2f} | {} | {} |\n",
      instance.name, instance.blocks.size(), full.live_bytes.count(),
      ratio(online_first_fit(instance.blocks)), ratio(heuristic.height), heuristic_ms,
      ratio(paged.height), paged_ms, ratio(full.height), full_ms, full.method,
      full.proven_optimal() ? "optimal" : "");
}

int run(int argc, char** argv) {
  CLI::App app("How low and how fast blocks of memory are packed");
  std::string folder = "data/instances/chains", output;
  bool fast = false;
  app.add_option("--chains", folder, "Folder of the stored chains")->capture_default_str();
  app.add_flag("--quick", fast, "A few small instances, to see that it works");
  app.add_option("-o,--output", output, "Markdown goes to this file (default: standard output)");
  CLI11_PARSE(app, argc, argv);
  const RunInfo info =
      run_info("reprise_bench_pack", argc, argv, 1, REPRISE_BENCH_BUILD " build");
  std::string text = fmt::format(
      "# Packing: height of the arena, and time\n\n"
      "A program writes this file, so do not edit it.\n"
      "[Packing](../packing.md#measured) says what the columns are.\n"
      "This command writes the file again:\n\n"
      "{}\n- {}\n\n"
      "| blocks of | blocks | live bytes | online first fit | heuristics | ms | in pages | ms | "
      "pack() | ms | found by | |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|\n",
      as_code_block(info.command), measured(info));
  for (const Instance& instance : instances_of(folder, fast)) {
    text += row(instance);
    std::cerr << instance.name << "\n";
  }
  if (output.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(output);
  file << text;
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  try {
    return reprise::bench::run(argc, argv);
  } catch (const reprise::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
