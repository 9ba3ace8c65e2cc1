// reprise train: the main job.
#include "training/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output.h"
#include "report_page.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/registry.h"
#include "reprise/report/text.h"

namespace reprise::cli {
namespace {

struct TrainArguments {
  ModelArguments model;
  runtime::AlternativeOptions alternatives;
  std::string data = "fashion-mnist", budget, mode = "auto", planner, time_limit = "10s",
              optimizer = "sgd", schedule = "constant", save_plan, save_profile, save_log, report;
  std::string micro_batches = "1", parts_from;
  int64_t steps = 0, epochs = 0, test = 2000;
  double rate = 0, momentum = 0;
  uint64_t seed = 1;
  bool consume_gradients = false, no_check = false, json = false, quiet = false;
};

// Medians of so many steps are in run logs.
constexpr int64_t kLoggedSteps = 5;

volatile sig_atomic_t interrupted = 0;

int64_t micro_batches(const std::string& text) {
  if (text == "auto") return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    throw InputError("--micro-batches must be a number from 1, or auto; not '" + text + "'");
  }
  return number;
}

training::TrainMode train_mode(const std::string& text) {
  if (text == "auto") return training::TrainMode::kAuto;
  if (text == "chain") return training::TrainMode::kChain;
  if (text == "graph") return training::TrainMode::kGraph;
  throw InputError("--mode must be auto, chain or graph, not '" + text + "'");
}

const char* name_of(training::TrainMode mode) {
  return mode == training::TrainMode::kGraph ? "graph" : "chain";
}

// Which mode was taken, in one line, where the user left it to the program.
void say_mode(training::TrainMode mode, const std::string& why_chain) {
  if (mode == training::TrainMode::kGraph) {
    say("graph mode: the step was captured (--mode chain plans the model's stages)");
  } else {
    say("chain mode: " + why_chain);
  }
}

// The first Ctrl-C ends training after the step under way; the second one ends the program.
void on_interrupt(int) {
  interrupted = 1;
  signal(SIGINT, SIG_DFL);
}

training::TrainOptions train_options(const TrainArguments& arguments) {
  training::TrainOptions options;
  options.model = model_config(arguments.model);
  options.data = arguments.data;
  options.budget = arguments.budget.empty() ? Budget() : Budget(arguments.budget);
  options.alternatives = arguments.alternatives;
  options.mode = train_mode(arguments.mode);
  options.planner = arguments.planner;
  options.time_limit = parse_duration(arguments.time_limit);
  options.steps = arguments.steps;
  options.epochs = std::max<int64_t>(1, arguments.epochs);
  options.optimizer =
      arguments.optimizer == "adam" ? training::OptimizerKind::kAdam : training::OptimizerKind::kSgd;
  options.learning_rate = arguments.rate;
  options.schedule = arguments.schedule == "linear" ? training::LearningRateSchedule::kLinear
                                                    : training::LearningRateSchedule::kConstant;
  options.momentum = arguments.momentum;
  options.consume_gradients = arguments.consume_gradients;
  options.micro_batches = micro_batches(arguments.micro_batches);
  options.parts_from = arguments.parts_from;
  options.seed = arguments.seed;
  options.check = !arguments.no_check;
  options.test_samples = arguments.test;
  if (!arguments.report.empty() || !arguments.save_log.empty()) options.log_steps = kLoggedSteps;
  return options;
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string milliseconds(Nanos time) {
  return fmt::format("{:.1f} ms", static_cast<double>(time.count()) / 1e6);
}

std::string overhead(Nanos time, Nanos plain) {
  return fmt::format("{:+.1f} %", percent(time.count(), plain.count()) - 100);
}

void row(std::string& text, const std::string& what, const std::string& plain,
         const std::string& planned, const std::string& note = "") {
  text += fmt::format("  {:<24}{:>18}{:>18}  {}\n", what, plain, planned, note);
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number), text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// What training in less memory gained and cost.
std::string report_text(const TrainArguments& arguments, const training::TrainReport& report) {
  const Plan& plan = *report.plan.plan;
  const bool plain = report.plain_peak.has_value();
  // Plain training of the whole batch, as far as it is known.
  const Baseline& baseline =
      report.tried.empty() ? report.plan.baseline : report.tried.front().result.baseline;
  const int64_t whole = plain ? report.plain_peak->count() : baseline.peak.count();
  std::string text =
      fmt::format("\n{} on {}, {} steps in {} mode\n\n", arguments.model.model, report.data,
                  report.steps, name_of(report.mode));
  row(text, "", "plain", "Reprise");
  if (arguments.budget.empty()) {
    row(text, "budget, bytes", "-", "none");
  } else {
    row(text, "budget, bytes", "-", with_commas(report.budget.count()),
        fmt::format("{:.1f} % of the plain peak", percent(report.budget.count(), whole)));
  }
  row(text, "peak predicted, bytes", "-", with_commas(report.predicted_peak.count()));
  row(text, "peak measured, bytes", plain ? with_commas(report.plain_peak->count()) : "-",
      with_commas(report.measured_peak.count()),
      report.peaks_equal ? "as predicted, to the byte" : "NOT as predicted");
  if (report.captured && report.captured->served > 0) {
    const runtime::CapturedStepReport& step = *report.captured;
    row(text, "arena, bytes", "-", with_commas(step.arena_height.count()),
        fmt::format("{:.2f} % above the live bytes; {} allocations in place a step, {} elsewhere",
                    percent(step.arena_height.count(), step.arena_live_bytes.count()) - 100,
                    step.served, report.fallbacks));
  }
  row(text, "memory saved", "-",
      fmt::format("{:.1f} %", 100 - percent(report.measured_peak.count(), whole)));
  if (plain) {
    row(text, "step, side by side", milliseconds(*report.plain_time),
        milliseconds(*report.planned_time),
        overhead(*report.planned_time, *report.plain_time) + ", in turn before training");
  }
  row(text, "step, predicted", milliseconds(baseline.time), milliseconds(plan.time),
      overhead(plan.time, baseline.time));
  row(text, "lower bound", "-", milliseconds(plan.lower_bound),
      fmt::format("{}, {} schedules", to_string(plan.termination), plan.schedule_class));
  if (report.tried.size() > 1 || report.parts > 1) {
    std::vector<int64_t> tried;
    for (const runtime::PartsTried& parts : report.tried) tried.push_back(parts.parts);
    row(text, "micro-batches", "1", std::to_string(report.parts),
        fmt::format("tried: {}", fmt::join(tried, ", ")));
  }
  if (report.gradients_equal) {
    const std::string what = arguments.consume_gradients ? "parameters" : "gradients";
    const std::string to = report.parts > 1 ? ", to accumulation by hand" : "";
    if (report.largest_difference) {
      row(text, "first step", "-", fmt::format("{:.1g} off", *report.largest_difference),
          fmt::format("loss, {}, of their largest element{}: rounding is allowed; {:.1g} if each "
                      "parameter moves by its last bit",
                      what, to, *report.last_bit_difference));
    } else {
      row(text, "first step", "-", *report.gradients_equal ? "equal" : "DIFFERENT",
          fmt::format("loss, {}{}, buffers, random state, bit by bit{}", what,
                      arguments.consume_gradients ? ", optimizer state" : "", to));
    }
  }
  row(text, "step, in training", "-", milliseconds(report.step_time));
  row(text, "loss, first to last", "-",
      fmt::format("{:.3f} to {:.3f}", report.first_loss, report.last_loss));
  if (report.accuracy) {
    row(text, "accuracy", "-", fmt::format("{:.1f} %", 100 * *report.accuracy),
        fmt::format("on {} test samples", report.tested));
  }
  return text;
}

nlohmann::ordered_json report_json(const TrainArguments& arguments,
                                   const training::TrainReport& report) {
  nlohmann::ordered_json json = {{"model", arguments.model.model},
                                 {"data", report.data},
                                 {"mode", name_of(report.mode)},
                                 {"steps", report.steps},
                                 {"stopped", report.stopped},
                                 {"budget_bytes", report.budget.count()},
                                 {"predicted_peak_bytes", report.predicted_peak.count()},
                                 {"measured_peak_bytes", report.measured_peak.count()},
                                 {"peaks_equal", report.peaks_equal},
                                 {"step_ns", report.step_time.count()},
                                 {"first_loss", report.first_loss},
                                 {"last_loss", report.last_loss}};
  if (report.plain_peak) {
    json["plain_peak_bytes"] = report.plain_peak->count();
    json["plain_step_ns"] = report.plain_time->count();
    json["compared_step_ns"] = report.planned_time->count();
  }
  if (report.gradients_equal) json["gradients_equal"] = *report.gradients_equal;
  if (report.largest_difference) {
    json["largest_difference"] = *report.largest_difference;
    json["last_bit_difference"] = *report.last_bit_difference;
  }
  json["micro_batches"] = report.parts;
  if (report.captured) {
    json["arena_bytes"] = report.captured->arena_height.count();
    json["arena_live_bytes"] = report.captured->arena_live_bytes.count();
    json["arena_served"] = report.captured->served;
    json["arena_fallbacks"] = report.fallbacks;
  }
  if (report.accuracy) {
    json["accuracy"] = *report.accuracy;
    json["test_samples"] = report.tested;
  }
  const Plan& plan = *report.plan.plan;
  json["plan"] = {{"planner", plan.planner},
                  {"termination", to_string(plan.termination)},
                  {"schedule_class", plan.schedule_class},
                  {"peak_bytes", plan.peak.count()},
                  {"time_ns", plan.time.count()},
                  {"lower_bound_ns", plan.lower_bound.count()},
                  {"baseline_peak_bytes", plan.baseline.peak.count()},
                  {"baseline_time_ns", plan.baseline.time.count()}};
  return json;
}

std::string step_text(const training::TrainStep& step) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {}  peak {}", step.number, step.of,
                                 step.loss, milliseconds(step.time), format_bytes(step.peak));
  if (step.budget != Budget().resolve(step.peak)) text += " of " + format_bytes(step.budget);
  return text;
}

