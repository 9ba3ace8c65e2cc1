#include "runtime/chain/saved/nodes.h"

#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <string_view>
#include <typeindex>
#include <unordered_map>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::chain {
namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

using Look = void (*)(Node& node, const std::optional<NormCall>& call, SavedByNode& seen);

// Looks at a node that reads tensors of the forward pass.
template <class Kind, SavedVariable Kind::*... tensors>
void reads(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& kind = static_cast<Kind&>(node);
  (seen.tensors.push_back(&(kind.*tensors)), ...);
}

void view(Node&, const std::optional<NormCall>&, SavedByNode& seen) { seen.is_view = true; }

void product(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& mul = static_cast<nodes::MulBackward0&>(node);
  // The factor of dropout was drawn, and has no history.
  if (mul.num_outputs() == 2 && !mul.next_edge(1).is_valid()) {
    seen.factor = &mul.other_;
  } else {
    seen.tensors = {&mul.self_, &mul.other_};
  }
}

void max_pool2d(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& pool = static_cast<nodes::MaxPool2DWithIndicesBackward0&>(node);
  seen.tensors = {&pool.self_};
  const at::Tensor input = saved_tensor(&pool.self_, node);
  if (!input.defined()) return;
  seen.indices = &pool.result1_;
  seen.plane = input.size(-1) * input.size(-2);
}

// Combines two kernels of the same function: one writes to fresh memory, one writes over its input.
template <class Fresh, class Over>
Remake either(Fresh fresh, Over over) {
  return [fresh, over](const at::Tensor& x, bool may_overwrite) {
    at::Tensor into = x;
    return may_overwrite ? at::Tensor(over(into)) : fresh(x);
  };
}

void relu(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  seen.result = &static_cast<nodes::ReluBackward0&>(node).result_;
  seen.remake = either([](const at::Tensor& x) { return at::relu(x); },
                       [](at::Tensor& x) { return at::relu_(x); });
}

void hardtanh(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& kind = static_cast<nodes::HardtanhBackward0&>(node);
  seen.operand = &kind.self_;
  const at::Scalar low = kind.min_val, high = kind.max_val;
  seen.remake = either([=](const at::Tensor& x) { return at::hardtanh(x, low, high); },
                       [=](at::Tensor& x) { return at::hardtanh_(x, low, high); });
}

void leaky_relu(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& kind = static_cast<nodes::LeakyReluBackward0&>(node);
  seen.operand = &kind.self_;
  const at::Scalar slope = kind.negative_slope;
  seen.remake = either([=](const at::Tensor& x) { return at::leaky_relu(x, slope); },
                       [=](at::Tensor& x) { return at::leaky_relu_(x, slope); });
}

void gelu(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  auto& kind = static_cast<nodes::GeluBackward0&>(node);
  seen.operand = &kind.self_;
  const std::string how = kind.approximate;
  seen.remake = either([=](const at::Tensor& x) { return at::gelu(x, how); },
                       [=](at::Tensor& x) { return at::gelu_(x, how); });
}

void silu(Node& node, const std::optional<NormCall>&, SavedByNode& seen) {
  seen.operand = &static_cast<nodes::SiluBackward0&>(node).self_;
  seen.remake = either([](const at::Tensor& x) { return at::silu(x); },
                       [](at::Tensor& x) { return at::silu_(x); });
}

void batch_norm(Node& node, const std::optional<NormCall>& call, SavedByNode& seen) {
  auto& norm = static_cast<nodes::NativeBatchNormBackward0&>(node);
  seen.operand = &norm.input_;
  if (!norm.training || !call) return;
  seen.remake = [call = *call](const at::Tensor& x, bool) {
    return std::get<0>(at::native_batch_norm(x, call.weight.get(), call.bias.get(), {}, {},
                                             /*training=*/true, /*momentum=*/0, call.epsilon));
  };
}

void cudnn_batch_norm(Node& node, const std::optional<NormCall>& call, SavedByNode& seen) {
  auto& norm = static_cast<nodes::CudnnBatchNormBackward0&>(node);
  seen.operand = &norm.input_;
  if (!norm.training || !call) return;
  seen.remake = [call = *call](const at::Tensor& x, bool) {
    return std::get<0>(at::cudnn_batch_norm(x, call.weight.get(), call.bias.get(), {}, {},
                                            /*training=*/true, /*exponential_average_factor=*/0,
                                            call.epsilon));
  };
}

