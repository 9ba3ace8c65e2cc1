// This file builds GPT and LSTM.
//
// GPT: Radford et al., "Language models are unsupervised multitask learners", 2019: pre-LN blocks,
// learned positions, GELU, the head tied to the token embedding. Dropout follows the embedding and
// the two residual branches. The attention weights have no dropout, because with it no CPU kernel
// is fused and the time x time weights would be stored. LSTM: Hochreiter, Schmidhuber, "Long
// short-term memory", Neural Computation 9(8), 1997, in torch's form, unrolled along time: every
// stage is one step of the same cells.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <cmath>

#include "training/zoo/build.h"

namespace reprise::training::zoo {

using runtime::Stage;
using runtime::Tensors;

namespace {

using at::Tensor;
using torch::nn::LayerNorm;
using torch::nn::Linear;

LayerNorm layer_norm(int64_t width) { return LayerNorm(torch::nn::LayerNormOptions({width})); }

class Embedding : public torch::nn::Module {
 public:
  explicit Embedding(const ModelConfig& config)
      : tokens(register_parameter("tokens", 0.02 * at::randn({config.vocabulary, config.width}))),
        positions_(
            register_parameter("positions", 0.02 * at::randn({config.input[1], config.width}))),
        dropout_(config.dropout) {}

  Tensor forward(const Tensor& ids) {
    const Tensor positions = positions_.narrow(0, 0, ids.size(1));
    return at::dropout(at::embedding(tokens, ids) + positions, dropout_, is_training());
  }

  const Tensor tokens;

 private:
  Tensor positions_;
  double dropout_;
};

class Attention : public torch::nn::Module {
 public:
  explicit Attention(const ModelConfig& config)
      : norm_(register_module("norm", layer_norm(config.width))),
        qkv_(register_module("qkv", Linear(config.width, 3 * config.width))),
        out_(register_module("out", Linear(config.width, config.width))),
        heads_(config.heads),
        dropout_(config.dropout) {}

  Tensor forward(const Tensor& x) {
    const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
    // {3, batch, heads, time, width / heads}, all views of one tensor.
    const Tensor qkv = qkv_->forward(norm_->forward(x))
                           .view({batch, time, 3, heads_, width / heads_})
                           .permute({2, 0, 3, 1, 4});
    const Tensor mixed = at::scaled_dot_product_attention(
        qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2), {}, 0.0, /*is_causal=*/true);
    const Tensor y = out_->forward(mixed.transpose(1, 2).reshape({batch, time, width}));
    return x + at::dropout(y, dropout_, is_training());
  }

 private:
  LayerNorm norm_;
  Linear qkv_, out_;
  int64_t heads_;
  double dropout_;
};

class FeedForward : public torch::nn::Module {
 public:
  explicit FeedForward(const ModelConfig& config)
      : norm_(register_module("norm", layer_norm(config.width))),
        up_(register_module("up", Linear(config.width, 4 * config.width))),
        down_(register_module("down", Linear(4 * config.width, config.width))),
        dropout_(config.dropout) {}

  Tensor forward(const Tensor& x) {
    const Tensor y = down_->forward(at::gelu(up_->forward(norm_->forward(x))));
    return x + at::dropout(y, dropout_, is_training());
  }

 private:
  LayerNorm norm_;
  Linear up_, down_;
  double dropout_;
};

// TiedHead is the head without bias, whose weight is the token embedding itself.
class TiedHead : public torch::nn::Module {
 public:
  explicit TiedHead(const Tensor& tokens) : weight_(register_parameter("weight", tokens)) {}
  Tensor forward(const Tensor& x) { return at::linear(x, weight_); }

 private:
  Tensor weight_;
};

// An LstmStep is one step of time through all stacked layers. The stages of all steps share this
// module.
//
// A boundary between the stages holds {h_0, c_0, ..., h_{layers-1}, c_{layers-1}, inputs of the
// steps to come}. Each boundary owns a copy of those inputs: 4 * batch * features * (steps to come)
// bytes beside the 8 * layers * batch * width bytes of the state. The copy is needed because a
// stage may neither return a view of its input nor remember anything. The step's own input is
// copied too, because otherwise its backward would hold all inputs. The inputs to come require no
// gradient. After the last step only the last h is left.
class LstmStep : public torch::nn::Module {
 public:
  LstmStep(int64_t features, int64_t width, int64_t layers) : width_(width) {
    for (int64_t i = 0; i < layers; ++i) {
      cells_.push_back(register_module("cell" + std::to_string(i),
                                       torch::nn::LSTMCell(i == 0 ? features : width, width)));
    }
  }

  Tensors forward(const Tensors& in) {
    const bool first = in.size() == 1;
    const Tensor& inputs = in.back();
    const int64_t steps = inputs.size(1);
    Tensor x = inputs.select(1, 0).clone(at::MemoryFormat::Contiguous);
    Tensors out;
    for (size_t i = 0; i < cells_.size(); ++i) {
      const Tensor zero = first ? at::zeros({x.size(0), width_}, x.options()) : Tensor();
      const Tensor& h = first ? zero : in[2 * i];
      const Tensor& c = first ? zero : in[2 * i + 1];
      const auto& cell = *cells_[i];
      auto [new_h, new_c] =
          at::lstm_cell(x, {h, c}, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh);
      out.push_back(new_h);
      out.push_back(new_c);
      x = new_h;
    }
    if (steps == 1) return {x};
    out.push_back(inputs.narrow(1, 1, steps - 1).clone(at::MemoryFormat::Contiguous));
    return out;
  }

 private:
  int64_t width_;
  std::vector<torch::nn::LSTMCell> cells_;
};

}  // namespace

std::vector<Stage> build_gpt(const ModelConfig& config) {
  if (config.width % config.heads != 0) {
    throw InputError("gpt: the width (" + std::to_string(config.width) +
                     ") must be a multiple of the number of heads (" +
                     std::to_string(config.heads) + ")");
  }
  auto embedding = std::make_shared<Embedding>(config);
  std::vector<Stage> stages;
  stages.push_back(stage_of("embedding", embedding));
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string block = "block" + std::to_string(i);
    stages.push_back(stage_of(block + ".attention", std::make_shared<Attention>(config)));
    stages.push_back(stage_of(block + ".mlp", std::make_shared<FeedForward>(config)));
  }
  stages.push_back(stage("norm", layer_norm(config.width)));
  stages.push_back(stage_of("head", std::make_shared<TiedHead>(embedding->tokens)));
  return stages;
}

std::vector<Stage> build_lstm(const ModelConfig& config) {
  auto step = std::make_shared<LstmStep>(config.input[2], config.width, config.layers);
  std::vector<Stage> stages;
  for (int64_t i = 0; i < config.input[1]; ++i) {
    stages.push_back({"step" + std::to_string(i), step,
                      [step](const Tensors& in) { return step->forward(in); }});
  }
  stages.push_back(stage("head", Linear(config.width, config.classes)));
  return stages;
}

}  // namespace reprise::training::zoo
