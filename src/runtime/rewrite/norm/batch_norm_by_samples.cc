// The widest tensors of a convolutional network often lie between its first convolution and the
// result of the batch norm and pooling after it. When these run some samples at a time
// (normed_convolution.h), the tensors never exist as a whole.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "runtime/rewrite/convolution/normed_convolution.h"
#include "runtime/rewrite/pattern.h"

namespace reprise::runtime::internal::rewrite {

namespace {

using Stack = std::vector<c10::IValue>;

constexpr const char* kName = "batch-norm-by-samples";
constexpr std::array<int64_t, 3> kParts{2, 4, 8};
// The convolution's result must have at least 1 / kWide of the bytes of the largest value of the
// step. A narrower result does not decide how much memory a step needs.
constexpr int64_t kWide = 4;

// Activations that treat each element by itself.
constexpr std::array kActivations = {
    "aten::relu", "aten::relu_", "aten::hardtanh",   "aten::hardtanh_",   "aten::leaky_relu",
    "aten::silu", "aten::silu_", "aten::gelu",       "aten::leaky_relu_", "aten::hardswish",
    "aten::elu",  "aten::elu_",  "aten::hardswish_",
};

// A Layer has the calls of one occurrence; -1 where there is no such call.
struct Layer {
  int32_t convolution = -1, norm = -1, activation = -1, pooling = -1;
  int32_t pooling_backward = -1, activation_backward = -1, norm_backward = -1,
          convolution_backward = -1;
  bool from_result = false;  // the activation's backward reads its result, not its operand

  int32_t last_forward() const { return std::max({norm, activation, pooling}); }
  int32_t first_backward() const {
    return pooling_backward >= 0      ? pooling_backward
           : activation_backward >= 0 ? activation_backward
                                      : norm_backward;
  }
};
bool same_tensor(const Argument* a, const Argument* b) {
  const auto ref = [](const Argument* one) {
    return one == nullptr || one->tensors.empty() ? TensorRef{} : one->tensors[0];
  };
  return ref(a) == ref(b);
}

class Finder : private Pattern {
 public:
  using Pattern::Pattern;

  // Returns the layer that begins with convolution c, with as many calls behind it as possible, or
  // nothing if there is no batch norm.
  std::optional<Layer> layer_at(int32_t c) const {
    if (name(c) != "aten::convolution") return std::nullopt;
    Layer layer{.convolution = c};
    if (!find_norm(layer)) return std::nullopt;
    for (const bool with_pooling : {true, false}) {
      Layer longer = layer;
      if (find_activation(longer, with_pooling)) return longer;
    }
    if (!is_whole(result_of(layer.norm))) return std::nullopt;
    return layer;
  }

  // Returns the result of the layer.
  const TensorRef& result(const Layer& layer) const { return result_of(layer.last_forward()); }
  const TensorRef& result_of(int32_t c) const { return call(c).outputs[0][0]; }

 private:
  bool is_whole(const TensorRef& ref) const { return covers_storage(ref, recording()); }

  // Returns the only reader of the tensor with this name; -1 if there is none, or more than one.
  int32_t reader(const TensorRef& ref, const char* wanted) const {
    int32_t found = -1;
    for (const int32_t c : readers(ref)) {
      if (name(c) != wanted) continue;
      if (found >= 0) return -1;
      found = c;
    }
    return found;
  }

  bool is_constant_true(int32_t c, const char* which) const {
    return constant(c, which).isBool() && constant(c, which).toBool();
  }

