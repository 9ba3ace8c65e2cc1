// reprise profile --model M -o problem.json
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <set>

#include "commands.h"
#include "output.h"
#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/measure.h"

namespace reprise::cli {
namespace {

struct ProfileArguments {
  ModelArguments model;
  std::string output, mode = "chain", optimizer = "sgd";
  double momentum = 0;
  bool consume_gradients = false;
  runtime::AlternativeOptions alternatives;
  uint64_t seed = 1;
  bool quiet = false;
};

Profile measure_chain(const training::Model& model, runtime::MeasureOptions options,
                      const ProfileArguments& arguments) {
  const at::Tensor target = model.sample_target();
  options.alternatives = arguments.alternatives;
  options.output_held = false;  // as in `reprise train`
  return runtime::profile(
      model.stages, {model.sample_input()},
      [&](const runtime::Tensors& y) { return model.loss(y.at(0), target); }, options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const training::Model& model,
                                                        const ProfileArguments& arguments) {
  std::vector<at::Tensor> parameters;
  std::set<const void*> seen;
  for (const runtime::Stage& stage : model.stages) {
    if (!stage.module) continue;
    for (const at::Tensor& parameter : stage.module->parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
    }
  }
  if (arguments.optimizer == "adam") return std::make_unique<torch::optim::Adam>(parameters);
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(arguments.momentum));
}

Profile measure_graph(const training::Model& model, const runtime::MeasureOptions& options,
                      const ProfileArguments& arguments) {
  const runtime::Tensors batch{model.sample_input(), model.sample_target()};
  auto step = [&](const runtime::Tensors& in) {
    runtime::Tensors x{in[0]};
    for (const runtime::Stage& stage : model.stages) x = stage.forward(x);
    at::Tensor loss = model.loss(std::move(x)[0], in[1]);
    loss.backward();
    return loss;
  };
  runtime::CaptureOptions capture{
      .modules = {model.module()}, .measure = options, .alternatives = arguments.alternatives};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (arguments.consume_gradients) {
    optimizer = make_optimizer(model, arguments);
    capture.optimizer = runtime::per_parameter(*optimizer);
  }
  return runtime::capture(step, batch, capture).profile();
}

std::string summary(const Profile& profile) {
  const auto* chain = std::get_if<Chain>(&profile.problem);
  const Graph graph = chain != nullptr ? lower(*chain) : std::get<Graph>(profile.problem);
  const Baseline plain = baseline(graph);
  return fmt::format("{}: {} {}, plain training peaks at {} and takes {} a step", graph.name,
                     chain != nullptr ? chain->stages.size() : graph.ops.size(),
                     chain != nullptr ? "stages" : "operations", format_bytes_exact(plain.peak),
                     format_duration(plain.time));
}

int run_profile(const ProfileArguments& arguments) {
  require_mode(arguments.mode);
  validate_alternatives(arguments.alternatives, arguments.mode);
  if (arguments.consume_gradients && arguments.mode != "graph") {
    throw InputError(
        "--consume-gradients needs --mode graph: a chain of stages keeps its gradients");
  }
  if (arguments.optimizer != "sgd" && arguments.optimizer != "adam") {
    throw InputError("--optimizer must be sgd or adam, not '" + arguments.optimizer + "'");
  }
  if (!(arguments.momentum >= 0 && arguments.momentum < 1)) {
    throw InputError("--momentum must be in [0, 1)");
  }
  if (arguments.momentum > 0 && arguments.optimizer != "sgd") {
    throw InputError("--momentum is for --optimizer sgd: leave it out, or take sgd");
  }
  require_writable({{"--output", arguments.output}}, {});
  runtime::install_cpu_allocator();
  at::manual_seed(arguments.seed);
  const training::Model model = training::make_model(model_config(arguments.model));
  StatusLine status(arguments.quiet);
  runtime::MeasureOptions options;
  options.name = model.config.model;
  options.observer = status.observer();
  const Profile profile = arguments.mode == "graph" ? measure_graph(model, options, arguments)
                                                    : measure_chain(model, options, arguments);
  status.wipe();
  const std::string json = to_json(profile);
  if (arguments.output.empty()) {
    print(json);
  } else {
    write_output(arguments.output, json);
  }
  if (!arguments.quiet) say(summary(profile));
  if (!arguments.quiet && profile.processor_percent < 100) {
    say(runtime::explain_busy_machine(profile.processor_percent));
  }
  return kDone;
}

}  // namespace

void add_profile(CLI::App& app, Handler& action) {
  CLI::App* command = app.add_subcommand("profile", "measure a model into a chain or a graph");
  command->footer(
      "Example:\n  reprise profile --model densenet121 --batch 32 -o densenet121.json\n"
      "  reprise frontier densenet121.json\n"
      "  reprise profile --model unet --mode graph -o unet.json");
  auto arguments = std::make_shared<ProfileArguments>();
  add_model_options(*command, arguments->model);
  command->add_option("-o,--output", arguments->output, "file to write (default: stdout)")
      ->type_name("FILE");
  command->add_option("--mode", arguments->mode, "chain (default): stages; graph: operations")
      ->type_name("MODE");
  add_alternative_options(*command, arguments->alternatives);
  command->add_flag("--consume-gradients", arguments->consume_gradients,
                    "graph mode: with the optimizer, each gradient freed when it is complete");
  command->add_option("--optimizer", arguments->optimizer, "for that: sgd (default) or adam")
      ->type_name("NAME");
  command->add_option("--momentum", arguments->momentum, "of sgd (default 0)")->type_name("M");
  command->add_option("--seed", arguments->seed, "of the random state (default 1)")->type_name("N");
  command->add_flag("--quiet", arguments->quiet, "no progress, no summary");
  command->callback(
      [&action, arguments] { action = [arguments] { return run_profile(*arguments); }; });
}

}  // namespace reprise::cli