// What else lowers the smallest budget, of what is not asked for already: ", or try ...".
std::string what_else(const TrainArguments& arguments, training::TrainMode mode) {
  if (mode == training::TrainMode::kChain) return ", or try --mode graph";
  std::vector<std::string> all;
  if (!arguments.consume_gradients) all.emplace_back("--consume-gradients");
  if (arguments.micro_batches == "1") all.emplace_back("--micro-batches auto");
  if (arguments.alternatives.allow == Exactness::kBitwise) all.emplace_back("--allow rounding");
  return all.empty() ? "" : fmt::format(", or try {}", fmt::join(all, " or "));
}

int infeasible(const training::TrainReport& report, const TrainArguments& arguments) {
  const PlanResult& result = report.plan;
  if (result.termination != Termination::kInfeasible) {
    complain(explain_no_plan(result) + "\nGive a longer --time-limit or a larger --budget.");
    return kOutOfTime;
  }
  const std::string larger =
      result.smallest_budget
          ? fmt::format("Ask for --budget {} or more", result.smallest_budget->count())
          : "Ask for a larger budget";
  complain(fmt::format("{}\n{}, make the batch smaller{}.", explain_no_plan(result), larger,
                       what_else(arguments, report.mode)));
  return kInfeasible;
}

// Of sums in another order, in float32, with room to spare; and so many times what the last bits of parameters do.
constexpr double kLargestRounding = 1e-3;
constexpr double kTimesLastBit = 10;

