#include "tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reprise::bench {
namespace {

constexpr double kFlops = 2e12, kBandwidth = 2e11, kLaunch = 4e-6;
constexpr int64_t kElement = 4;  // bytes

}  // namespace

ValueIndex Tape::value(const std::string& id, int64_t elements, ValueKind kind) {
  graph_.values.push_back({id, Bytes(kElement * elements), kind});
  gradient_of_.push_back(-1);
  return static_cast<ValueIndex>(graph_.values.size()) - 1;
}

int64_t Tape::bytes(ValueIndex value) const {
  return graph_.values[static_cast<size_t>(value)].bytes.count();
}

void Tape::run(const std::string& id, Phase phase, double flops, std::vector<ValueIndex> reads,
               std::vector<ValueIndex> writes, int64_t workspace) {
  double moved = 0;
  for (const ValueIndex value : reads) moved += static_cast<double>(bytes(value));
  for (const ValueIndex value : writes) moved += static_cast<double>(bytes(value));
  const double seconds = kLaunch + std::max(flops / kFlops, moved / kBandwidth);
  Op op;
  op.id = id;
  op.phase = phase;
  op.variants.emplace_back();
  Variant& variant = op.variants.back();
  variant.time = Nanos(static_cast<int64_t>(seconds * 1e9));
  variant.workspace = Bytes(workspace);
  variant.reads = std::move(reads);
  variant.writes = std::move(writes);
  graph_.ops.push_back(std::move(op));
}

Tensor Tape::input(const std::string& name, int64_t elements) {
  return {value(name, elements, ValueKind::kInput), elements, false};
}

Tensor Tape::forward(const std::string& name, double flops, std::vector<Tensor> inputs,
                     int64_t elements, std::vector<ValueIndex> also, int64_t workspace,
                     std::vector<Gradient> gradients) {
  const Tensor output{value(name, elements, ValueKind::kActivation), elements, true};
  std::vector<ValueIndex> reads, writes{output.value};
  for (const Tensor& input : inputs) {
    if (std::find(reads.begin(), reads.end(), input.value) == reads.end()) {
      reads.push_back(input.value);
    }
  }
  writes.insert(writes.end(), also.begin(), also.end());
  run(name, Phase::kForward, flops, reads, writes, workspace);
  entries_.push_back({std::move(inputs), output.value, std::move(gradients)});
  return output;
}

Tensor Tape::linear(const std::string& name, Tensor x, int64_t rows, int64_t in, int64_t out,
                    bool bias) {
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in * out);
  std::vector<Gradient> gradients;
  gradients.push_back({"input", flops, {}, {rows * in}, 0, 0});
  gradients.push_back({"weight", flops, {x.value}, {}, in * out, 0});
  if (bias) gradients.push_back({"bias", 0, {}, {}, out, 0});
  return forward(name, flops, {x}, rows * out, {}, 0, std::move(gradients));
}

Tensor Tape::convolution(const std::string& name, Tensor x, int64_t pixels, int64_t in, int64_t out,
                         int64_t kernel, int64_t groups) {
  const int64_t weights = in * out * kernel * kernel / groups;
  const double flops = 2.0 * static_cast<double>(pixels) * static_cast<double>(weights);
  const int64_t workspace = kElement * (x.elements + pixels * out) / 4;
  return forward(name, flops, {x}, pixels * out, {}, workspace,
                 {{"backward", 2 * flops, {x.value}, {x.elements}, weights, 2 * workspace}});
}

Tensor Tape::transposed_convolution(const std::string& name, Tensor x, int64_t pixels, int64_t in,
                                    int64_t out, int64_t kernel) {
  const int64_t weights = in * out * kernel * kernel;
  const double flops = 2.0 * static_cast<double>(pixels) * static_cast<double>(weights);
  const int64_t elements = pixels * kernel * kernel * out;
  const int64_t workspace = kElement * (x.elements + elements) / 4;
  return forward(name, flops, {x}, elements, {}, workspace,
                 {{"backward", 2 * flops, {x.value}, {x.elements}, weights, 2 * workspace}});
}

Tensor Tape::norm(const std::string& name, Tensor x, int64_t statistics, int64_t weights,
                  bool backward_copies) {
  const ValueIndex saved = value(name + ".stats", 2 * statistics, ValueKind::kSaved);
  const int64_t workspace = backward_copies ? kElement * x.elements : 0;
  return forward(name, 0, {x}, x.elements, {saved}, 0,
                 {{"backward", 0, {x.value, saved}, {x.elements}, 2 * weights, workspace}});
}

Tensor Tape::smooth(const std::string& name, Tensor x) {
  return forward(name, 0, {x}, x.elements, {}, 0, {{"backward", 0, {x.value}, {x.elements}, 0, 0}});
}

Tensor Tape::relu(const std::string& name, Tensor x) {
  const auto output = static_cast<ValueIndex>(graph_.values.size());
  return forward(name, 0, {x}, x.elements, {}, 0, {{"backward", 0, {output}, {x.elements}, 0, 0}});
}

// The gradient of a sum is also the gradient of each term, so the backward needs no operation.
Tensor Tape::add(const std::string& name, Tensor a, Tensor b) {
  return forward(name, 0, {a, b}, a.elements, {}, 0, {});
}

