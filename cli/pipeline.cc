// This file has the command `reprise pipeline PROBLEM`, and how `reprise check` judges its plans.
#include "pipeline.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "output.h"
#include "reprise/check/pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/plan/pipeline.h"
#include "reprise/plan/registry.h"
#include "reprise/report/pipeline.h"
#include "search_arguments.h"

namespace reprise::cli {

namespace {

struct PipelineArguments {
  std::string problem;
  int64_t devices = 0;
  int64_t micro_batches = 0;
  std::string link;
  std::string memory;
  std::string problem_output;
  std::string budget;
  std::string cuts;
  int64_t parts_per_device = 0;
  std::string output, trace, pytorch;
  bool json = false;
  SearchArguments search;
};

std::vector<int64_t> cuts_of(const std::string& text) {
  std::vector<int64_t> cuts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int64_t cut = 0;
    const auto read = std::from_chars(text.data() + at, text.data() + end, cut);
    if (read.ec != std::errc() || read.ptr != text.data() + end) {
      throw InputError(
          fmt::format("\"{}\" is no list of cuts; write it like 3,7,9: the first stage "
                      "of each part but the first one",
                      text));
    }
    cuts.push_back(cut);
    at = end + 1;
  }
  return cuts;
}

// "25GB/s" is a link in each direction, with the latency of --offload.
Link link_of(const std::string& text) {
  if (text.find(',') != std::string::npos) {
    throw InputError(
        fmt::format("\"{}\" is no bandwidth; write it like 25GB/s. A file can have "
                    "links that differ",
                    text));
  }
  const Channel channel = parse_offload("link=" + text).channels.front();
  return {.bytes_per_second = channel.bytes_per_second, .latency = channel.latency};
}

struct LoadedPipeline {
  Pipeline pipeline;
  ProblemId id;
};

LoadedPipeline load(const PipelineArguments& arguments) {
  const std::string text = read_file(arguments.problem);
  LoadedPipeline loaded;
  if (parse_format(text, arguments.problem) == "reprise.pipeline") {
    if (arguments.devices != 0 || arguments.micro_batches != 0 || !arguments.memory.empty() ||
        !arguments.link.empty()) {
      throw InputError(
          "--devices, --micro-batches, --link and --memory are for a chain or a profile; this "
          "file is a pipeline and says them itself",
          {.file = arguments.problem, .pointer = {}, .line = 0});
    }
    loaded.pipeline = parse_pipeline(text, arguments.problem);
    loaded.id = {"reprise.pipeline", loaded.pipeline.name, canonical_sha256(text)};
  } else {
    const Chain chain = parse_chain(text, arguments.problem);
    if (arguments.devices < 1 || arguments.micro_batches < 1) {
      throw InputError(
          "this file has one chain: say with --devices and --micro-batches how it "
          "shall run as a pipeline",
          {.file = arguments.problem, .pointer = {}, .line = 0});
    }
    const std::string link = arguments.link.empty() ? "25GB/s" : arguments.link;
    std::optional<Bytes> memory;
    if (!arguments.memory.empty()) memory = parse_bytes(arguments.memory);
    loaded.pipeline = pipeline_of_equal_devices(chain, arguments.devices, arguments.micro_batches,
                                                link_of(link), memory);
    loaded.id = problem_id(loaded.pipeline);
  }
  if (!arguments.problem_output.empty()) {
    write_output(arguments.problem_output, to_json(loaded.pipeline));
    loaded.id = problem_id(loaded.pipeline);
  }
  return loaded;
}

int report_no_pipeline(const PipelineResult& result, const Pipeline& pipeline) {
  complain(
      explain_no_plan(result, pipeline) +
      (result.termination == Termination::kInfeasible
           ? "\nGive the device more memory, make the micro-batches smaller, take more devices, "
             "or try another planner (`reprise planners`)."
           : "\nGive a longer --time-limit, or a faster --planner."));
  return result.termination == Termination::kInfeasible ? kInfeasible : kOutOfTime;
}

int run_pipeline(const PipelineArguments& arguments) {
  PipelineOptions options;
  options.budget = arguments.budget.empty() ? Budget() : Budget(arguments.budget);
  options.planner = arguments.search.planner;
  options.cuts = cuts_of(arguments.cuts);
  if (arguments.parts_per_device != 0) {
    // The planner that chooses asks this one, too.
    if (!options.planner.empty() && options.planner != "pipeline" &&
        options.planner != "interleaved") {
      throw InputError(fmt::format(
          "--parts-per-device is for the planner interleaved, and {} lays one part on each device",
          options.planner));
    }
    options.parts_per_device = arguments.parts_per_device;
  }
  options.time_limit = parse_duration(arguments.search.time_limit);
  options.threads = arguments.search.threads;
  options.allow = arguments.search.allow;
  if (!options.planner.empty()) find_planner(options.planner);
  require_writable({{"--output", arguments.output},
                    {"--trace", arguments.trace},
                    {"--pytorch-order", arguments.pytorch},
                    {"--save-problem", arguments.problem_output}},
                   {{"PROBLEM", arguments.problem}});
  const LoadedPipeline loaded = load(arguments);
  StatusLine status(arguments.search.quiet);
  options.observer = status.observer();
  PipelineResult result =
      in_file(arguments.problem, [&] { return plan(loaded.pipeline, options); });
  status.wipe();
  if (!result.plan) {
    if (arguments.json) print(pipeline_result_json(loaded.pipeline, result));
    return report_no_pipeline(result, loaded.pipeline);
  }
  // The plan is bound to the file that was read, and not to the file that would be written for it.
  result.plan->problem = loaded.id;
  const PipelineTimeline timeline = simulate(loaded.pipeline, *result.plan);
  if (!arguments.trace.empty()) {
    write_output(arguments.trace, pipeline_trace(loaded.pipeline, *result.plan, timeline));
  }
  if (!arguments.pytorch.empty()) write_output(arguments.pytorch, pytorch_order(*result.plan));
  if (arguments.output.empty()) {
    print(to_json(*result.plan));
  } else {
    write_output(arguments.output, to_json(*result.plan));
    if (arguments.json) {
      print(pipeline_result_json(loaded.pipeline, result));
    } else if (!arguments.search.quiet) {
      print(pipeline_text(loaded.pipeline, *result.plan, timeline, text_options()));
    }
  }
  if (!arguments.search.quiet) {
    say(fmt::format("{}: time {}, bound {}, bubble {:.1f} %", to_string(result.termination),
                    format_duration(result.plan->time), format_duration(result.lower_bound),
                    100 * bubble(*result.plan, timeline)));
  }
  return kDone;
}

}  // namespace

