// reprise profile --model M -o problem.json
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "commands.h"
#include "output.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/measure.h"

namespace reprise::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string output, mode = "chain";
  uint64_t seed = 1;
  bool quiet = false;
};

void require_chain_mode(const std::string& mode) {
  if (mode == "chain") return;
  throw InputError("--mode " + mode + " is not there yet; use --mode chain");
}

int run(const Arguments& arguments) {
  require_chain_mode(arguments.mode);
  if (!arguments.output.empty()) require_writable(arguments.output);
  runtime::install_cpu_allocator();
  at::manual_seed(arguments.seed);
  const runtime::Model model = runtime::make_model(model_config(arguments.model));
  const at::Tensor target = model.sample_target();
  StatusLine status(arguments.quiet);
  runtime::MeasureOptions options;
  options.name = model.config.model;
  options.output_held = false;  // as `reprise train` runs it
  options.observer = status.observer();
  const Profile profile = runtime::profile(
      model.stages, {model.sample_input()},
      [&](const runtime::Tensors& y) { return model.loss(y.at(0), target); }, options);
  status.wipe();
  const std::string json = to_json(profile);
  if (arguments.output.empty()) {
    print(json);
  } else {
    write_output(arguments.output, json);
  }
  if (!arguments.quiet) {
    const Chain& chain = std::get<Chain>(profile.problem);
    const Baseline plain = baseline(lower(chain));
    say(fmt::format("{}: {} stages, plain training peaks at {} and takes {} a step", chain.name,
                    chain.stages.size(), format_bytes_exact(plain.peak),
                    format_duration(plain.time)));
  }
  return kDone;
}

}  // namespace

void add_profile(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("profile", "measure a model into a chain");
  command->footer(
      "Example:\n  reprise profile --model resnet18 --input 64x3x64x64 -o resnet18.json\n"
      "  reprise frontier resnet18.json");
  auto arguments = std::make_shared<Arguments>();
  add_model_options(*command, arguments->model);
  command->add_option("-o,--output", arguments->output, "file to write (default: stdout)")
      ->type_name("FILE");
  command->add_option("--mode", arguments->mode, "chain")->type_name("MODE");
  command->add_option("--seed", arguments->seed, "of the random state (default 1)")->type_name("N");
  command->add_flag("--quiet", arguments->quiet, "no progress, no summary");
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace reprise::cli
