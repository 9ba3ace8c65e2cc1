// Measures how long it takes to plan a chain, in how much memory, and how good the plan is.
// Reprise's planners stand beside the published solver, on the same chains, in one run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "common/run_info.h"
#include "families.h"
#include "measure.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "tables.h"

namespace reprise::bench {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> families = family_names();
  std::vector<size_t> lengths{50, 100, 200, 340, 1000, 4000};
  std::vector<size_t> curve_lengths{50, 100, 200};
  double curve_limit = 60;  // s
  uint64_t seed = 1;
  std::string chain_folder, output, json_output;
  bool quick = false;
  MeasureOptions measure;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("files", a.files,
                 "Chains, or what reprise profile writes (JSON), instead of the families");
  app.add_option("--families", a.families, "Separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(family_names()))
      ->capture_default_str();
  app.add_option("--lengths", a.lengths, "Stages of the families' chains")
      ->delimiter(',')
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  app.add_option("--curve-lengths", a.curve_lengths,
                 "Those whose whole curve is timed, too; of files, up to the longest of them")
      ->delimiter(',')
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  app.add_option("--budgets", a.measure.budgets, "Shares of plain training's peak")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--time-limit", a.measure.time_limits, "Seconds, one or several, of each search")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--slots", a.measure.slots, "Of the published solver")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--published-limit", a.measure.published_seconds,
                 "Seconds; the published solver is left out where it would take longer")
      ->capture_default_str();
  app.add_option("--threads", a.measure.threads, "Of the planners (0: as many as the machine has)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", a.seed, "Of the families")->capture_default_str();
  app.add_flag("--quick", a.quick, "Short chains, to see that it works; its times mean nothing");
  app.add_option("--write-chains", a.chain_folder,
                 "Write the families' chains to this folder (JSON) and measure nothing");
  app.add_option("-o,--output", a.output, "Markdown goes to this file (default: standard output)");
  app.add_option("--json", a.json_output, "All figures go to this file, too");
}

void shorten(Arguments& a) {
  a.lengths = {12, 30};
  a.curve_lengths = {12};
  a.measure.time_limits = {1};
}

class Bench {
 public:
  Bench(const Arguments& arguments, RunInfo info) : a_(arguments), info_(std::move(info)) {}

  int run() {
    if (!a_.chain_folder.empty()) return write_chains();
    if (a_.files.empty()) {
      run_families();
    } else {
      for (const std::string& file : a_.files) measure_file(file);
    }
    if (a_.output.empty()) std::cout << markdown(info_, results_);
    return failed_ ? 1 : 0;
  }

 private:
  // Reads a chain or the profile of one. A profile also says on what machine it was measured.
  void measure_file(const std::string& file) {
    const Problem problem = load_problem(file);
    if (problem.chain() == nullptr) throw InputError(file + " holds no chain");
    Chain chain = *problem.chain();
    const std::string stem = std::filesystem::path(file).stem().string();
    chain.name =
        chain.name.empty() || chain.name == stem ? stem : fmt::format("{} ({})", chain.name, stem);
    measure_one(chain, origin_of(file));
    const auto longest = std::max_element(a_.curve_lengths.begin(), a_.curve_lengths.end());
    if (longest != a_.curve_lengths.end() && chain.stages.size() <= *longest) measure_curves(chain);
  }

  static std::string origin_of(const std::string& file) {
    std::ifstream stream(file);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    try {
      const Profile profile = parse_profile(text, file);
      return fmt::format(
          "The profile was measured on {}, with {} threads and {}.\nThe inputs are {}.",
          profile.device, profile.threads, fmt::join(versions_of(profile), ", "),
          fmt::join(profile.inputs, ", "));
    } catch (const InputError&) {
      return "Not measured: a chain.";  // load_problem() has read it
    }
  }

  static std::vector<std::string> versions_of(const Profile& profile) {
    std::vector<std::string> versions;
    for (const auto& [name, version] : profile.versions) versions.push_back(name + " " + version);
    return versions;
  }

  int write_chains() const {
    for (const size_t length : a_.lengths) {
      for (const std::string& family : a_.families) {
        const Chain chain = make_chain(family, length, a_.seed);
        write_file(fmt::format("{}/{}_{}.json", a_.chain_folder, family, length), to_json(chain));
      }
    }
    return 0;
  }

  void run_families() {
    for (const size_t length : a_.lengths) {
      for (const std::string& family : a_.families) {
        measure_one(make_chain(family, length, a_.seed));
      }
    }
    for (const size_t length : a_.curve_lengths) {
      for (const std::string& family : a_.families) {
        measure_curves(make_chain(family, length, a_.seed));
      }
    }
  }

  void measure_curves(const Chain& chain) {
    a_.measure.progress(chain.name + ": the whole curve");
    for (const char* schedules : {"persistent", "persistent+dropped-inputs"}) {
      results_.curves.push_back(
          measure_curve(chain, schedules, a_.curve_limit, a_.measure.threads));
    }
    write();
  }

  // A chain that fails leaves the other chains' figures alone.
  void measure_one(const Chain& chain, const std::string& origin = {}) {
    try {
      results_.chains.push_back(measure(chain, a_.measure));
      results_.chains.back().origin = origin;
    } catch (const std::exception& e) {
      std::cerr << chain.name << ": " << e.what() << "\n";
      failed_ = true;
    }
    write();  // after every chain, so that an interrupted run keeps what it has
  }

  void write() const {
    if (!a_.output.empty()) write_file(a_.output, markdown(info_, results_));
    if (!a_.json_output.empty()) write_file(a_.json_output, json(info_, results_));
  }

  const Arguments& a_;
  RunInfo info_;
  Results results_;
  bool failed_ = false;
};

int run(int argc, char** argv) {
  CLI::App app{"Planning chains: time, memory and quality of the search."};
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (arguments.quick) shorten(arguments);
  const auto begin = std::chrono::steady_clock::now();
  arguments.measure.progress = [begin](const std::string& what) {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
    std::cerr << fmt::format("[{:7.1f} s] {}\n", now.count(), what);
  };
  const RunInfo info = run_info("reprise_bench_chain_plan", argc, argv, arguments.measure.threads,
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