// A promise that does not hold is the program's failure, however good the numbers are.
int verdict(const training::TrainReport& report) {
  const bool same =
      report.largest_difference
          ? *report.largest_difference <=
                std::max(kLargestRounding, kTimesLastBit * *report.last_bit_difference)
          : report.gradients_equal.value_or(true);
  const bool kept = same && report.measured_peak <= report.budget;
  if (!kept) complain("the run broke its promise; please report this");
  return kept ? kDone : kBroken;
}

int run_train(const TrainArguments& arguments) {
  const bool is_chain = train_mode(arguments.mode) == training::TrainMode::kChain;
  validate_alternatives(arguments.alternatives, is_chain ? "chain" : "graph");
  if (!arguments.planner.empty()) find_planner(arguments.planner);
  if (arguments.optimizer != "sgd" && arguments.optimizer != "adam") {
    throw InputError("--optimizer must be sgd or adam, not '" + arguments.optimizer + "'");
  }
  if (arguments.schedule != "constant" && arguments.schedule != "linear") {
    throw InputError("--schedule must be constant or linear, not '" + arguments.schedule + "'");
  }
  if (arguments.consume_gradients && is_chain) {
    throw InputError(
        "--consume-gradients needs --mode graph: a chain of stages keeps its gradients");
  }
  if (arguments.micro_batches != "1" && is_chain) {
    throw InputError(
        "--micro-batches needs --mode graph: around a chain of stages, accumulate gradients in a "
        "loop");
  }
  if (!arguments.parts_from.empty() && arguments.micro_batches == "1") {
    throw InputError("--parts-from needs --micro-batches auto, or a number of them");
  }
  if (arguments.steps < 0 || arguments.epochs < 0 || arguments.test < 0 || arguments.rate < 0 ||
      arguments.momentum < 0 || arguments.momentum >= 1) {
    throw InputError(
        "--steps, --epochs, --test and --learning-rate must not be negative, --momentum must be in "
        "[0, 1)");
  }
  for (const std::string& path :
       {arguments.save_plan, arguments.save_profile, arguments.save_log, arguments.report}) {
    if (!path.empty()) require_writable(path);
  }
  training::TrainOptions options = train_options(arguments);
  StatusLine status(arguments.quiet);
  options.observer = status.observer();
  options.on_mode = [&](training::TrainMode mode, const std::string& why_chain) {
    if (arguments.quiet || arguments.mode != "auto") return;
    status.wipe();
    say_mode(mode, why_chain);
  };
  auto last_line = std::chrono::steady_clock::now() - std::chrono::hours(1);
  options.on_step = [&](const training::TrainStep& step) {
    if (arguments.quiet) return;
    const auto now = std::chrono::steady_clock::now();
    if (options.observer) {
      const double done = static_cast<double>(step.number) / static_cast<double>(step.of);
      options.observer({"train", done, step_text(step)});
    } else if (now - last_line > std::chrono::seconds(5) || step.number == step.of) {
      say(step_text(step));  // nobody watches a terminal: a line now and then
      last_line = now;
    }
  };
  signal(SIGINT, on_interrupt);
  options.stop = [] { return interrupted != 0; };

  const training::TrainReport report = training::train(options);
  status.wipe();
  if (!arguments.save_profile.empty())
    write_output(arguments.save_profile, to_json(report.profile));
  if (!report.plan.plan) return infeasible(report, arguments);
  if (!arguments.save_plan.empty()) write_output(arguments.save_plan, to_json(*report.plan.plan));
  if (!arguments.save_log.empty() && report.run_log) {
    write_output(arguments.save_log, to_json(*report.run_log));
  }
  if (!arguments.report.empty()) {
    ReportInput page{.problem = parse_problem(to_json(report.profile)), .plan = *report.plan.plan};
    page.run_log = report.run_log;
    write_output(arguments.report, report_page(page, kCurveLimit, arguments.quiet));
  }
  if (arguments.json) {
    print(report_json(arguments, report).dump(2) + "\n");
  } else {
    print(report_text(arguments, report));
  }
  if (report.stopped) say(fmt::format("stopped after step {}", report.steps));
  return verdict(report);
}

}  // namespace

