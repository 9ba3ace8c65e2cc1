// A machine of finite depth is a network with all shortcuts at once, solved in one buffer.
//
//   rt::nn::FiniteDepth machine({16, 32, 32, 10}, "tanh");  // a block of inputs, and three others
//   at::Tensor z = machine->forward(x);                     // samples x (16 + 32 + 32 + 10)
//   at::Tensor y = z.narrow(1, 80, 10);
//
// The layer is that of Vertechi and Bergomi, "Machines of finite depth: towards a formalization of neural
// networks", arXiv 2204.12786: z = z0 + sigma(W z + b) with W strictly lower block-triangular, so that each
// block sees all blocks before it. It is solved block by block. The backward pass is the same solver with
// W transposed, from the last block to the first, and sigma' follows from its result: autograd keeps z and
// nothing else. With concatenations, as in a DenseNet, memory grows with the square of the number of blocks.
//
// Results and gradients are equal to those of concatenations up to rounding. Derivatives of derivatives
// (create_graph) are refused with an InputError.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::nn {

// Returns z: x in front, then each block. `weights[i]` has the size of block i + 1 x that of all before it,
// and `biases[i]` the size of the block. `activation` is relu, leaky-relu (slope 0.01), tanh, sigmoid or
// identity. x may have any number of dimensions; blocks are along the last one. Throws InputError for other
// shapes and names.
at::Tensor finite_depth(const at::Tensor& x, const Tensors& weights, const Tensors& biases,
                        const std::string& activation = "relu");

// FiniteDepth is the layer, with weights and biases that torch::nn::Linear would begin with. Throws
// InputError unless there are two sizes above 0.
class FiniteDepthImpl : public torch::nn::Module {
 public:
  explicit FiniteDepthImpl(std::vector<int64_t> sizes, std::string activation = "relu");
  at::Tensor forward(const at::Tensor& x);

 private:
  Tensors weights_, biases_;
  std::string activation_;
};
TORCH_MODULE(FiniteDepth);

}  // namespace reprise::runtime::nn
