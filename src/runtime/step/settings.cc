#include "runtime/step/settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/anomaly_mode.h>

namespace reprise::runtime::internal::step {
namespace {

std::string on_or_off(bool on) { return on ? "on" : "off"; }

std::string float32_precision() {
  try {
    switch (at::globalContext().float32MatmulPrecision()) {
      case at::Float32MatmulPrecision::HIGHEST:
        return "highest";
      case at::Float32MatmulPrecision::HIGH:
        return "high";
      case at::Float32MatmulPrecision::MEDIUM:
        return "medium";
    }
    return "unknown";
  } catch (const c10::Error&) {
    return "mixed";  // LibTorch refuses to say it after its old and its new functions have set it.
  }
}

}  // namespace

std::vector<Setting> settings_now() {
  const at::Context& context = at::globalContext();
  return {
      {"the number of threads of an operation", std::to_string(at::get_num_threads())},
      {"oneDNN", on_or_off(context.userEnabledMkldnn())},
      {"NNPACK", on_or_off(context.userEnabledNNPACK())},
      {"deterministic algorithms", on_or_off(context.deterministicAlgorithms())},
      {"the precision of products of float32", float32_precision()},
      {"the default dtype", c10::toString(c10::get_default_dtype_as_scalartype())},
      {"flash attention", on_or_off(context.userEnabledFlashSDP())},
      {"memory-efficient attention", on_or_off(context.userEnabledMemEfficientSDP())},
      {"attention by its formula", on_or_off(context.userEnabledMathSDP())},
      {"anomaly mode", on_or_off(torch::autograd::AnomalyMode::is_enabled())},
  };
}

}  // namespace reprise::runtime::internal::step