void add_train(CLI::App& app, Handler& action) {
  CLI::App* command =
      app.add_subcommand("train", "train a model on real data inside a byte budget");
  command->footer(
      "Examples:\n"
      "  reprise train --model densenet121 --data fashion-mnist --budget 60% --steps 50\n"
      "  reprise train --model unet --mode chain --budget 50% --steps 50\n"
      "  reprise train --model gpt --micro-batches auto --budget 40% --steps 50\n"
      "  reprise train --model gpt --data corpus.txt --budget \"220 MiB\" --optimizer adam\n\n"
      "--budget is all device memory of a step: parameters, gradients, optimizer state, the "
      "batch.\n"
      "A share is of plain training's peak. Without a budget nothing runs again, and both are "
      "compared.");
  auto arguments = std::make_shared<TrainArguments>();
  add_model_options(*command, arguments->model);
  auto text = [&](const char* name, std::string& field, const char* help, const char* type) {
    command->add_option(name, field, help)->type_name(type);
  };
  text("--data", arguments->data,
       "fashion-mnist (default), synthetic, a folder of IDX files, or a text file", "DATA");
  text("--budget", arguments->budget, "bytes (\"700 MiB\") or a share (60%)", "BUDGET");
  text("--mode", arguments->mode,
       "graph: plan the operations of a captured step; chain: plan the model's stages; auto (default): graph "
       "where the step can be captured, else chain",
       "MODE");
  add_alternative_options(*command, arguments->alternatives);
  text("--planner", arguments->planner, "see `reprise planners` (default: the mode's name)",
       "NAME");
  text("--time-limit", arguments->time_limit, "of planning (default 10s)", "TIME");
  text("--optimizer", arguments->optimizer, "sgd (default) or adam", "NAME");
  text("--save,--save-plan", arguments->save_plan, "write the plan here", "FILE");
  text("--save-log", arguments->save_log,
       "write what the runs of a step took here (the median of five steps)", "FILE");
  text("--report", arguments->report, "write a page (HTML) of the plan and these runs here",
       "FILE");
  text("--save-profile", arguments->save_profile, "write what was measured here", "FILE");
  command->add_option("--steps", arguments->steps, "training steps")->type_name("N");
  command->add_option("--epochs", arguments->epochs, "passes over the data (default 1)")
      ->type_name("N")
      ->excludes("--steps");
  command
      ->add_option("--learning-rate", arguments->rate,
                   "default 0.05 for sgd (0.02 with momentum), 0.001 for adam")
      ->type_name("R");
  text("--schedule", arguments->schedule,
       "of the learning rate: constant (default), or linear (it falls to zero over the steps)", "NAME");
  command->add_option("--momentum", arguments->momentum, "of sgd (default 0)")->type_name("M");
  command->add_flag(
      "--consume-gradients", arguments->consume_gradients,
      "graph mode: update each parameter as soon as its gradient is complete, and free it");
  text("--micro-batches", arguments->micro_batches,
       "graph mode: parts of a step along the batch, a number (default 1) or auto; other sums and "
       "random "
       "numbers than the whole batch, the same bits as accumulating by hand",
       "N");
  text("--parts-from", arguments->parts_from,
       "with --micro-batches: the whole batch goes through the stages before this one", "STAGE");
  command->add_option("--test", arguments->test, "test samples at the end (default 2000; 0: none)")
      ->type_name("N");
  command->add_option("--seed", arguments->seed, "of weights, data order and dropout (default 1)")
      ->type_name("N");
  command->add_flag("--no-check", arguments->no_check,
                    "no plain step to compare with (it needs the full memory)");
  command->add_flag("--json", arguments->json, "the result as JSON");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  command->callback(
      [&action, arguments] { action = [arguments] { return run_train(*arguments); }; });
}

}  // namespace reprise::cli
