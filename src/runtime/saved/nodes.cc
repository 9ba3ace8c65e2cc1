#include "saved/nodes.h"

#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <array>
#include <optional>
#include <typeindex>
#include <utility>

#include "prepare.h"
#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

using Look = void (*)(Node& node, const Leaves& leaves, SavedByNode& seen);

// A row for a node that reads tensors of the forward pass.
template <class Kind, SavedVariable Kind::*... tensors>
void reads(Node& node, const Leaves&, SavedByNode& seen) {
  auto& kind = static_cast<Kind&>(node);
  (seen.tensors.push_back(&(kind.*tensors)), ...);
}

void view(Node&, const Leaves&, SavedByNode& seen) { seen.is_view = true; }

void product(Node& node, const Leaves&, SavedByNode& seen) {
  auto& mul = static_cast<nodes::MulBackward0&>(node);
  // The factor of dropout was drawn, and has no history.
  if (mul.num_outputs() == 2 && !mul.next_edge(1).is_valid()) {
    seen.factor = &mul.other_;
  } else {
    seen.tensors = {&mul.self_, &mul.other_};
  }
}

void max_pool2d(Node& node, const Leaves&, SavedByNode& seen) {
  auto& pool = static_cast<nodes::MaxPool2DWithIndicesBackward0&>(node);
  seen.tensors = {&pool.self_};
  if (pool.self_.has_hooks()) return;
  const at::Tensor input = pool.self_.unpack();
  seen.indices = &pool.result1_;
  seen.plane = input.size(-1) * input.size(-2);
}

void relu(Node& node, const Leaves&, SavedByNode& seen) {
  seen.result = &static_cast<nodes::ReluBackward0&>(node).result_;
  seen.remake = [](const at::Tensor& x, bool over) {
    at::Tensor into = x;
    return over ? at::relu_(into) : at::relu(x);
  };
}

void hardtanh(Node& node, const Leaves&, SavedByNode& seen) {
  auto& tanh = static_cast<nodes::HardtanhBackward0&>(node);
  seen.operand = &tanh.self_;
  seen.remake = [low = tanh.min_val, high = tanh.max_val](const at::Tensor& x, bool over) {
    at::Tensor into = x;
    return over ? at::hardtanh_(into, low, high) : at::hardtanh(x, low, high);
  };
}

void leaky_relu(Node& node, const Leaves&, SavedByNode& seen) {
  auto& leaky = static_cast<nodes::LeakyReluBackward0&>(node);
  seen.operand = &leaky.self_;
  seen.remake = [slope = leaky.negative_slope](const at::Tensor& x, bool over) {
    at::Tensor into = x;
    return over ? at::leaky_relu_(into, slope) : at::leaky_relu(x, slope);
  };
}

void gelu(Node& node, const Leaves&, SavedByNode& seen) {
  auto& gelu = static_cast<nodes::GeluBackward0&>(node);
  seen.operand = &gelu.self_;
  seen.remake = [approximate = gelu.approximate](const at::Tensor& x, bool over) {
    at::Tensor into = x;
    return over ? at::gelu_(into, approximate) : at::gelu(x, approximate);
  };
}

void silu(Node& node, const Leaves&, SavedByNode& seen) {
  seen.operand = &static_cast<nodes::SiluBackward0&>(node).self_;
  seen.remake = [](const at::Tensor& x, bool over) {
    at::Tensor into = x;
    return over ? at::silu_(into) : at::silu(x);
  };
}

// The weight of a norm, and its bias, which is not saved but where the graph ends. None if it is not known.
std::optional<std::pair<Unchanged, Unchanged>> affine(Node& node, const SavedVariable& weight,
                                                      const Leaves& leaves) {
  const at::Tensor w = weight.unpack();
  const auto bias = leaves.find(node.next_edge(2).function.get());
  if (bias != leaves.end()) return std::pair(Unchanged(w), Unchanged(bias->second));
  if (node.next_edge(2).is_valid() || w.defined()) return std::nullopt;
  return std::pair(Unchanged(w), Unchanged({}));
}

void batch_norm(Node& node, const Leaves& leaves, SavedByNode& seen) {
  auto& norm = static_cast<nodes::NativeBatchNormBackward0&>(node);
  seen.operand = &norm.input_;
  auto terms = affine(node, norm.weight_, leaves);
  if (!norm.training || !terms) return;
  seen.remake = [terms = std::move(*terms), eps = norm.eps](const at::Tensor& x, bool) {
    return std::get<0>(at::native_batch_norm(x, terms.first.get(), terms.second.get(), {}, {},
                                             /*training=*/true, /*momentum=*/0, eps));
  };
}

void cudnn_batch_norm(Node& node, const Leaves& leaves, SavedByNode& seen) {
  auto& norm = static_cast<nodes::CudnnBatchNormBackward0&>(node);
  seen.operand = &norm.input_;
  auto terms = affine(node, norm.weight_, leaves);
  if (!norm.training || !terms) return;
  seen.remake = [terms = std::move(*terms), eps = norm.epsilon](const at::Tensor& x, bool) {
    return std::get<0>(at::cudnn_batch_norm(x, terms.first.get(), terms.second.get(), {}, {},
                                            /*training=*/true, /*exponential_average_factor=*/0,
                                            eps));
  };
}

// A layer norm's node does not have its epsilon, but what came of it: the reciprocal of every row's deviation.
// Those are the same bits with the same epsilon, and the result depends on it through them alone.
constexpr std::array kEpsilons = {1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-4, 1e-3, 1e-2, 1e-9, 1e-10, 0.0};

void layer_norm(Node& node, const Leaves&, SavedByNode& seen) {
  auto& norm = static_cast<nodes::NativeLayerNormBackward0&>(node);
  seen.operand = &norm.input_;
  seen.remake = [shape = norm.normalized_shape, weight = Unchanged(norm.weight_.unpack()),
                 bias = Unchanged(norm.bias_.unpack()),
                 deviations = norm.result2_.unpack(node.getptr()).detach()](const at::Tensor& x,
                                                                            bool) {
    for (const double epsilon : kEpsilons) {
      auto [result, means, found] =
          at::native_layer_norm_symint(x, shape, weight.get(), bias.get(), epsilon);
      if (bitwise_equal(found, deviations)) return result;
    }
    throw InputError(
        "a layer norm cannot be made again: its epsilon is none of the usual ones; leave the alternative "
        "\"rebuild\" out");
  };
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
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

Unchanged::Unchanged(const at::Tensor& t)
    : tensor(t.defined() ? t.detach() : t), version(version_of(tensor)) {}

const at::Tensor& Unchanged::get() const {
  if (version_of(tensor) != version) {
    throw InputError(
        "a parameter or the input of the model was changed in place between the forward pass and the backward "
        "pass, which makes a part of the forward pass again; change it after backward()");
  }
  return tensor;
}

SavedByNode look_at(Node& node, const Leaves& leaves) {
  SavedByNode seen;
  const auto row = table().find(typeid(node));
  if (row != table().end()) row->second(node, leaves, seen);
  return seen;
}

}  // namespace reprise::runtime
