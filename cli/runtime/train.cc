// This file has `reprise train`, the main job.
#include "training/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "commands.h"
#include "output.h"
#include "report_page.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/registry.h"
#include "reprise/report/text.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/process_group.h"
#include "train_report.h"

namespace reprise::cli {
namespace {

struct TrainArguments {
  ModelArguments model;
  runtime::AlternativeOptions alternatives;
  std::string data, budget, mode = "auto", planner, time_limit = "10s", optimizer = "sgd",
                            schedule = "constant", save_plan, save_profile, save_log, save_machine,
                            report, state;
  std::string micro_batches = "1", parts_from, offload, machine;
  std::optional<int64_t> steps;
  int64_t epochs = 1, test = 2000, save_every = 0;
  std::optional<double> rate;
  double momentum = 0;
  uint64_t seed = 1;
  bool offload_optimizer = false, offload_parameters = false;
  bool consume_gradients = false, shard_optimizer = false, no_check = false, json = false,
       quiet = false;
};

// A run log has the medians of this many steps.
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
  if (text == "online") return training::TrainMode::kOnline;
  throw InputError("--mode must be auto, chain, graph or online, not '" + text + "'");
}

training::OptimizerKind optimizer_kind(const std::string& text) {
  if (text == "sgd") return training::OptimizerKind::kSgd;
  if (text == "adam") return training::OptimizerKind::kAdam;
  throw InputError("--optimizer must be sgd or adam, not '" + text + "'");
}

training::LearningRateSchedule rate_schedule(const std::string& text) {
  if (text == "constant") return training::LearningRateSchedule::kConstant;
  if (text == "linear") return training::LearningRateSchedule::kLinear;
  throw InputError("--schedule must be constant or linear, not '" + text + "'");
}

// Says in one line which mode was taken, if the user left the choice to the program.
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

// Returns the data that suits a model: no text is at hand everywhere, and the images mostly are.
std::string default_data(const std::string& model) {
  for (const training::ModelInfo& each : training::models()) {
    if (each.name == model && std::string_view(each.task) == "text") return "synthetic";
  }
  return "fashion-mnist";
}

void require_number(const char* option, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw InputError(fmt::format("{} is a number from 0 on, not {}", option, value));
}

training::TrainOptions train_options(const TrainArguments& arguments) {
  training::TrainOptions options;
  options.model = model_config(arguments.model);
  options.data = arguments.data.empty() ? default_data(options.model.model) : arguments.data;
  options.budget = arguments.budget.empty() ? Budget() : Budget(arguments.budget);
  options.alternatives = arguments.alternatives;
  options.mode = train_mode(arguments.mode);
  options.planner = arguments.planner;
  options.time_limit = parse_duration(arguments.time_limit);
  if (arguments.steps && *arguments.steps < 1) {
    throw InputError(fmt::format("--steps is a number from 1 on, not {}", *arguments.steps));
  }
  options.steps = arguments.steps.value_or(0);
  options.epochs = arguments.epochs;
  options.optimizer = optimizer_kind(arguments.optimizer);
  if (arguments.rate && !(std::isfinite(*arguments.rate) && *arguments.rate > 0)) {
    throw InputError(fmt::format("--learning-rate is a number above 0, not {}", *arguments.rate));
  }
  options.learning_rate = arguments.rate.value_or(0);
  options.schedule = rate_schedule(arguments.schedule);
  require_number("--momentum", arguments.momentum);
  if (arguments.momentum > 0 && arguments.optimizer != "sgd") {
    throw InputError("--momentum is for --optimizer sgd: leave it out, or train with sgd");
  }
  options.momentum = arguments.momentum;
  options.offload.to = arguments.offload;
  if (!arguments.machine.empty()) {
    if (arguments.offload.empty()) {
      throw InputError(
          "--machine says how fast a disk is, and not where: add --offload disk:DIRECTORY");
    }
    options.offload.machine = load_machine(arguments.machine);
  }
  options.offload_optimizer = arguments.offload_optimizer;
  options.offload_parameters = arguments.offload_parameters;
  options.consume_gradients = arguments.consume_gradients;
  options.shard_optimizer = arguments.shard_optimizer;
  options.micro_batches = micro_batches(arguments.micro_batches);
  options.parts_from = arguments.parts_from;
  options.seed = arguments.seed;
  options.state = arguments.state;
  options.save_every = arguments.save_every;
  options.check = !arguments.no_check;
  options.test_samples = arguments.test;
  if (!arguments.report.empty() || !arguments.save_log.empty()) options.log_steps = kLoggedSteps;
  return options;
}

// Names further options that lower the smallest budget and are not set yet: ", or try ...".
std::string what_else(const TrainArguments& arguments, training::TrainMode mode) {
  if (mode == training::TrainMode::kChain) return ", or try --mode graph";
  std::vector<std::string> all;
  if (!arguments.consume_gradients) all.emplace_back("--consume-gradients");
  const bool has_disk = arguments.offload.rfind("disk:", 0) == 0;
  const bool has_state = arguments.optimizer != "sgd" || arguments.momentum > 0;
  if (arguments.consume_gradients && has_disk && has_state && !arguments.offload_optimizer) {
    all.emplace_back("--offload-optimizer");
  }
  if (arguments.consume_gradients && has_disk && !arguments.offload_parameters) {
    all.emplace_back("--offload-parameters");
  }
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
  const std::string larger = result.smallest_budget ? fmt::format("Ask for --budget {} or more",
                                                                  result.smallest_budget->count())
                                                    : "Ask for a larger budget";
  complain(fmt::format("{}\n{}, make the batch smaller{}.", explain_no_plan(result), larger,
                       what_else(arguments, report.mode)));
  return kInfeasible;
}

// Sums in different orders may differ by kLargestRounding in float32, which is a generous limit.
// They may also differ by kTimesLastBit times the effect of the last bits of the parameters.
constexpr double kLargestRounding = 1e-3;
constexpr double kTimesLastBit = 10;

// A broken promise is the program's failure, however good the numbers are.
int verdict(const training::TrainReport& report) {
  const bool same =
      report.largest_difference
          ? *report.largest_difference <=
                std::max(kLargestRounding, kTimesLastBit * *report.last_bit_difference)
          : report.gradients_equal.value_or(true);
  // Approximate alternatives promise their bounds, and a forward with plain training's bits.
  bool within = std::ranges::all_of(report.approximate, &training::ApproximateUse::within_bounds);
  if (!report.largest_difference) within &= report.approximate_forward_equal.value_or(true);
  const bool kept = same && within && report.measured_peak <= report.budget;
  if (!kept) complain("the run broke its promise; please report this");
  return kept ? kDone : kBroken;
}

// Online mode has no plan to write or to show.
void require_no_files(const TrainArguments& arguments) {
  for (const auto& [name, path] :
       {std::pair("--save", &arguments.save_plan), std::pair("--save-log", &arguments.save_log),
        std::pair("--save-profile", &arguments.save_profile),
        std::pair("--save-machine", &arguments.save_machine),
        std::pair("--report", &arguments.report)}) {
    if (path->empty()) continue;
    throw InputError(fmt::format(
        "{} and --mode online exclude each other: online mode makes no plan before it runs", name));
  }
}

// Returns what a rank other than the first one does: the same, without files and texts.
TrainArguments of_other_rank(TrainArguments arguments) {
  arguments.quiet = true;
  for (std::string* path : {&arguments.save_plan, &arguments.save_profile, &arguments.save_log,
                            &arguments.save_machine, &arguments.report}) {
    path->clear();
  }
  return arguments;
}

int run_train(const TrainArguments& given) {
  std::optional<runtime::ProcessGroup> group;
  if (runtime::has_ranks()) group.emplace(runtime::gloo_from_environment());
  const bool is_first = !group || group->rank() == 0;
  const TrainArguments arguments = is_first ? given : of_other_rank(given);
  training::TrainOptions options = train_options(arguments);
  if (group) options.group = &*group;
  validate(options);
  if (options.mode == training::TrainMode::kOnline) require_no_files(arguments);
  require_writable({{"--save", arguments.save_plan},
                    {"--save-profile", arguments.save_profile},
                    {"--save-log", arguments.save_log},
                    {"--save-machine", arguments.save_machine},
                    {"--report", arguments.report}},
                   {});
  StatusLine status(arguments.quiet);
  options.observer = status.observer();
  bool is_planned = false;
  options.on_mode = [&](training::TrainMode mode, const std::string& why_chain) {
    is_planned = mode != training::TrainMode::kOnline;
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
      say(step_text(step));  // no terminal: only now and then
      last_line = now;
    }
  };
  // Several processes would not end after the same step.
  if (!group) signal(SIGINT, on_interrupt);
  options.stop = [] { return interrupted != 0; };

