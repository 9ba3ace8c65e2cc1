// This header has reversible networks: the backward pass computes the inputs of each block from its
// outputs, so that memory for activations does not grow with the number of blocks.
//
//   std::vector<rt::nn::ReversibleBlock> blocks;
//   for (int i = 0; i < 64; ++i) blocks.push_back({branch(f[i]), branch(g[i])});
//   auto net = std::make_shared<rt::nn::ReversibleSequence>(blocks);
//   auto [y1, y2] = net->forward(x1, x2);  // y1 = x1 + f(x2), y2 = x2 + g(y1); backward as usual
//
// The method is that of Gomez et al., "The Reversible Residual Network: Backpropagation Without Storing
// Activations", NeurIPS 2017, arXiv 1707.04585, section 3: a block is undone by x2 = y2 - g(y1),
// x1 = y1 - f(x2). In floating point a sum cannot be undone exactly, and errors grow from block to
// block. Here the two streams are held as fixed-point numbers by default: multiples of
// 2^-fraction_bits in integers, whose sums are undone to the last bit. f and g see and return the
// floating-point numbers that they always did.
//
// StreamNumbers::kFixedPoint guarantees:
// - Results, gradients, buffers and random state are bitwise those of the same network with
//   `reverse = false`, which is plain training of it: the sums are rounded to fixed point there, too,
//   and the backward pass takes that rounding for the identity in both. f and g must be deterministic.
//   Random numbers are drawn again as they were, batch norms advance once.
// - Each sum differs from its floating-point value by at most 2^-(fraction_bits + 1).
// - Numbers must stay in [-2^(31 - fraction_bits), 2^(31 - fraction_bits)), which is [-2048, 2048) by
//   default. This is checked in each sum, and NaN counts as outside: forward() throws InputError with
//   the name of the branch. With `reverse`, buffers and random state are then as before.
// StreamNumbers::kFloatingPoint has no such range and rounds nothing. Its gradients are
// those of plain training up to the error of the inverse. It grows with the depth: in float32 about
// 1e-6 of the largest gradient after 64 blocks, in bfloat16 several percent.
//
// Cost: f and g run twice, which is a third more work than plain training. Memory for activations is
// the two streams, in 32 bits an element (64 for double), what the last results take, and what autograd
// keeps for one branch. Beside that, each branch that draws random numbers has 2.5 KB, and each branch
// whose buffers change has a copy of them, until the backward pass.
//
// In a step that is being captured (capture.h), and inside of a stage of a planned model (remat.h), the
// network runs plainly, so that the plan decides what is kept; a captured step does not notice numbers
// out of range.
//
// The network refuses with an InputError: a branch that returns another shape than that of the stream,
// that changes its input in place, or whose parameters change between the two passes; a second
// backward pass, and derivatives of derivatives (create_graph); forward-mode derivatives. A tensor
// that a branch uses and that requires a gradient must be a parameter of its module.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::nn {

// StreamNumbers says how the two streams of a reversible network are held.
enum class StreamNumbers {
  kFixedPoint,     // exact to the bit
  kFloatingPoint,  // equal up to the error of the inverse
};

struct ReversibleOptions {
  StreamNumbers streams = StreamNumbers::kFixedPoint;
  int fraction_bits = 20;  // 1 to 30; 1 to 52 for inputs of double
  bool reverse = true;     // false: autograd keeps what it always does
  int64_t dim = 1;         // along which forward(x) halves its input

  bool operator==(const ReversibleOptions&) const = default;
};

// y1 = x1 + f(x2), y2 = x2 + g(y1). Each branch takes one tensor and returns one. `name` names it in
// messages; blocks without names are numbered.
struct ReversibleBlock {
  Stage f, g;
};

// Returns the branch of a module.
template <class Contained>
Stage branch(const torch::nn::ModuleHolder<Contained>& module, std::string name = "") {
  return {.name = std::move(name), .module = module.ptr(), .forward = [module](const Tensors& x) {
            auto shared = module;
            return Tensors{shared->forward(x[0])};
          }};
}

// A ReversibleSequence is the blocks as a module, whose parameters, buffers, to(), train() and
// eval() are those of all branches.
class ReversibleSequence : public torch::nn::Module {
 public:
  // Throws InputError if there is no block, a branch has no function, or an option is out of range.
  explicit ReversibleSequence(std::vector<ReversibleBlock> blocks, ReversibleOptions options = {});

  // Returns y1 and y2 of the last block. Throws InputError, see above; also unless both inputs are
  // dense tensors of real numbers of one type and device.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x1, const at::Tensor& x2);
  // Runs on the two halves of x along options().dim, and joins the results along it. Throws InputError
  // as the other does, and if that size is odd.
  at::Tensor forward(const at::Tensor& x);

  const ReversibleOptions& options() const { return options_; }
  void set_reverse(bool reverse) { options_.reverse = reverse; }

 private:
  std::vector<Stage> branches_;
  ReversibleOptions options_;
};

}  // namespace reprise::runtime::nn
