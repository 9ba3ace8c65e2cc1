// This file has reversible networks as nodes of autograd: one node for each branch. The nodes of a
// call share its streams, and hand over the gradients of parameters as soon as these are complete.
// Paper and symbols: stream_walk.cc.
#include "reprise/runtime/nn/reversible.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <array>
#include <optional>

#include "reprise/model/errors.h"
#include "runtime/device/compat.h"
#include "runtime/modules/stage_modules.h"
#include "runtime/nn/fixed_point.h"
#include "runtime/nn/stream_walk.h"
#include "runtime/step/record.h"

namespace reprise::runtime {
namespace internal::nn {
namespace {

using runtime::nn::ReversibleOptions;
using runtime::nn::StreamNumbers;

// The nodes of a call share this. A copy of the branches is cheap: their functions and modules are shared.
struct WalkUnderWay {
  WalkUnderWay(std::vector<Stage> given, const ReversibleOptions& options, const TwoTensors& inputs)
      : branches(std::move(given)), walk(branches, options, inputs) {}
  const std::vector<Stage> branches;
  StreamWalk walk;
};

struct BranchNode final : torch::autograd::Node {
  std::shared_ptr<WalkUnderWay> under_way;
  const size_t branch;

  BranchNode(std::shared_ptr<WalkUnderWay> shared, size_t number)
      : under_way(std::move(shared)), branch(number) {}
  std::string name() const override { return "reprise::ReversibleBranch"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "a reversible network has no second derivative: it was asked for with create_graph=True. "
          "Set reverse to false for it");
    }
    try {
      TwoTensors pair = {std::move(gradients[0]), std::move(gradients[1])};
      gradients.clear();
      return under_way->walk.backward(branch, std::move(pair));
    } catch (...) {
      under_way->walk.drop();
      throw;
    }
  }
};

torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  return tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                : torch::autograd::Edge();
}

TwoTensors run_reversibly(const std::vector<Stage>& branches, const ReversibleOptions& options,
                          const TwoTensors& inputs) {
  const auto under_way = std::make_shared<WalkUnderWay>(branches, options, inputs);
  StreamWalk& walk = under_way->walk;
  walk.forward();
  TwoTensors results = {walk.numbers(0), walk.numbers(1)};
  if (walk.first() == branches.size()) return results;
  torch::autograd::edge_list edges = {edge_of(inputs[0]), edge_of(inputs[1])};
  for (size_t branch = walk.first(); branch < branches.size(); ++branch) {
    auto node = device::make_node<BranchNode>(under_way, branch);
    for (size_t p : walk.complete_at(branch)) edges.push_back(edge_of(walk.parameters()[p]));
    node.node->set_next_edges(std::move(edges));
    const bool last = branch + 1 == branches.size();
    for (size_t e = 0; e < 2; ++e) {
      if (last && walk.needed(e)) {
        torch::autograd::set_history(results[e], node.pointer);
      } else {
        node.node->add_input_metadata(inputs[e]);
      }
    }
    edges = {torch::autograd::Edge(node.pointer, 0), torch::autograd::Edge(node.pointer, 1)};
  }
  walk.watch(results);
  return results;
}