  bool find_norm(Layer& layer) const {
    const Call& convolution = call(layer.convolution);
    const TensorRef& x = result_of(layer.convolution);
    if (maker(x) != layer.convolution || is_result(x) || readers(x).size() != 2) return false;
    layer.norm = reader(x, "aten::native_batch_norm");
    layer.norm_backward = reader(x, "aten::native_batch_norm_backward");
    if (layer.norm < 0 || layer.norm_backward < 0) return false;
    const Call &norm = call(layer.norm), &backward = call(layer.norm_backward);
    if (!is_constant_true(layer.norm, "training") ||
        !is_constant_true(layer.norm_backward, "train") || argument(layer.norm, "input") != x ||
        argument(layer.norm_backward, "input") != x ||
        !same_tensor(argument_of(norm, "weight"), argument_of(backward, "weight")) ||
        norm.outputs[1][0] != argument(layer.norm_backward, "save_mean") ||
        norm.outputs[2][0] != argument(layer.norm_backward, "save_invstd") ||
        !only_read_by(norm.outputs[1][0], {layer.norm_backward}) ||
        !only_read_by(norm.outputs[2][0], {layer.norm_backward}) ||
        maker(result_of(layer.norm)) != layer.norm) {
      return false;
    }
    // Sums over parts would lose the few bits of smaller types.
    const at::ScalarType type = x.geometry.dtype;
    const auto is_of_type = [&](const Argument* one) {
      return one->tensors.empty() || one->tensors[0].memory == Memory::kNone ||
             one->tensors[0].geometry.dtype == type;
    };
    for (const char* which : {"weight", "bias", "running_mean", "running_var"}) {
      if (!is_of_type(argument_of(norm, which))) return false;
    }
    if ((type != at::kFloat && type != at::kDouble) || x.geometry.sizes.size() < 3) return false;

    const TensorRef& dx = result_of(layer.norm_backward);
    if (dx.memory != Memory::kValue || maker(dx) != layer.norm_backward) return false;
    layer.convolution_backward = reader(dx, "aten::convolution_backward");
    if (layer.convolution_backward < 0 || !only_read_by(dx, {layer.convolution_backward})) {
      return false;
    }
    const Call& last = call(layer.convolution_backward);
    if (argument(layer.convolution_backward, "grad_output") != dx ||
        !same_tensor(argument_of(convolution, "input"), argument_of(last, "input")) ||
        !same_tensor(argument_of(convolution, "weight"), argument_of(last, "weight"))) {
      return false;
    }
    // These gradients come later than in plain training, so no call may read them before that.
    for (size_t r = 1; r < backward.outputs.size(); ++r) {
      if (!comes_in_time(backward.outputs[r][0], layer)) return false;
    }
    for (const auto& made : last.outputs) {
      const TensorRef& gradient = made[0];
      if (gradient.memory != Memory::kNone &&
          (maker(gradient) != layer.convolution_backward || !is_whole(gradient))) {
        return false;
      }
    }
    return true;
  }

  bool comes_in_time(const TensorRef& gradient, const Layer& layer) const {
    if (gradient.memory == Memory::kNone) return true;
    return maker(gradient) == layer.norm_backward && is_whole(gradient) &&
           std::all_of(readers(gradient).begin(), readers(gradient).end(),
                       [&](int32_t c) { return c > layer.convolution_backward; });
  }

  // Finds an activation behind the batch norm, and pooling behind the activation.
  bool find_activation(Layer& layer, bool with_pooling) const {
    const TensorRef& normal = result_of(layer.norm);
    const TensorRef& dy = argument(layer.norm_backward, "grad_out");
    layer.activation_backward = maker(dy);
    if (readers(normal).empty() || is_result(normal) || layer.activation_backward < 0) return false;
    layer.activation = readers(normal).front();
    if (std::find(kActivations.begin(), kActivations.end(), name(layer.activation)) ==
            kActivations.end() ||
        call(layer.activation).arguments[0].tensors.size() != 1 ||
        call(layer.activation).arguments[0].tensors[0] != normal ||
        !only_read_by(dy, {layer.norm_backward})) {
      return false;
    }
    const TensorRef& active = result_of(layer.activation);
    if (value(active).maker != layer.activation || active.geometry != normal.geometry) return false;
    const Call& backward = call(layer.activation_backward);
    std::vector<TensorRef> operands;
    for (const Argument& argument : backward.arguments) {
      for (const TensorRef& ref : argument.tensors) operands.push_back(ref);
    }
    if (operands.size() != 2 || (operands[1] != active && operands[1] != normal)) return false;
    layer.from_result = operands[1] == active;
    std::vector<int32_t> of_normal{layer.activation};
    if (!layer.from_result) of_normal.push_back(layer.activation_backward);
    if (!only_read_by(normal, of_normal)) return false;
    if (!with_pooling) return is_whole(active);
    return find_pooling(layer, active, operands[0]);
  }

