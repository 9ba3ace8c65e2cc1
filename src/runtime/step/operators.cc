#include "runtime/step/operators.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/step/host_reads.h"

namespace reprise::runtime::internal::step {
namespace {

using c10::DispatchKey;

struct OpArgument {
  std::string_view op;
  std::string_view argument;
};

constexpr std::array kShapeOnly = {
    OpArgument{"aten::nll_loss_backward", "self"},
    OpArgument{"aten::nll_loss2d_backward", "self"},
    OpArgument{"aten::max_pool2d_with_indices_backward", "self"},
    OpArgument{"aten::max_pool3d_with_indices_backward", "self"},
    OpArgument{"aten::avg_pool2d_backward", "self"},
    OpArgument{"aten::avg_pool3d_backward", "self"},
    OpArgument{"aten::_adaptive_avg_pool2d_backward", "self"},
    OpArgument{"aten::_adaptive_avg_pool3d_backward", "self"},
    OpArgument{"aten::adaptive_max_pool2d_backward", "self"},
    OpArgument{"aten::ones_like", "self"},
    OpArgument{"aten::zeros_like", "self"},
    OpArgument{"aten::full_like", "self"},
    OpArgument{"aten::empty_like", "self"},
    OpArgument{"aten::rand_like", "self"},
    OpArgument{"aten::randn_like", "self"},
    OpArgument{"aten::new_zeros", "self"},
    OpArgument{"aten::new_ones", "self"},
    OpArgument{"aten::new_full", "self"},
    OpArgument{"aten::new_empty", "self"},
    OpArgument{"aten::new_empty_strided", "self"},
};

constexpr std::array kUndeclaredWrites = {
    OpArgument{"aten::native_batch_norm", "running_mean"},
    OpArgument{"aten::native_batch_norm", "running_var"},
    OpArgument{"aten::cudnn_batch_norm", "running_mean"},
    OpArgument{"aten::cudnn_batch_norm", "running_var"},
    OpArgument{"aten::miopen_batch_norm", "running_mean"},
    OpArgument{"aten::miopen_batch_norm", "running_var"},
    OpArgument{"aten::mkldnn_rnn_layer_backward", "workspace"},
};

size_t position_of(const c10::FunctionSchema& schema, std::string_view argument) {
  const auto& all = schema.arguments();
  return static_cast<size_t>(
      std::find_if(all.begin(), all.end(),
                   [&](const c10::Argument& a) { return a.name() == argument; }) -
      all.begin());
}

const c10::IValue* constant(const c10::OperatorHandle& op, Constants constants,
                            std::string_view argument) {
  const auto& schema = op.schema();
  const size_t position = position_of(schema, argument);
  return position < schema.arguments().size() ? constants(position) : nullptr;
}

// The constants of a recorded call.
auto constants_of(const Call& call) {
  return [&call](size_t position) {
    return position < call.arguments.size() ? &call.arguments[position].constant : nullptr;
  };
}

// Says whether a call of convolution_backward wants this gradient: 0 is that of the input, 1 the
// weight's, 2 the bias's.
bool wants(const c10::OperatorHandle& op, Constants constants, size_t gradient) {
  const c10::IValue* mask = constant(op, constants, "output_mask");
  if (mask == nullptr || !mask->isBoolList()) return true;
  const auto wanted = mask->toBoolList();
  return gradient >= wanted.size() || wanted.get(gradient);
}

}  // namespace

bool is_transparent(const c10::OperatorHandle& op, c10::Device device) {
  // Autocast's kernel casts the operands and calls the operator again.
  if (at::autocast::is_autocast_enabled(device.type()) &&
      op.hasKernelForDispatchKey(
          at::autocast::get_autocast_dispatch_key_from_device_type(device.type()))) {
    return true;
  }
  const DispatchKey backend = c10::computeDispatchKey(std::nullopt, c10::kStrided, device);
  for (const DispatchKey own : {backend, DispatchKey::CompositeExplicitAutograd,
                                DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(own)) return false;
  }
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::Autograd);
}

