// Measures how long it takes to plan a graph of operations, and how good the plan is. The planners
// of graphs run on training steps of known networks, or on files, in one run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "common/run_info.h"
#include "measure.h"
#include "networks.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "tables.h"

namespace reprise::bench {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> networks = network_names();
  std::string graph_folder, output, json_output;
  bool quick = false;
  MeasureOptions measure = {};
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("files", a.files,
                 "Graphs, chains or profiles of them (JSON) instead of the networks");
  app.add_option("--networks", a.networks, "Separated by commas; gpt<layers> for any depth")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--budgets", a.measure.budgets, "Shares of plain training's peak")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_flag("--above-fixed", a.measure.above_fixed,
               "Shares of what plain training holds above the fixed bytes, such as parameters");
  app.add_option("--planners", a.measure.planners, "Separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--time-limit", a.measure.time_limit, "Seconds, of each search")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--threads", a.measure.threads, "Of the planners (0: as many as the machine has)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--channel", a.measure.channel,
                 "Planners that move values have channels to a second memory: this multiple of the "
                 "bandwidth that carries all saved bytes in the time of the forward")
      ->check(CLI::Range(0.0, 1e3));
  app.add_flag("--quick", a.quick, "Small graphs, to see that it works; its times mean nothing");
  app.add_option("--write-graphs", a.graph_folder,
                 "Write the networks' graphs to this folder (JSON) and measure nothing");
  app.add_option("-o,--output", a.output, "Markdown goes to this file (default: standard output)");
  app.add_option("--json", a.json_output, "All figures go to this file, too");
}

Problem problem_of(const std::string& file) {
  reprise::Problem problem = load_problem(file);
  Problem found;
  if (Graph* graph = std::get_if<Graph>(&problem.model)) {
    found.graph = std::move(*graph);
  } else if (Chain* chain = std::get_if<Chain>(&problem.model)) {
    found.graph = lower(*chain);
    found.chain = std::move(*chain);
  } else {
    throw InputError(file + " holds no graph and no chain");
  }
  found.graph.name = file;
  return found;
}

class Bench {
 public:
  Bench(const Arguments& arguments, RunInfo info) : a_(arguments), info_(std::move(info)) {}

  int run() {
    if (!a_.graph_folder.empty()) return write_graphs();
    if (a_.files.empty()) {
      for (const std::string& name : a_.networks) measure_one({make_network(name)});
    } else {
      for (const std::string& file : a_.files) measure_one(problem_of(file));
    }
    if (a_.output.empty()) std::cout << markdown(info_, results_);
    return failed_ ? 1 : 0;
  }

 private:
  int write_graphs() const {
    for (const std::string& name : a_.networks) {
      write_file(fmt::format("{}/{}.json", a_.graph_folder, name), to_json(make_network(name)));
    }
    return 0;
  }

  // A graph that fails leaves the other graphs' figures alone.
  void measure_one(const Problem& problem) {
    try {
      results_.push_back(measure(problem, a_.measure));
    } catch (const std::exception& e) {
      std::cerr << problem.graph.name << ": " << e.what() << "\n";
      failed_ = true;
    }
    // The results are written after every graph, so that an interrupted run keeps what it has.
    if (!a_.output.empty()) write_file(a_.output, markdown(info_, results_));
    if (!a_.json_output.empty()) write_file(a_.json_output, json(info_, results_));
  }

  const Arguments& a_;
  RunInfo info_;
  std::vector<GraphResult> results_;
  bool failed_ = false;
};

int run(int argc, char** argv) {
  CLI::App app{"Planning graphs of operations: time and quality of the search."};
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (arguments.quick) {
    arguments.networks = {"gpt2", "unet_attention", "vgg16"};
    arguments.measure.budgets = {0.7, 0.4};
    arguments.measure.time_limit = 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  arguments.measure.progress = [begin](const std::string& what) {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
    std::cerr << fmt::format("[{:7.1f} s] {}\n", now.count(), what);
  };
  const RunInfo info = run_info("reprise_bench_graph_plan", argc, argv, arguments.measure.threads,
                                REPRISE_BENCH_BUILD " build");
  return Bench(arguments, info).run();
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  try {
    return reprise::bench::run(argc, argv);
  } catch (const reprise::InputError& e) {
    std::cerr << e.what() << "\n";
    return 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