void layer_norm(Node& node, const std::optional<NormCall>& call, SavedByNode& seen) {
  auto& norm = static_cast<nodes::NativeLayerNormBackward0&>(node);
  seen.operand = &norm.input_;
  if (!call) return;
  seen.remake = [call = *call, shape = norm.normalized_shape](const at::Tensor& x, bool) {
    return std::get<0>(
        at::native_layer_norm_symint(x, shape, call.weight.get(), call.bias.get(), call.epsilon));
  };
}

const std::unordered_map<std::type_index, Look>& table() {
  using namespace torch::autograd::generated;
  static const std::unordered_map<std::type_index, Look> rows = {
      {typeid(ConvolutionBackward0), reads<ConvolutionBackward0, &ConvolutionBackward0::input_>},
      {typeid(AddmmBackward0), reads<AddmmBackward0, &AddmmBackward0::mat1_>},
      {typeid(MmBackward0), reads<MmBackward0, &MmBackward0::self_>},
      {typeid(BmmBackward0), reads<BmmBackward0, &BmmBackward0::self_, &BmmBackward0::mat2_>},
      {typeid(AvgPool2DBackward0), reads<AvgPool2DBackward0, &AvgPool2DBackward0::self_>},
      {typeid(NativeGroupNormBackward0),
       reads<NativeGroupNormBackward0, &NativeGroupNormBackward0::input_>},
      {typeid(MulBackward0), product},
      {typeid(MaxPool2DWithIndicesBackward0), max_pool2d},
      {typeid(ReluBackward0), relu},
      {typeid(HardtanhBackward0), hardtanh},
      {typeid(LeakyReluBackward0), leaky_relu},
      {typeid(GeluBackward0), gelu},
      {typeid(SiluBackward0), silu},
      {typeid(NativeBatchNormBackward0), batch_norm},
      {typeid(CudnnBatchNormBackward0), cudnn_batch_norm},
      {typeid(NativeLayerNormBackward0), layer_norm},
      {typeid(ViewBackward0), view},
      {typeid(UnsafeViewBackward0), view},
      {typeid(ReshapeAliasBackward0), view},
      {typeid(TransposeBackward0), view},
      {typeid(PermuteBackward0), view},
      {typeid(TBackward0), view},
      {typeid(UnsqueezeBackward0), view},
      {typeid(SqueezeBackward1), view},
      {typeid(AliasBackward0), view},
  };
  return rows;
}

}  // namespace

int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

Unchanged::Unchanged(const at::Tensor& t)
    : tensor(t.defined() ? t.detach() : t), version(version_of(tensor)) {}

const at::Tensor& Unchanged::get() const {
  if (!holds()) {
    throw InputError(
        "a tensor that the backward pass makes a part of the forward pass from (a parameter, the "
        "input, or what a "
        "stage returned) was changed in place since; change it after backward()");
  }
  return tensor;
}

std::optional<NormCall> norm_call(const at::RecordFunction& event) {
  const std::string_view name = event.name();
  const bool of_rows = name == "aten::native_layer_norm";
  if (!of_rows && name != "aten::native_batch_norm" && name != "aten::cudnn_batch_norm") {
    return std::nullopt;
  }
  const auto inputs = event.inputs();
  const size_t weight = of_rows ? 2 : 1, epsilon = of_rows ? 4 : 7;
  if (inputs.size() <= epsilon || !inputs[epsilon].isDouble()) return std::nullopt;
  // The type of the first of weight, bias and statistics is that of the sums. A later re-run leaves
  // out the statistics.
  const bool only_statistics =
      !of_rows && !inputs[1].isTensor() && !inputs[2].isTensor() && inputs[3].isTensor();
  if (only_statistics && inputs[3].toTensor().scalar_type() != inputs[0].toTensor().scalar_type()) {
    return std::nullopt;
  }
  const auto tensor = [&](size_t i) {
    return Unchanged(inputs[i].isTensor() ? inputs[i].toTensor() : at::Tensor());
  };
  return NormCall{tensor(weight), tensor(weight + 1), inputs[epsilon].toDouble()};
}

at::Tensor saved_tensor(const SavedVariable* saved, Node& node) {
  if (saved == nullptr || saved->has_hooks()) return {};
  try {
    at::Tensor tensor = saved->unpack(node.getptr());
    const bool is_ordinary =
        tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested();
    return is_ordinary ? tensor : at::Tensor();
  } catch (const c10::Error&) {
    return {};
  }
}

SavedByNode look_at(Node& node, const std::optional<NormCall>& call) {
  SavedByNode seen;
  const auto row = table().find(typeid(node));
  if (row == table().end()) return seen;
  seen.is_known = true;
  row->second(node, call, seen);
  return seen;
}

}  // namespace reprise::runtime::internal::chain