  bool find_pooling(Layer& layer, const TensorRef& active, const TensorRef& gradient) const {
    layer.pooling = reader(active, "aten::max_pool2d_with_indices");
    layer.pooling_backward = maker(gradient, "aten::max_pool2d_with_indices_backward");
    if (layer.pooling < 0 || layer.pooling_backward < 0 || is_result(active)) return false;
    for (const int32_t c : readers(active)) {
      if (c != layer.pooling && c != layer.pooling_backward && c != layer.activation_backward)
        return false;
    }
    const TensorRef& indices = call(layer.pooling).outputs[1][0];
    return argument(layer.pooling, "self") == active &&
           argument(layer.pooling_backward, "self") == active &&
           argument(layer.pooling_backward, "indices") == indices &&
           only_read_by(indices, {layer.pooling_backward}) &&
           only_read_by(gradient, {layer.activation_backward}) &&
           is_whole(result_of(layer.pooling)) && maker(result_of(layer.pooling)) == layer.pooling;
  }
};

// Makes the realizations of one layer.
class Builder {
 public:
  Builder(Rewriter& rewriter, const Finder& finder, const Layer& layer)
      : rewriter_(rewriter), finder_(finder), layer_(layer) {
    const Call &convolution = call(layer.convolution), &norm = call(layer.norm);
    normed_.samples = convolution.outputs[0][0].geometry.sizes[0];
    normed_.momentum = argument_of(norm, "momentum")->constant.toDouble();
    normed_.epsilon = argument_of(norm, "eps")->constant.toDouble();
    normed_.from_result = layer.from_result;
    normed_.result = finder.result(layer).geometry;
    if (layer.pooling >= 0) {
      normed_.places = call(layer.pooling).outputs[1][0].geometry;
      normed_.places.dtype =
          type_of_positions(finder.result_of(layer.activation).geometry, /*dimensions=*/2);
    }
    const auto keep = [&](int32_t c, std::optional<Call>& to) {
      if (c >= 0) to = call(c);
    };
    keep(layer.activation, normed_.activation);
    keep(layer.pooling, normed_.pooling);
    keep(layer.activation_backward, normed_.activation_backward);
    keep(layer.pooling_backward, normed_.pooling_backward);
    const std::array<TensorRef, NormedConvolution::kGradients> gradients = this->gradients();
    for (size_t g = 0; g < gradients.size(); ++g) {
      if (gradients[g].memory != Memory::kNone) normed_.gradients[g] = gradients[g].geometry;
    }
    for (size_t a = 0; a <= Convolution::kGroups; ++a) shared_.push_back(convolution.arguments[a]);
    shared_.push_back(*argument_of(norm, "weight"));
    shared_.push_back(*argument_of(norm, "bias"));
  }

