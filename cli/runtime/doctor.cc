// The runtime's half of `reprise doctor`: what LibTorch on this machine can do, tried out.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "commands.h"
#include "output.h"
#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/data.h"
#include "reprise/runtime/train.h"

namespace reprise::cli {
namespace {

std::string fashion_mnist() {
  try {
    const runtime::Model model = runtime::make_model("mlp");
    return runtime::open_dataset("fashion-mnist", runtime::Split::kTest, model)->description();
  } catch (const std::exception& error) {
    return std::string("not found; synthetic data work without it (") + error.what() + ")";
  }
}

// One small model, one budget half-way down its range: the whole promise, tried.
std::string try_one_step(bool& well) {
  runtime::TrainOptions options;
  options.model = {.model = "resnet18", .input = {4, 3, 32, 32}};
  options.budget = Budget("99%");
  options.steps = 1;
  options.compare_steps = 1;
  options.test_samples = 0;
  const runtime::TrainReport report = runtime::train(options);
  well = report.plan.plan && report.gradients_equal.value_or(false) && report.peaks_equal &&
         report.measured_peak <= report.budget;
  return fmt::format(
      "resnet18 inside {}: same bits as plain training: {}; predicted peak {} B, "
      "measured {} B",
      format_bytes(report.budget), report.gradients_equal.value_or(false) ? "yes" : "NO",
      report.predicted_peak.count(), report.measured_peak.count());
}

int run() {
  runtime::install_cpu_allocator();
  bool well = false;
  std::string text =
      fmt::format("LibTorch       {} ({} threads)\n", TORCH_VERSION, at::get_num_threads());
  text += fmt::format("CPU features   {}\n", at::get_cpu_capability());
  text += fmt::format("accelerator    {}\n", at::getAccelerator().has_value()
                                                 ? c10::DeviceTypeName(*at::getAccelerator())
                                                 : "none");
  text += fmt::format("CPU allocator  {}\n",
                      runtime::cpu_allocator_installed() ? "counts and enforces" : "NOT INSTALLED");
  text += fmt::format("Fashion-MNIST  {}\n", fashion_mnist());
  text += fmt::format("one step       {}\n", try_one_step(well));
  text += well ? "all is well\n" : "something is wrong: please report this output\n";
  print(text);
  return well ? kDone : kBroken;
}

}  // namespace

void add_runtime_doctor(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("doctor", "what LibTorch on this machine can do");
  command->footer("Example:\n  reprise doctor");
  command->callback([&action] { action = run; });
}

}  // namespace reprise::cli