  const bool planned = options.mode != training::TrainMode::kOnline;
  training::TrainReport report;
  try {
    report = training::train(options);
  } catch (const runtime::PeerError& error) {
    status.wipe();
    complain(error.what());
    return kBroken;
  } catch (const BudgetError& error) {
    // A plan that did not hold is a broken promise. Ranks that find no plan throw, too.
    if (group ? is_planned : planned) throw;
    status.wipe();
    complain(fmt::format(
        "{}\nAsk for a larger budget, make the batch smaller, or try --mode graph.", error.what()));
    return kInfeasible;
  }
  status.wipe();
  if (!arguments.save_profile.empty())
    write_output(arguments.save_profile, to_json(report.profile));
  if (planned && !report.plan.plan) return infeasible(report, arguments);
  if (!arguments.save_plan.empty()) write_output(arguments.save_plan, to_json(*report.plan.plan));
  if (!arguments.save_machine.empty()) {
    write_output(arguments.save_machine, to_json(report.machine));
  }
  if (!arguments.save_log.empty() && report.run_log) {
    write_output(arguments.save_log, to_json(*report.run_log));
  }
  if (!arguments.report.empty()) {
    ReportInput page{.problem = parse_problem(to_json(report.profile)), .plan = *report.plan.plan};
    page.machine = report.machine;
    page.run_log = report.run_log;
    if (report.plain_time) page.side_by_side = {*report.plain_time, *report.planned_time};
    write_output(arguments.report, report_page(page, kCurveLimit, arguments.quiet));
  }
  const TrainLabels labels{.model = arguments.model.model,
                           .has_budget = !arguments.budget.empty(),
                           .consumes_gradients = arguments.consume_gradients};
  if (!is_first) return verdict(report);
  if (arguments.json) {
    print(train_report_json(report, labels).dump(2) + "\n");
  } else {
    print(train_report_text(report, labels));
  }
  if (report.processor_percent < 100 && !arguments.quiet) {
    say(runtime::explain_busy_machine(report.processor_percent));
  }
  if (report.stopped) {
    say(fmt::format("stopped after step {}{}", report.steps,
                    arguments.state.empty() ? "" : "; the same command goes on from there"));
  }
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
      "  reprise train --model gpt --budget 40% --offload disk:/tmp --steps 50\n"
      "  reprise train --model gpt --budget 40% --optimizer adam --consume-gradients --offload "
      "disk:/tmp --offload-optimizer --offload-parameters\n"
      "  reprise train --model gpt --micro-batches auto --budget 40% --steps 50\n"
      "  reprise train --model lstm --mode online --budget 85% --steps 50\n"
      "  reprise train --model gpt --steps 500 --state run1 --save-every 50\n"
      "  reprise train --model gpt --data corpus.txt --budget \"220 MiB\" --optimizer adam\n"
      "  torchrun --no-python --nproc-per-node 2 reprise train --model gpt --steps 50\n\n"
      "--budget is all device memory of a step: parameters, gradients, optimizer state, the "
      "batch.\n"
      "A share is of plain training's peak. Without a budget nothing runs again, and both are "
      "compared.\n"
      "Under torchrun the processes train one model, each on batches of its own. Budget and batch "
      "are those of each.");
  auto arguments = std::make_shared<TrainArguments>();
  add_model_options(*command, arguments->model);
  auto text = [&](const char* name, std::string& field, const char* help, const char* type) {
    command->add_option(name, field, help)->type_name(type);
  };
  text("--data", arguments->data,
       "fashion-mnist (default for images), synthetic (default for text), a folder of IDX files, "
       "or a text file",
       "DATA");
  text("--budget", arguments->budget, "bytes (\"700 MiB\") or a share (60%)", "BUDGET");
  text("--mode", arguments->mode,
       "graph: plan the operations of a captured step; chain: plan the model's stages; online: run "
       "the step as it is written, and evict values where memory runs short; auto (default): graph "
       "where the step can be captured, else chain",
       "MODE");
  add_alternative_options(*command, arguments->alternatives);
  text("--planner", arguments->planner,
       "see `reprise planners` (default: the mode's name; with --offload levels or graph_levels)",
       "NAME");
  text("--offload", arguments->offload,
       "values may move to a file in this directory (\"disk:/scratch\") while nothing reads them; "
       "the disk is measured first. \"auto\" takes a disk in the temporary directory, and "
       "\"auto:DIR\" one in DIR, if that makes the step faster",
       "disk:DIR|auto");
  command->add_flag(
      "--offload-optimizer", arguments->offload_optimizer,
      "with --offload disk:DIR and --consume-gradients: the optimizer's state lies on "
      "the disk between the steps, and comes for each parameter's update");
  command->add_flag(
      "--offload-parameters", arguments->offload_parameters,
      "with --offload disk:DIR and --consume-gradients: the parameters lie on the disk between the "
      "steps, come for the operations that read them, and go back behind their updates");
  text("--machine", arguments->machine,
       "with --offload: the bandwidths of the disk, in place of measuring them", "FILE");
  text("--save-machine", arguments->save_machine,
       "write the machine of --offload, or the link between ranks, here, for `reprise check` and "
       "`explain`",
       "FILE");
  text("--time-limit", arguments->time_limit, "of planning (default 10s)", "TIME");
  text("--optimizer", arguments->optimizer, "sgd (default) or adam", "NAME");
  text("--save,--save-plan", arguments->save_plan, "write the plan here", "FILE");
  text("--save-log", arguments->save_log,
       "write what the runs of a step took here (the median of five steps)", "FILE");
  text("--report", arguments->report, "write a page (HTML) of the plan and these runs here",
       "FILE");
  text("--save-profile", arguments->save_profile, "write what was measured here", "FILE");
  text("--state", arguments->state,
       "go on from the saved state in this folder, and save it there at the end", "DIR");
  command->add_option("--save-every", arguments->save_every, "also save the state every N steps")
      ->type_name("N");
  command->add_option("--steps", arguments->steps, "training steps")->type_name("N");
  command->add_option("--epochs", arguments->epochs, "passes over the data (default 1)")
      ->type_name("N")
      ->excludes("--steps");
  command
      ->add_option("--learning-rate", arguments->rate,
                   "default 0.05 for sgd (0.02 with momentum), 0.001 for adam")
      ->type_name("R");
  text("--schedule", arguments->schedule,
       "of the learning rate: constant (default), or linear (it falls to zero over the steps)",
       "NAME");
  command->add_option("--momentum", arguments->momentum, "of sgd (default 0)")->type_name("M");
  command->add_flag(
      "--consume-gradients", arguments->consume_gradients,
      "graph mode: update each parameter as soon as its gradient is complete, and free it");
  command->add_flag("--shard-optimizer", arguments->shard_optimizer,
                    "several processes, with --consume-gradients: each keeps the optimizer's state "
                    "of its own share of the parameters only");
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