int check_pipeline(const std::string& text, const std::string& problem,
                   const std::string& plan_file, const std::string& budget, bool json, bool quiet) {
  const Pipeline pipeline = parse_pipeline(text, problem);
  PipelinePlan plan = load_pipeline_plan(plan_file);
  ProblemId id{"reprise.pipeline", pipeline.name, canonical_sha256(text)};
  // A plan that was made in memory has the hash of the file that would be written for its problem.
  if (const ProblemId own = problem_id(pipeline); plan.problem.sha256 == own.sha256) id = own;
  if (!budget.empty()) {
    const Bytes limit = Budget(budget).resolve(baseline(pipeline).peak);
    for (DevicePlan& device : plan.devices) device.budget = limit;
  }
  const std::vector<Violation> violations = verify(pipeline, plan, id);
  if (json) {
    print(pipeline_violations_json(violations, plan));
  } else if (!violations.empty()) {
    print(violations_text(violations, text_options()));
  } else {
    print(fmt::format("valid: {} parts on {} devices, {} micro-batches, time {}\n",
                      plan.parts.size(), plan.devices.size(), pipeline.micro_batches,
                      format_duration(plan.time)));
  }
  if (violations.empty()) return kDone;
  if (!quiet) say(fmt::format("{} is not a valid plan for {}", plan_file, problem));
  return kBroken;
}

void add_pipeline(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<PipelineArguments>();
  CLI::App* command =
      app.add_subcommand("pipeline", "plan a training step on several devices, one part on each");
  command->add_option("PROBLEM", arguments->problem, "a pipeline file, or a chain or profile file")
      ->required();
  command->add_option("--devices", arguments->devices, "of a chain: how many equal devices")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, static_cast<int64_t>(kMostDevices)).description(""));
  command
      ->add_option("--micro-batches", arguments->micro_batches,
                   "of a chain: how many times it runs in a step")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMostMicroBatches).description(""));
  command->add_option("--link", arguments->link, "of a chain: between neighbours (default 25GB/s)")
      ->type_name("BANDWIDTH");
  command->add_option("--memory", arguments->memory, "of a chain: bytes of each device")
      ->type_name("BYTES");
  command
      ->add_option("--save-problem", arguments->problem_output,
                   "where the pipeline goes that is planned; `reprise check` needs it")
      ->type_name("FILE");
  command
      ->add_option("--budget,-b", arguments->budget,
                   "bytes that a device may take at most: \"8 GiB\", or \"60%\" of the plain "
                   "pipeline's largest peak (default: its memory)")
      ->type_name("BYTES");
  command
      ->add_option("--cuts", arguments->cuts,
                   "the first stage of each part but the first one: 3,7,9 (default: the planner's)")
      ->type_name("LIST");
  command
      ->add_option("--parts-per-device", arguments->parts_per_device,
                   "of the planner interleaved (default 2)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMostMicroBatches).description(""));
  command->add_option("--output,-o", arguments->output, "plan file (default: standard output)")
      ->type_name("FILE");
  command->add_option("--trace", arguments->trace, "Chrome trace of the devices and links")
      ->type_name("FILE");
  command
      ->add_option("--pytorch-order", arguments->pytorch,
                   "order for torch.distributed.pipelining, as CSV")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "the result on standard output as JSON");
  SearchArguments& search = arguments->search;
  search.time_limit = "10s";
  command->add_option("--planner", search.planner, "see `reprise planners` (default pipeline)")
      ->type_name("NAME");
  command->add_option("--time-limit", search.time_limit, "of the search (default 10s)")
      ->type_name("TIME");
  command->add_option("--threads", search.threads, "of the search (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  add_allow(*command, search.allow, "options that may be used");
  command->add_flag("--quiet,-q", search.quiet, "no progress and no messages but errors");
  command->footer(
      "Without -o the plan itself goes to standard output. `reprise check` judges it.\n\n"
      "Examples:\n"
      "  reprise pipeline gpt_4.json --planner 1f1b -o plan.json --trace trace.json\n"
      "  reprise pipeline profile.json --devices 4 --micro-batches 16 --memory 16GiB -o plan.json");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_pipeline(*arguments); }; });
}

}  // namespace reprise::cli
