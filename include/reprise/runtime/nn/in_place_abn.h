// This is a batch norm and its activation that keep their result alone for the backward pass:
// InPlace-ABN.
//
//   rt::nn::InPlaceAbn norm(64, {.activation = rt::nn::AbnActivation::kLeakyRelu});
//   at::Tensor z = norm->forward(x);  // keeps z, which the next layer keeps anyway, and not x
//
// The method is that of Rota Bulo et al., "In-Place Activated BatchNorm for Memory-Optimized Training of
// DNNs", CVPR 2018, arXiv 1712.02616, section 3: the activation is inverted, and the normalised input
// follows from its result. The backward pass is the paper's second one, which needs no normalised input.
//
// Results and running statistics are bitwise those of at::batch_norm() and the activation; the function
// and its parameters are those of a batch norm, so that trained weights of any sign can be loaded. (The
// paper's own layer takes |weight| + eps.) Gradients are equal up to rounding.
//
// Rounding of the result grows by |bias| / |weight| when the batch norm is inverted, and for ELU by more
// where it is close to -alpha. The input is kept for those channels where the factor is above `guard`,
// and their gradients are computed from it: a weight of zero costs memory, and no accuracy.
//
// In a step that is being captured (capture.h) the layer runs by PyTorch's operations, and the planner
// finds alternatives that keep the result alone by itself.
//
// The layer refuses with an InputError: an activation that has no inverse, inputs that are no dense
// tensors of real numbers of at least two dimensions, and derivatives of derivatives (create_graph).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace reprise::runtime::nn {

enum class AbnActivation {
  kLeakyRelu,  // y > 0 ? y : parameter * y
  kElu,        // y > 0 ? y : parameter * (exp(y) - 1)
  kIdentity,
};

struct InPlaceAbnOptions {
  AbnActivation activation = AbnActivation::kLeakyRelu;
  double parameter = 0.01;  // above 0: the slope of leaky ReLU, the alpha of ELU
  double eps = 1e-5;
  double momentum = 0.1;
  // By how much rounding errors of the result may grow in the normalised input: the unit of rounding times
  // this is the error that is allowed. 0: 1,000 (an error of 6e-5 in float32), and 8 for 16-bit numbers.
  double guard = 0;

  bool operator==(const InPlaceAbnOptions&) const = default;
};

// Returns activation(batch_norm(x)) over dimension 1. `weight` and `bias` may be undefined: 1 and 0. With
// `training` the statistics are those of x, and the running ones, if defined, go on by `momentum`.
// Otherwise they are the running ones. Throws InputError, see above.
at::Tensor in_place_abn(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& running_mean, const at::Tensor& running_var,
                        bool training, const InPlaceAbnOptions& options = {});

// InPlaceAbn is the layer. It has the parameters and buffers of torch::nn::BatchNorm2d.
class InPlaceAbnImpl : public torch::nn::Module {
 public:
  explicit InPlaceAbnImpl(int64_t features, InPlaceAbnOptions options = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  InPlaceAbnOptions options_;
};
TORCH_MODULE(InPlaceAbn);

}  // namespace reprise::runtime::nn
