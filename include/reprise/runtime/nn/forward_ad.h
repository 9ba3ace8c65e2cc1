// These are element-wise functions that keep less for the backward pass, without a capture: nested
// Forward-AD.
//
// An activation that is written out (x * sigmoid(x)) makes autograd keep a tensor for each of its
// operations. The functions here run it tile by tile, so that inner tensors exist for one tile only,
// and keep one tensor of the size of the result:
//
//   rt::nn::TiledFunction swish = rt::nn::forward_ad([](const at::Tensor& x) { return x * x.sigmoid(); });
//   at::Tensor y = swish(x);   // keeps dy/dx; the backward pass is one multiplication
//
// forward_ad() keeps the derivative, after Guo et al., "Nested Forward Automatic Differentiation for
// Memory-Efficient Deep Neural Network Training", arXiv 2209.10778, section 4: the derivative of an
// element-wise function is diagonal, so that the forward pass can compute it and keep it alone. The
// paper gets it by forward-mode derivatives. Here it is the reverse pass of the tile with a gradient
// of ones, which gives the same diagonal from PyTorch's own formulas.
//
// in_tile() keeps the operands and runs the function again, inside the backward pass of each tile.
//
// The layer guarantees:
// - Results are bitwise those of the plain function if all operands have one shape and one layout,
//   with one thread, or with several and at least 32,768 elements for each. With fewer, some kernels
//   of ATen use more threads than others, so that they round differently at other places. So they do
//   on several threads where derivatives are stored in 8 bits, because the blocks with one scale cut
//   the ranges of the threads.
//   With operands that are broadcast or laid out differently, they are equal up to rounding: some
//   kernels of ATen round differently in the last elements of a loop.
// - Gradients of in_tile() are bitwise equal to plain ones under the same condition, if the gradient
//   of the result has that layout, too, or is one expanded number.
// - Gradients of forward_ad() are equal up to rounding: they are as close to the exact gradients as
//   plain ones are, up to a small factor (in float32, for activations, about 2e-7 of the largest). The gradient of
//   an operand that is broadcast is a sum, and its error is that of a sum in another order.
// - A derivative that is stored in fewer bits is approximate. See DerivativeStorage.
//
// Several threads divide the elements as ATen's own kernels do. The function is then called by
// several threads at the same time.
//
// In a step that is being captured (capture.h) the function runs plainly, operation by operation, so
// that the planner sees its operations.
//
// The layer refuses with an InputError: a function that is not element-wise (soft-max, norms), that
// draws random numbers, that changes its operands in place, or that uses a tensor that requires a
// gradient and is no operand; operands that are no real numbers, no plain dense tensors or on several
// devices; derivatives of derivatives (create_graph); torch.func and forward-mode derivatives.
// The function is tried out for this on 64 numbers when it meets a new combination of types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime {
namespace internal::nn {
struct Spec;
}  // namespace internal::nn

namespace nn {

// An element-wise function: the operands have one shape after broadcasting, the result has that
// shape, and each of its elements depends only on the elements at its place. The function sees tiles,
// which have other shapes than the whole tensors.
using Elementwise = std::function<at::Tensor(const Tensors&)>;
using ElementwiseOfOne = std::function<at::Tensor(const at::Tensor&)>;

// A DerivativeStorage says how forward_ad() stores the derivative between forward and backward
// pass.
enum class DerivativeStorage {
  kFull,      // in the type of the operand
  kFloat16,   // 11 significant bits, up to 65,504
  kBFloat16,  // 8 significant bits
  // 8 bits and one scale for each 256 elements: the error of a derivative is at most 1/254 of the
  // largest of the 256. Zero stays zero. One infinity or NaN makes all 256 NaN.
  kScaled8,
};

struct ForwardAdOptions {
  DerivativeStorage storage = DerivativeStorage::kFull;
  // A tile has so many elements: a positive multiple of 4,096. 0 stands for 65,536 on the CPU, and
  // for 4,194,304 elsewhere.
  int64_t tile = 0;

  bool operator==(const ForwardAdOptions&) const = default;
};

struct InTileOptions {
  int64_t tile = 0;  // as in ForwardAdOptions

  bool operator==(const InTileOptions&) const = default;
};

// A TiledFunction is a function that runs tile by tile. Copies share what was found out about the
// function. A call may throw InputError, see above, and what the function throws.
class TiledFunction final {
 public:
  explicit TiledFunction(std::shared_ptr<const internal::nn::Spec> spec);
  // Returns the function of these operands. Autograd works as usual.
  at::Tensor operator()(const Tensors& operands) const;
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  std::shared_ptr<const internal::nn::Spec> spec_;
};

// Keeps the derivative by each operand that requires a gradient: k operands, k tensors of the size of
// the result. Throws InputError if there is no function, or if the tile is no multiple of 4,096.
TiledFunction forward_ad(Elementwise function, ForwardAdOptions options = {});
TiledFunction forward_ad(ElementwiseOfOne function, ForwardAdOptions options = {});

// Keeps the operands. Throws InputError as forward_ad() does.
TiledFunction in_tile(Elementwise function, InTileOptions options = {});
TiledFunction in_tile(ElementwiseOfOne function, InTileOptions options = {});

// An Activation is an activation as its paper writes it.
struct Activation {
  std::string name;     // "gelu-tanh"
  std::string formula;  // for people
  size_t operands = 1;
  Elementwise function;
};

// gelu-erf and gelu-tanh (Hendrycks and Gimpel, arXiv 1606.08415, section 2), swish (Ramachandran et
// al., arXiv 1710.05941), mish (Misra, arXiv 1908.08681, equation 1), hard-swish (Howard et al., arXiv
// 1905.02244, section 5.2), swiglu and geglu (Shazeer, arXiv 2002.05202, equation 6: of the gate and
// the value, without the linear layers).
const std::vector<Activation>& activations();

// Returns the function of one of them. Throws InputError if there is none of this name.
const Elementwise& activation(const std::string& name);

}  // namespace nn
}  // namespace reprise::runtime
