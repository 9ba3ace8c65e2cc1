// Training steps written down operation by operation: forward calls are recorded, and the backward
// operations follow from them, as an autograd tape would have it.
//
// The cost model. An operation takes
//
//   launch + max(floating-point operations / kFlops, bytes read and written / kBandwidth)
//
// of a machine with kFlops = 2e12 / s, kBandwidth = 2e11 B / s, launch = 4 us: an accelerator whose
// large convolutions and matrix products are bound by arithmetic and everything else by bandwidth.
// A value has 4 bytes an element. Workspace: convolutions take a quarter of what they read and
// write, batch norm's backward one copy of its output. Parameters are outside the graph; their
// gradients are results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::bench {

struct Tensor {
  ValueIndex value = -1;
  int64_t elements = 0;
  bool wants_gradient = true;
};

class Tape {
 public:
  explicit Tape(std::string name) { graph_.name = std::move(name); }

  Tensor input(const std::string& name, int64_t elements);
  // Computes y = x W + b, where x has `rows` rows of `in` numbers and y has `rows` rows of `out`.
  // The operation saves x.
  Tensor linear(const std::string& name, Tensor x, int64_t rows, int64_t in, int64_t out,
                bool bias = true);
  // The kernel is square. `pixels` counts those of the output in the whole batch, or those of the
  // input for a transposed convolution. With `groups` equal to the channels the convolution is
  // depthwise. The operation saves x.
  Tensor convolution(const std::string& name, Tensor x, int64_t pixels, int64_t in, int64_t out,
                     int64_t kernel, int64_t groups = 1);
  Tensor transposed_convolution(const std::string& name, Tensor x, int64_t pixels, int64_t in,
                                int64_t out, int64_t kernel);
  // A batch, group or layer norm saves x and two numbers for each statistic.
  Tensor norm(const std::string& name, Tensor x, int64_t statistics, int64_t weights,
              bool backward_copies = false);
  Tensor smooth(const std::string& name, Tensor x);  // GELU or SiLU; saves x
  Tensor relu(const std::string& name, Tensor x);    // saves its output
  Tensor add(const std::string& name, Tensor a, Tensor b);
  Tensor concatenate(const std::string& name, Tensor a, Tensor b);
  Tensor max_pool(const std::string& name, Tensor x, int64_t factor);  // saves x and indices
  Tensor average_pool(const std::string& name, Tensor x, int64_t factor);
  // Saves three parts of x (as one value), the output, and a number for each row.
  Tensor attention(const std::string& name, Tensor x, int64_t batch, int64_t tokens, int64_t width,
                   int64_t heads);
  Tensor embedding(const std::string& name, Tensor x, int64_t rows, int64_t width, int64_t entries);

  // Adds the soft-max and the loss, then the whole backward pass. The tape ends here.
  Graph cross_entropy(Tensor logits, int64_t rows);

 private:
  struct Gradient {
    std::string name;  // name of the operation that makes it
    double flops = 0;
    std::vector<ValueIndex> reads;  // read beside the gradient of the output
    std::vector<int64_t> outputs;   // elements for each forward input; 0: none
    int64_t weights = 0;            // elements of a weight gradient that it writes
    int64_t workspace = 0;          // bytes
  };
  // A forward operation has its backward operations with it, in their order.
  struct Entry {
    std::vector<Tensor> inputs;
    ValueIndex output = -1;
    std::vector<Gradient> gradients;
  };

  ValueIndex value(const std::string& id, int64_t elements, ValueKind kind);
  int64_t bytes(ValueIndex value) const;
  void run(const std::string& id, Phase phase, double flops, std::vector<ValueIndex> reads,
           std::vector<ValueIndex> writes, int64_t workspace);
  Tensor forward(const std::string& name, double flops, std::vector<Tensor> inputs,
                 int64_t elements, std::vector<ValueIndex> also, int64_t workspace,
                 std::vector<Gradient> gradients);
  void backward(const Entry& entry);
  void accumulate(const Tensor& input, ValueIndex gradient);

  Graph graph_;
  std::vector<Entry> entries_;
  std::vector<ValueIndex> gradient_of_;  // by value; -1: none yet
};

}  // namespace reprise::bench
