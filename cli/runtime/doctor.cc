// This file is the runtime's half of `reprise doctor`. It says what LibTorch on this machine can
// do, and tries one step of a model, plain and planned, in both modes.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "output.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "training/data.h"
#include "training/train.h"

namespace reprise::cli {
namespace {

struct DoctorArguments {
  ModelArguments model;
  std::string budget;
  bool json = false;
};

// A Finding says what is wrong, and what to do about it.
struct Finding {
  std::string what, advice;
};

// A Trial is one step of a model, plain and planned.
struct Trial {
  std::string mode;
  training::TrainReport report;
  std::string failure;  // empty: it ran

  bool planned() const { return failure.empty() && report.plan.plan.has_value(); }
  bool same_bits() const { return report.gradients_equal.value_or(false); }
  bool well() const {
    return planned() && same_bits() && report.measured_peak <= report.budget &&
           report.measured_peak <= report.predicted_peak;
  }
};

int cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : at::get_num_threads();
}

std::string accelerator() {
  const auto found = at::getAccelerator();
  return found ? c10::DeviceTypeName(*found) : "none";
}

// Describes the data set; the text is empty if there is none.
std::string fashion_mnist() {
  try {
    const training::Model model = training::make_model("mlp");
    return training::open_dataset("fashion-mnist", training::Split::kTest, model)->description();
  } catch (const std::exception&) {
    return {};
  }
}

// The budget is this share of plain training's peak. If no plan fits it, the smallest budget that
// the model's own stages allow is used.
constexpr const char* kUsualBudget = "70%";

Trial try_step(const training::ModelConfig& model, const std::string& budget, bool graph) {
  Trial trial{.mode = graph ? "graph" : "chain", .report = {}, .failure = {}};
  training::TrainOptions options;
  options.model = model;
  options.mode = graph ? training::TrainMode::kGraph : training::TrainMode::kChain;
  options.budget = budget.empty() ? kUsualBudget : budget;
  options.steps = 1;
  options.compare_steps = 1;
  options.test_samples = 0;
  options.time_limit = Nanos(3'000'000'000);
  try {
    trial.report = training::train(options);
    if (!trial.report.plan.plan && budget.empty() && trial.report.plan.smallest_budget) {
      options.budget = *trial.report.plan.smallest_budget;
      trial.report = training::train(options);
    }
  } catch (const BudgetError& error) {
    trial.failure = error.what();
  } catch (const InternalError& error) {
    trial.failure = error.what();
  }
  return trial;
}

std::string text_of(const Trial& trial) {
  if (!trial.failure.empty()) return "FAILED: " + trial.failure;
  const training::TrainReport& report = trial.report;
  if (!trial.planned()) {
    return fmt::format("no plan fits {} B{}", report.plan.budget.count(),
                       report.plan.smallest_budget
                           ? fmt::format("; {} B is the smallest that one was found for",
                                         report.plan.smallest_budget->count())
                           : std::string(" within the time limit"));
  }
  return fmt::format(
      "{} as plain training; peak predicted {} B, measured {} B, budget {} B{}",
      trial.same_bits() ? "same bits" : "NOT THE SAME BITS", report.predicted_peak.count(),
      report.measured_peak.count(), report.budget.count(),
      share_of_plain(report.budget, {.peak = report.plain_peak.value_or(Bytes()), .time = {}}));
}

void judge(const Trial& trial, std::vector<Finding>& findings) {
  auto add = [&](const std::string& what, const std::string& advice) {
    findings.push_back({trial.mode + " mode: " + what, advice});
  };
  const training::TrainReport& report = trial.report;
  const char* const please = "please report this output";
  if (!trial.failure.empty()) {
    add("the planned step failed", please);
  } else if (!trial.planned()) {
    add("there was no planned step", "ask for a larger --budget");
  } else if (!trial.same_bits() && report.plain_repeats == false) {
    add("plain training itself does not repeat its bits here",
        "use one thread (OMP_NUM_THREADS=1) and deterministic operations, and try again");
  } else if (!trial.same_bits()) {
    add("the planned step has other bits than the plain one", please);
  } else if (report.measured_peak > report.budget) {
    add("the measured peak is above the budget", please);
  } else if (report.measured_peak > report.predicted_peak) {
    add("the measured peak is above the predicted one", please);
  } else if (!report.peaks_equal) {
    add("the measured peak is below the predicted one", "known of recurrent models; harmless");
  }
}

std::vector<Finding> look_around(const std::string& data) {
  std::vector<Finding> findings;
  if (at::get_num_threads() > cores()) {
    findings.push_back(
        {fmt::format("LibTorch uses {} threads, and this process may use {} cores",
                     at::get_num_threads(), cores()),
         fmt::format("set OMP_NUM_THREADS={}: more are many times slower", cores())});
  }
  if (at::getAccelerator().has_value()) {
    findings.push_back({"an accelerator is there, and was not tried",
                        "budgets are planned for on it, and enforced on the CPU only"});
  }
  if (data.empty()) {
    findings.push_back({"the data set Fashion-MNIST is not there",
                        "use --data synthetic, or --data DIR with its four IDX files"});
  }
  return findings;
}

nlohmann::ordered_json json_of(const Trial& trial) {
  nlohmann::ordered_json json = {{"mode", trial.mode}, {"well", trial.well()}};
  if (!trial.failure.empty()) json["failure"] = trial.failure;
  const training::TrainReport& report = trial.report;
  json["planned"] = trial.planned();
  if (report.plan.smallest_budget) {
    json["smallest_budget_bytes"] = report.plan.smallest_budget->count();
  }
  if (!trial.planned()) return json;
  json["same_bits"] = trial.same_bits();
  json["budget_bytes"] = report.budget.count();
  json["plain_peak_bytes"] = report.plain_peak.value_or(Bytes()).count();
  json["predicted_peak_bytes"] = report.predicted_peak.count();
  json["measured_peak_bytes"] = report.measured_peak.count();
  if (!report.guards.empty()) json["guards"] = report.guards;
  return json;
}

int verdict(const std::vector<Trial>& trials, bool asked_for_a_budget) {
  int code = kDone;
  for (const Trial& trial : trials) {
    if (trial.well()) continue;
    if (!trial.failure.empty() || trial.planned() || !asked_for_a_budget) return kBroken;
    const auto& smallest = trial.report.plan.smallest_budget;
    complain(fmt::format("{} mode: {}", trial.mode, text_of(trial)));
    code = std::max<int>(code, smallest ? kInfeasible : kOutOfTime);
  }
  return code;
}

int run_doctor(const DoctorArguments& arguments) {
  runtime::install_cpu_allocator();
  training::ModelConfig model = {.model = "unet", .input = {4, 3, 64, 64}, .width = 16};
  if (!arguments.model.model.empty()) {
    model = model_config(arguments.model);
  } else {
    ModelArguments none;
    none.threads = arguments.model.threads;
    if (arguments.model != none) {
      throw InputError(
          "--input, --batch, --width and the like describe a model of your choice: name it with "
          "--model, or leave them out");
    }
    if (none.threads > 0) at::set_num_threads(none.threads);
  }
  const std::string data = fashion_mnist();
  std::vector<Finding> findings = look_around(data);
  std::vector<Trial> trials;
  for (const bool graph : {false, true}) {
    trials.push_back(try_step(model, arguments.budget, graph));
    judge(trials.back(), findings);
  }
  const int code = verdict(trials, !arguments.budget.empty());
  if (arguments.json) {
    nlohmann::ordered_json json = {{"version", REPRISE_VERSION},
                                   {"torch", TORCH_VERSION},
                                   {"threads", at::get_num_threads()},
                                   {"cpu_features", at::get_cpu_capability()},
                                   {"accelerator", accelerator()},
                                   {"cpu_allocator", runtime::cpu_allocator_installed()},
                                   {"fashion_mnist", !data.empty()},
                                   {"model", model.model},
                                   {"steps", nlohmann::ordered_json::array()},
                                   {"findings", nlohmann::ordered_json::array()},
                                   {"well", code == kDone}};
    for (const Trial& trial : trials) json["steps"].push_back(json_of(trial));
    for (const Finding& finding : findings) {
      json["findings"].push_back({{"what", finding.what}, {"advice", finding.advice}});
    }
    print(json.dump(2) + "\n");
    return code;
  }
  std::string text =
      fmt::format("LibTorch   {} ({} threads)\n", TORCH_VERSION, at::get_num_threads());
  text += fmt::format("features   {}\n", at::get_cpu_capability());
  text += fmt::format("device     CPU; accelerator: {}\n", accelerator());
  text += fmt::format("allocator  {}\n",
                      runtime::cpu_allocator_installed() ? "counts and enforces" : "NOT INSTALLED");
  text += fmt::format("data       {}\n", data.empty() ? "Fashion-MNIST is not there" : data);
  text += fmt::format("\none step of {}:\n", model.model);
  for (const Trial& trial : trials) text += fmt::format("  {}  {}\n", trial.mode, text_of(trial));
  for (const Trial& trial : trials) {
    if (trial.report.guards.empty()) continue;
    text += fmt::format("  compared before each captured step: inputs, modules, {}\n",
                        fmt::join(trial.report.guards, ", "));
  }
  for (const Finding& finding : findings) {
    text += fmt::format("\n- {}\n  {}\n", finding.what, finding.advice);
  }
  print(text + (code == kDone ? "\nall is well\n" : "\nsomething is wrong\n"));
  return code;
}

}  // namespace

void add_runtime_doctor(CLI::App& app, Handler& action) {
  CLI::App* command = app.add_subcommand("doctor", "what LibTorch on this machine can do");
  command->footer(
      "Examples:\n  reprise doctor\n  reprise doctor --model gpt --input 2x64 --width 64 --layers "
      "2 --heads 2 --budget 90%");
  auto arguments = std::make_shared<DoctorArguments>();
  add_model_options(*command, arguments->model);
  command->get_option("--model")->required(false);
  command
      ->add_option("--budget", arguments->budget,
                   "of the planned steps (default: 70%, or what is possible)")
      ->type_name("BUDGET");
  command->add_flag("--json", arguments->json, "for machines");
  command->callback(
      [&action, arguments] { action = [arguments] { return run_doctor(*arguments); }; });
}

}  // namespace reprise::cli
