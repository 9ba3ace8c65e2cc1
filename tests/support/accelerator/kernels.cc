#include "kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "allocators.h"
#include "generator.h"
#include "operands.h"
#include "streams.h"

namespace sim {
namespace {

std::atomic<uint64_t> called{0};
bool operands_are_checked = true;

// Facts are what a call has to know about its operator.
struct Facts {
  std::string name;
  std::vector<bool> writes;     // of each argument
  std::vector<bool> generator;  // of each argument
  bool has_generator = false;
  bool draws = false;       // random numbers
  bool gives_view = false;  // reads and writes no bytes
  bool reads_back = false;  // the host gets a number or a size that depends on the bytes
  bool takes_host = false;  // operands on the host are part of its contract
};

bool returns_number(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::TypeKind kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
  }
  return false;
}

Facts facts_of(const c10::OperatorHandle& op) {
  // Indices may lie on the host.
  static const std::set<std::string> take_host = {"aten::index",
                                                  "aten::_unsafe_index",
                                                  "aten::index_put_",
                                                  "aten::_index_put_impl_",
                                                  "aten::_unsafe_index_put",
                                                  "aten::index_put"};
  const c10::FunctionSchema& schema = op.schema();
  Facts facts;
  facts.name = schema.name();
  for (const c10::Argument& argument : schema.arguments()) {
    facts.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    facts.generator.push_back(argument.type()->str() == "Generator?");
    facts.has_generator = facts.has_generator || facts.generator.back();
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) facts.gives_view = true;
  }
  if (facts.name == "aten::resize_") facts.gives_view = true;
  facts.draws = op.hasTag(at::Tag::nondeterministic_seeded);
  facts.reads_back = returns_number(schema) || op.hasTag(at::Tag::data_dependent_output) ||
                     op.hasTag(at::Tag::dynamic_output_shape);
  facts.takes_host = take_host.contains(facts.name);
  return facts;
}

void refuse_host_operand(const Facts& facts, const at::Tensor& tensor) {
  // One number may come from the host, as on other devices.
  if (!tensor.defined() || on_device(tensor) || tensor.dim() == 0) return;
  TORCH_CHECK(false, "sim: ", facts.name, " has operands on a device and one of shape ",
              tensor.sizes(), " on ", tensor.device(), "; copy it to the device first");
}

// The access of one call, in the order of its stream.
void enter(const Facts& facts, int stream, const std::vector<c10::IValue>& arguments,
           std::vector<Access>& accesses) {
  streams().before_kernel(stream);
  for (size_t a = 0; a < arguments.size(); ++a) {
    each_tensor(arguments[a], [&](const at::Tensor& tensor) {
      if (on_device(tensor)) add_accesses(tensor, facts.writes[a], accesses);
    });
  }
  streams().check().access(facts.name, stream, accesses);
}

void leave(const Facts& facts, int stream, const std::vector<c10::IValue>& results,
           std::vector<Access>& accesses) {
  std::vector<Access> made;
  for (const c10::IValue& result : results) {
    each_tensor(result, [&](const at::Tensor& tensor) {
      if (on_device(tensor)) add_accesses(tensor, true, made);
    });
  }
  streams().check().access(facts.name, stream, made);
  size_t bytes = 0;
  for (const auto* const list : {&accesses, &made}) {
    for (const Access& access : *list) bytes += static_cast<size_t>(access.end - access.begin);
  }
  streams().kernel_ran(stream, bytes);
}

void call_kernel(const Facts& facts, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = facts.writes.size(), begin = stack->size() - count;
  const std::vector<c10::IValue> arguments(stack->begin() + static_cast<std::ptrdiff_t>(begin),
                                           stack->end());
  Operands operands;
  for (size_t a = 0; a < count; ++a) (*stack)[begin + a] = operands.to_host(arguments[a]);
  const int device = operands.device() ? operands.device()->index() : current_device();
  for (size_t a = 0; a < count; ++a) {
    if (operands_are_checked && operands.device() && !facts.takes_host) {
      each_tensor(arguments[a], [&](const at::Tensor& each) { refuse_host_operand(facts, each); });
    }
    if (facts.generator[a] && arguments[a].isNone()) {
      (*stack)[begin + a] = host_generator_of(default_generator(device));
    }
  }
  const int stream = current_stream(device);
  std::vector<Access> accesses;
  if (!facts.gives_view) enter(facts, stream, arguments, accesses);
  {
    std::optional<DrawScope> draws;
    if (facts.draws && !facts.has_generator) draws.emplace(device);
    const RouteScope routed(device);
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::RecordFunctionGuard unobserved(/*is_enabled=*/false);
    op.redispatchBoxed(kHostKeys, stack);
  }
  operands.update();
  const size_t returned = op.schema().returns().size();
  for (size_t r = stack->size() - returned; r < stack->size(); ++r) {
    (*stack)[r] = operands.to_device((*stack)[r]);
  }
  if (facts.gives_view) return;
  ++called;
  const std::vector<c10::IValue> results(stack->end() - static_cast<std::ptrdiff_t>(returned),
                                         stack->end());
  leave(facts, stream, results, accesses);
  if (facts.reads_back) streams().host_waits(stream);
}

class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(Facts facts) : facts_(std::move(facts)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    call_kernel(facts_, op, stack);
  }

 private:
  const Facts facts_;
};

void call_unknown(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_kernel(facts_of(op), op, stack);
}

// The name of an overload inside its namespace.
std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

void register_kernels(bool check_operands) {
  operands_are_checked = check_operands;
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                            __LINE__);
  // Composite kernels of these look at the device and refuse one that they do not know.
  const std::set<std::string> by_device = {"aten::convolution", "aten::_convolution",
                                           "aten::convolution_backward"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const std::string full = full_name(name);
    // Without a kernel of the CPU the composite one does: it calls others.
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !by_device.contains(full)) continue;
    aten.impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                          std::make_unique<HostKernel>(facts_of(*op))));
  }
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&call_unknown>());
}

uint64_t kernels_called() { return called; }

}  // namespace sim
