// These are the options and the state of LibTorch's optimizers, field by field, under the names
// that they have in Python, too.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace reprise::runtime::internal::saved {

// A Field refers to a member of an optimizer's options or state.
struct Field {
  std::string name;
  std::variant<double*, bool*, std::tuple<double, double>*, int64_t*, at::Tensor*> at;
};

// An OptimizerKind is a class of optimizers.
struct OptimizerKind {
  const char* name;  // "AdamW"
  std::vector<Field> (*options)(torch::optim::OptimizerOptions& options);
  std::vector<Field> (*state)(torch::optim::OptimizerParamState& state);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)();
};

// Returns the kind of an optimizer. Throws InputError for other classes, also for derived ones.
const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace reprise::runtime::internal::saved