const char* reason_to_refuse(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (reads_on_host(op)) return nullptr;  // reason_to_refuse_arguments() looks at the type.
  if (name.name == "aten::set_" || name.name == "aten::resize_" ||
      name.name == "aten::resize_as_") {
    return "gives a tensor other memory";
  }
  if (op.hasTag(at::Tag::data_dependent_output)) return "has a result that depends on the data";
  if (name.name.starts_with("c10d::") || name.name.starts_with("_c10d_functional::")) {
    return "communicates with other processes, as DistributedDataParallel does: capture the step "
           "of "
           "the plain model, and give the group (CaptureOptions::group; in Python process_group=), "
           "whose ranks then average their gradients";
  }
  if (op.hasTag(at::Tag::dynamic_output_shape) && !sizes_by_count(op)) {
    return "has a result whose size depends on the data";
  }
  return nullptr;
}

const char* reason_to_refuse_arguments(const Call& call) {
  if (call.op.operator_name().name != "aten::_local_scalar_dense") return nullptr;
  const at::ScalarType type = call.arguments.at(0).tensors.at(0).geometry.dtype;
  if (at::isIntegralType(type, /*includeBool=*/true)) return nullptr;
  return "reads a number that is not whole out of a tensor (item(), float(), or such a tensor as a "
         "condition): it is hardly ever the same twice. Compare inside PyTorch, because a boolean "
         "can be read (if loss > 3:), compute with the tensor itself, or read it behind the step";
}

bool is_known_to_write(const c10::OperatorHandle& op, Constants constants, size_t argument) {
  const std::string& name = op.operator_name().name;
  const std::string& formal = op.schema().arguments().at(argument).name();
  // In evaluation mode a batch norm only reads its statistics.
  const c10::IValue* training = constant(op, constants, "training");
  if (training != nullptr && training->isBool() && !training->toBool()) return false;
  return std::any_of(
      kUndeclaredWrites.begin(), kUndeclaredWrites.end(),
      [&](const OpArgument& row) { return row.op == name && row.argument == formal; });
}

bool is_known_to_write(const Call& call, size_t argument) {
  return is_known_to_write(call.op, constants_of(call), argument);
}

bool reads_shape_only(const c10::OperatorHandle& op, Constants constants, size_t argument) {
  const std::string& name = op.operator_name().name;
  const std::string& formal = op.schema().arguments().at(argument).name();
  if (name == "aten::convolution_backward") {
    return (formal == "input" && !wants(op, constants, 1)) ||
           (formal == "weight" && !wants(op, constants, 0));
  }
  if (name == "aten::native_batch_norm_backward" || name == "aten::cudnn_batch_norm_backward") {
    const c10::IValue* train = constant(op, constants, "train");
    const bool trains = train == nullptr || !train->isBool() || train->toBool();
    return trains && (formal == "running_mean" || formal == "running_var");
  }
  return std::any_of(kShapeOnly.begin(), kShapeOnly.end(), [&](const OpArgument& row) {
    return row.op == name && row.argument == formal;
  });
}

bool reads_shape_only(const Call& call, size_t argument) {
  return reads_shape_only(call.op, constants_of(call), argument);
}

bool is_batch_norm(const c10::OperatorHandle& op, Constants constants,
                   std::vector<size_t>* statistics) {
  const std::string& name = op.operator_name().name;
  if (name != "aten::native_batch_norm" && name != "aten::cudnn_batch_norm" &&
      name != "aten::miopen_batch_norm") {
    return false;
  }
  const c10::IValue* training = constant(op, constants, "training");
  if (training == nullptr || !training->isBool() || !training->toBool()) return false;
  const auto& schema = op.schema();
  *statistics = {position_of(schema, "running_mean"), position_of(schema, "running_var")};
  return true;
}

bool is_batch_norm(const Call& call, std::vector<size_t>* statistics) {
  return is_batch_norm(call.op, constants_of(call), statistics);
}

bool depends_on_constants(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::convolution_backward" || name.find("_batch_norm") != std::string::npos;
}

bool gives_unwritten_memory(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

bool draws_by_numbers(const Call& call) {
  const std::string& name = call.op.operator_name().name;
  if (name != "aten::rrelu_with_noise" && name != "aten::rrelu_with_noise_") return false;
  const c10::IValue* training = constant(call.op, constants_of(call), "training");
  return training != nullptr && training->isBool() && training->toBool();
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

bool draws_apart(c10::ArrayRef<c10::IValue> arguments) {
  bool own = false, tensors = false;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor&) { tensors = true; });
    if (!argument.isGenerator() || !argument.toGenerator().defined()) continue;
    const at::Generator generator = argument.toGenerator();
    own |= generator != at::globalContext().defaultGenerator(generator.device());
  }
  return own && !tensors;
}

}  // namespace reprise::runtime::internal::step