// The numbers of a stream that is held as integers. Rounding is the identity in the backward pass.
struct RoundedStream : torch::autograd::Function<RoundedStream> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& change, const at::Tensor& q,
                            int64_t fraction_bits) {
    context->set_materialize_grads(false);
    context->saved_data["sum"] = change.has_value();
    return from_fixed(q, x.scalar_type(), static_cast<int>(fraction_bits));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& by_result) {
    const bool sum = context->saved_data["sum"].toBool();
    return {by_result[0], sum ? by_result[0] : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

TwoTensors run_plainly(const std::vector<Stage>& branches, const ReversibleOptions& options,
                       TwoTensors x) {
  const bool fixed = options.streams == StreamNumbers::kFixedPoint;
  const bool wide = x[0].scalar_type() == at::kDouble, checked = !step::is_recording();
  TwoTensors q;
  const auto add = [&](size_t behind, size_t stream, const at::Tensor& change) {
    const at::NoGradGuard no_grad;
    const at::Tensor outside = add_fixed(q[stream], change.detach(), options.fraction_bits);
    std::vector<at::Tensor> all(behind);
    all.push_back(outside);
    if (checked) check_range(branches, all, wide, options.fraction_bits);
  };
  for (size_t e = 0; fixed && e < 2; ++e) {
    q[e] = at::zeros_like(x[e], x[e].options().dtype(integers_for(x[e].scalar_type())));
    add(0, e, x[e]);
    x[e] = RoundedStream::apply(x[e], std::optional<at::Tensor>(), q[e], options.fraction_bits);
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    const size_t to = i % 2, from = 1 - to;
    const at::Tensor change = checked_branch(branches[i], x[to]).forward({x[from]})[0];
    if (fixed) {
      add(i + 1, to, change);
      x[to] = RoundedStream::apply(x[to], std::optional<at::Tensor>(change), q[to],
                                   options.fraction_bits);
    } else {
      x[to] = (x[to] + change).to(x[to].scalar_type());
    }
  }
  return x;
}

void check_streams(const TwoTensors& x, const ReversibleOptions& options) {
  for (const at::Tensor& stream : x) {
    if (!stream.defined() || stream.layout() != at::kStrided || !stream.is_floating_point() ||
        stream.scalar_type() != x[0].scalar_type() || stream.device() != x[0].device()) {
      throw InputError(
          "a reversible network takes two dense tensors of real numbers, of one type and one "
          "device");
    }
    if (stream._fw_grad(0).defined()) {
      throw InputError(
          "an input of a reversible network has a forward-mode derivative, which it does "
          "not carry on");
    }
  }
  const bool narrow = x[0].scalar_type() != at::kDouble;
  if (options.streams == StreamNumbers::kFixedPoint && narrow && options.fraction_bits > 30) {
    throw InputError(c10::str("fraction_bits is ", options.fraction_bits, ", and streams of ",
                              x[0].scalar_type(), " have 32 bits: take 30 or fewer"));
  }
}

}  // namespace
}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;

ReversibleSequence::ReversibleSequence(std::vector<ReversibleBlock> blocks,
                                       ReversibleOptions options)
    : torch::nn::Module("ReversibleSequence"), options_(options) {
  if (blocks.empty()) throw InputError("a reversible network needs at least one block");
  if (options.fraction_bits < 1 || options.fraction_bits > 52) {
    throw InputError(c10::str("fraction_bits is 1 to 52, not ", options.fraction_bits));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (auto [stage, letter] : {std::pair(&blocks[i].f, "f"), std::pair(&blocks[i].g, "g")}) {
      if (stage->name.empty()) stage->name = c10::str(i, ".", letter);
      if (!stage->forward) throw InputError("branch '" + stage->name + "' has no function");
      branches_.push_back(std::move(*stage));
    }
  }
  internal::modules::register_stages(*this, branches_);
}

std::pair<at::Tensor, at::Tensor> ReversibleSequence::forward(const at::Tensor& x1,
                                                              const at::Tensor& x2) {
  const in::TwoTensors x = {x1, x2};
  in::check_streams(x, options_);
  // Inside of a planned stage, the plan decides what is kept.
  const bool plainly = !options_.reverse || !at::GradMode::is_enabled() ||
                       internal::step::is_recording() || internal::chain::within_stage();
  in::TwoTensors y = plainly ? in::run_plainly(branches_, options_, x)
                             : in::run_reversibly(branches_, options_, x);
  return {std::move(y[0]), std::move(y[1])};
}

at::Tensor ReversibleSequence::forward(const at::Tensor& x) {
  const int64_t dim = options_.dim;
  if (!x.defined() || dim >= x.dim() || dim < -x.dim() || x.size(dim) % 2 != 0) {
    throw InputError(c10::str("a reversible network halves its input along dimension ", dim,
                              ", so that this must have an even size; give two tensors otherwise"));
  }
  const std::vector<at::Tensor> halves = x.chunk(2, dim);
  const auto [y1, y2] = forward(halves[0], halves[1]);
  return at::cat({y1, y2}, dim);
}

}  // namespace nn
}  // namespace reprise::runtime