  void add(int64_t parts) {
    if (parts > normed_.samples) return;
    normed_.parts = parts;
    const NormedConvolution normed = normed_;
    const TensorRef& x = finder_.result_of(layer_.convolution);
    Geometry one_a_channel{
        .sizes = {x.geometry.sizes[1]}, .strides = {1}, .dtype = x.geometry.dtype};
    const Argument mean = new_value(one_a_channel), variance = new_value(one_a_channel);

    const Call& norm = call(layer_.norm);
    Work statistics =
        work("statistics", [normed](Stack& stack) { normed_statistics(stack, normed); });
    statistics.arguments.push_back(*argument_of(norm, "running_mean"));
    statistics.arguments.push_back(*argument_of(norm, "running_var"));
    statistics.made = {{0, 0, mean.tensors[0].index}, {1, 0, variance.tensors[0].index}};
    statistics.effects = norm.effects;

    Work forward = work("forward", [normed](Stack& stack) { normed_forward(stack, normed); });
    forward.arguments.push_back(mean);
    forward.arguments.push_back(variance);
    forward.made = {{0, 0, finder_.result(layer_).index}};
    std::optional<Argument> places;
    if (layer_.pooling >= 0) {
      places = new_value(normed.places);
      forward.made.push_back({1, 0, places->tensors[0].index});
    }

    Work backward = work("backward", [normed](Stack& stack) { normed_backward(stack, normed); });
    backward.arguments.push_back(mean);
    backward.arguments.push_back(variance);
    backward.arguments.push_back(call(layer_.first_backward()).arguments[0]);
    if (places) backward.arguments.push_back(*places);
    const std::array<TensorRef, NormedConvolution::kGradients> made = gradients();
    for (size_t g = 0; g < made.size(); ++g) {
      if (made[g].memory != Memory::kNone) backward.made.push_back({g, 0, made[g].index});
    }
    if (rewriter_.reads_written(forward) || rewriter_.reads_written(backward)) return;

    CallRealization realization{
        .name = kName, .calls = calls(), .pieces = {}, .exactness = Exactness::kRounding};
    const auto add_piece = [&](const char* name, int32_t after, Work work) {
      realization.pieces.push_back({fmt::format("{}.{}", name, parts),
                                    after,
                                    {rewriter_.add_work(std::move(work))},
                                    {"default"}});
    };
    add_piece("statistics", layer_.norm, std::move(statistics));
    add_piece("forward", layer_.last_forward(), std::move(forward));
    add_piece("backward", layer_.convolution_backward, std::move(backward));
    rewriter_.add(std::move(realization));
  }

 private:
  const Call& call(int32_t c) const { return rewriter_.recording().calls[c]; }

  std::array<TensorRef, NormedConvolution::kGradients> gradients() const {
    const Call &convolution = call(layer_.convolution_backward), &norm = call(layer_.norm_backward);
    return {convolution.outputs[0][0], convolution.outputs[1][0], convolution.outputs[2][0],
            norm.outputs[1][0], norm.outputs[2][0]};
  }

  std::vector<int32_t> calls() const {
    std::vector<int32_t> all{layer_.convolution};
    for (const int32_t c :
         {layer_.norm, layer_.activation, layer_.pooling, layer_.pooling_backward,
          layer_.activation_backward, layer_.norm_backward, layer_.convolution_backward}) {
      if (c >= 0) all.push_back(c);
    }
    return all;
  }

  // Adds a value that the geometry fills.
  Argument new_value(const Geometry& geometry) {
    const int64_t value = rewriter_.add_value(extent_bytes(geometry));
    TensorRef ref{Memory::kValue, static_cast<int32_t>(value), geometry};
    return {.kind = ArgumentKind::kTensor, .tensors = {std::move(ref)}};
  }

  Work work(const char* pass, Kernel kernel) const {
    std::string name = fmt::format("normed_convolution {} in {}", pass, normed_.parts);
    for (const auto* one : {&normed_.activation, &normed_.pooling}) {
      if (*one) name = fmt::format("{}, {}", name, (*one)->name());
    }
    if (normed_.gradients[NormedConvolution::kOfInput]) name = fmt::format("{}, input", name);
    return {.name = std::move(name), .kernel = std::move(kernel), .arguments = shared_};
  }

  Rewriter& rewriter_;
  const Finder& finder_;
  const Layer& layer_;
  NormedConvolution normed_;
  std::vector<Argument> shared_;
};

}  // namespace

void batch_norm_by_samples(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  if (!recording.device.is_cpu()) return;  // the statistics come from ATen's kernel for the host
  const Finder finder(rewriter);
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const std::optional<Layer> layer = finder.layer_at(static_cast<int32_t>(c));
    if (!layer) continue;
    const TensorRef& x = finder.result_of(layer->convolution);
    if (recording.values[x.index].bytes * kWide < rewriter.largest()) continue;
    Builder builder(rewriter, finder, *layer);
    for (const int64_t parts : kParts) builder.add(parts);
  }
}

}  // namespace reprise::runtime::internal::rewrite