Tensor Tape::concatenate(const std::string& name, Tensor a, Tensor b) {
  return forward(
      name, 0, {a, b}, a.elements + b.elements, {}, 0,
      {{"slice0", 0, {}, {a.elements, 0}, 0, 0}, {"slice1", 0, {}, {0, b.elements}, 0, 0}});
}

Tensor Tape::max_pool(const std::string& name, Tensor x, int64_t factor) {
  const int64_t elements = x.elements / (factor * factor);
  const ValueIndex indices = value(name + ".indices", 2 * elements, ValueKind::kSaved);
  return forward(name, 0, {x}, elements, {indices}, 0,
                 {{"backward", 0, {x.value, indices}, {x.elements}, 0, 0}});
}

Tensor Tape::average_pool(const std::string& name, Tensor x, int64_t factor) {
  return forward(name, 0, {x}, x.elements / (factor * factor), {}, 0,
                 {{"backward", 0, {}, {x.elements}, 0, 0}});
}

Tensor Tape::attention(const std::string& name, Tensor x, int64_t batch, int64_t tokens,
                       int64_t width, int64_t heads) {
  const double flops =
      4.0 * static_cast<double>(batch * tokens) * static_cast<double>(tokens * width);
  const ValueIndex saved = value(name + ".logsumexp", batch * heads * tokens, ValueKind::kSaved);
  const auto output = static_cast<ValueIndex>(graph_.values.size());
  return forward(name, flops, {x}, batch * tokens * width, {saved}, 0,
                 {{"backward", 2.5 * flops, {x.value, output, saved}, {x.elements}, 0, 0}});
}

Tensor Tape::embedding(const std::string& name, Tensor x, int64_t rows, int64_t width,
                       int64_t entries) {
  return forward(name, 0, {x}, rows * width, {}, 0,
                 {{"backward", 0, {x.value}, {0}, entries * width, 0}});
}

// The gradient that came is the input's gradient, or it is added to the one that is there already.
void Tape::accumulate(const Tensor& input, ValueIndex gradient) {
  ValueIndex& before = gradient_of_[static_cast<size_t>(input.value)];
  if (before < 0) {
    before = gradient;
    return;
  }
  const std::string id = fmt::format("sum{}", graph_.ops.size());
  const ValueIndex old = before;
  const ValueIndex sum = value("g." + id, input.elements, ValueKind::kGradient);
  run(id, Phase::kBackward, 0, {old, gradient}, {sum}, 0);
  gradient_of_[static_cast<size_t>(input.value)] = sum;
}

void Tape::backward(const Entry& entry) {
  const std::string name = graph_.values[static_cast<size_t>(entry.output)].id;
  const ValueIndex incoming = gradient_of_[static_cast<size_t>(entry.output)];
  if (entry.gradients.empty()) {
    for (const Tensor& input : entry.inputs) accumulate(input, incoming);
    return;
  }
  for (const Gradient& gradient : entry.gradients) {
    const std::string id = fmt::format("{}.{}", name, gradient.name);
    std::vector<ValueIndex> reads{incoming}, writes;
    reads.insert(reads.end(), gradient.reads.begin(), gradient.reads.end());
    std::vector<std::pair<Tensor, ValueIndex>> made;
    for (size_t k = 0; k < gradient.outputs.size(); ++k) {
      if (gradient.outputs[k] == 0 || !entry.inputs[k].wants_gradient) continue;
      const ValueIndex output =
          value(fmt::format("g.{}.{}", id, k), gradient.outputs[k], ValueKind::kGradient);
      made.emplace_back(entry.inputs[k], output);
      writes.push_back(output);
    }
    if (gradient.weights > 0) {
      writes.push_back(value("w." + id, gradient.weights, ValueKind::kGradient));
      graph_.results.push_back(writes.back());
    }
    if (writes.empty()) continue;
    run(id, Phase::kBackward, gradient.flops, reads, writes, gradient.workspace);
    for (const auto& [input, output] : made) accumulate(input, output);
  }
}

Graph Tape::cross_entropy(Tensor logits, int64_t rows) {
  const ValueIndex soft = value("log_softmax", logits.elements, ValueKind::kActivation);
  const ValueIndex loss = value("loss", 1, ValueKind::kActivation);
  run("log_softmax", Phase::kForward, 0, {logits.value}, {soft}, 0);
  const ValueIndex targets = value("targets", 2 * rows, ValueKind::kInput);
  run("nll_loss", Phase::kLoss, 0, {soft, targets}, {loss}, 0);
  graph_.results.push_back(loss);
  const ValueIndex spread = value("g.log_softmax", logits.elements, ValueKind::kGradient);
  run("nll_loss.backward", Phase::kBackward, 0, {soft, targets}, {spread}, 0);
  const ValueIndex gradient = value("g.logits", logits.elements, ValueKind::kGradient);
  run("log_softmax.backward", Phase::kBackward, 0, {spread, soft}, {gradient}, 0);
  gradient_of_[static_cast<size_t>(logits.value)] = gradient;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) backward(*entry);
  return std::move(graph_);
}

}  // namespace reprise::bench
