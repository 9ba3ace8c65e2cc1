// These are activations whose backward pass keeps 1 to 5 bits an element: few-bit backward.
//
// The forward pass is PyTorch's. The backward pass replaces the derivative by a function that is
// constant between a few boundaries, so that only the number of the step is kept for each element:
//
//   at::Tensor y = rt::nn::few_bit("gelu", x, 3);  // keeps 3 bits an element, and not x
//
// The method is that of Novikov et al., "Few-Bit Backward: Quantized Gradients of Activation
// Functions for Memory Footprint Reduction", arXiv 2202.00441. Boundaries and levels come from the
// dynamic program of its section 3 and not from the published tables, which are further from the
// optimum. The steps of "regelu2" and "resilu2" are those of Yang et al., arXiv 2406.16282, section
// 4: the derivative of a sum of three ReLUs that was fitted to the function.
//
// Gradients are approximate. They are exactly level[step(x)] * dy, and their error is at most
// |f'(x) - level| * |dy|; StepTable::largest_error bounds it for x inside the range of the table.
// The bias does not average out: use this for fine-tuning, where it was found to be harmless.
//
// It saves memory where the input x is not kept by something else, and where the result is not kept
// by the layer behind: a layer with frozen weights, an addition, a pooling. A linear layer that is
// trained keeps its input whatever the activation does. If both are free to choose, keep x and make
// the result again, which is exact.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace reprise::runtime::nn {

// A StepTable is a function that is constant between boundaries: levels[i] from boundaries[i - 1]
// to boundaries[i].
struct StepTable {
  std::vector<double> boundaries;  // ascending
  std::vector<double> levels;      // one more than boundaries: 2, 4, 8, 16 or 32
  double squared_error = 0;        // the integral of (f' - level)^2 over the range
  double largest_error = 0;        // the largest |f' - level| in the range

  bool operator==(const StepTable&) const = default;
};

struct StepOptions {
  int bits = 3;  // 1 to 5
  double low = -10, high = 10;
  int cells = 2000;  // boundaries lie between cells of the range

  bool operator==(const StepOptions&) const = default;
};

// Returns the steps with the least squared error among those whose boundaries lie between cells. It
// takes O(cells^2 * 2^bits): 0.1 s for 2,000 cells and 3 bits. Throws InputError for other bits, for
// an empty range, for fewer cells than steps, and if the derivative is not finite in the range.
StepTable best_steps(const std::function<double(double)>& derivative,
                     const StepOptions& options = {});

struct FewBitActivation {
  std::string name;     // "gelu"
  std::string formula;  // for people
  int bits = 0;         // 0: 1 to 5 bits; else the one number that there is
};
// gelu, gelu-tanh, silu, mish, hard-swish, softplus, elu, tanh, sigmoid, regelu2, resilu2.
const std::vector<FewBitActivation>& few_bit_activations();

// Returns the table of an activation. It is made when it is first asked for. Throws InputError if
// there is no such activation or no such number of bits.
const StepTable& few_bit_table(const std::string& name, int bits);

// Returns the activation of x; autograd keeps `bits` bits an element. NaN counts as very large.
// Throws InputError as few_bit_table() does, if x is no dense tensor of real numbers, and for a
// second derivative. In a step that is being captured the same runs by operations of PyTorch.
at::Tensor few_bit(const std::string& name, const at::Tensor& x, int bits = 3);

}  // namespace reprise::runtime::nn
