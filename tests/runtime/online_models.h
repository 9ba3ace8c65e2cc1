// These are training steps that online mode is for: branches and sizes that depend on data, and
// ordinary ones.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace reprise::runtime::testing {

namespace nn = torch::nn;

// A Subject is a model, and its loss at a step. Data are made before the step.
struct Subject {
  std::string name;
  std::shared_ptr<nn::Module> module;
  std::function<void(int)> prepare;     // the inputs of a step
  std::function<at::Tensor()> forward;  // the loss
};

inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), labels.reshape(-1));
}

struct Data {
  at::Tensor x, y;
};

// --- A ResNet with batch norm ---

struct ResidualImpl : nn::Module {
  nn::Conv2d first, second;
  nn::BatchNorm2d norm1, norm2;
  nn::Conv2d shortcut{nullptr};
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : first(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        second(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm1(out),
        norm2(out) {
    register_module("first", first);
    register_module("second", second);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    if (in == out) return;
    shortcut =
        register_module("shortcut", nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride)));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm2(second(norm1(first(x)).relu_()));
    y += shortcut.is_empty() ? x : shortcut(x);
    return y.relu_();
  }
};
TORCH_MODULE(Residual);

inline Subject resnet(int64_t blocks, int64_t batch, int64_t side) {
  auto module = std::make_shared<nn::Sequential>();
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::BatchNorm2d(16),
                     nn::ReLU(), nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(1).padding(1)));
  int64_t in = 16;
  for (const int64_t width : {16, 32, 64}) {
    for (int64_t i = 0; i < blocks; ++i) {
      net->push_back(Residual(in, width, in == width ? 1 : 2));
      in = width;
    }
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(64, 10));
  auto d = std::make_shared<Data>();
  return {"resnet", net.ptr(),
          [=](int) {
            d->x = at::randn({batch, 3, side, side});
            d->y = at::randint(10, {batch});
          },
          [=]() mutable { return loss_of(net->forward(d->x), d->y); }};
}

// --- A GPT with dropout and tied weights, whose layers may be dropped ---

struct GptLayerImpl : nn::Module {
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, out, up, down;
  int64_t heads;
  GptLayerImpl(int64_t width, int64_t head_count)
      : norm1(nn::LayerNormOptions({width})),
        norm2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        out(width, width),
        up(width, 4 * width),
        down(4 * width, width),
        heads(head_count) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const int64_t b = x.size(0), t = x.size(1), width = x.size(2);
    const at::Tensor c =
        qkv(norm1(x)).view({b, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    at::Tensor w = at::matmul(c[0], c[1].transpose(-1, -2)) / 4.0;
    w = at::dropout(at::softmax(w.masked_fill(mask, -1e9), -1), 0.1, true);
    const at::Tensor y = at::matmul(w, c[2]).transpose(1, 2).reshape({b, t, width});
    const at::Tensor h = x + at::dropout(out(y), 0.1, true);
    return h + at::dropout(down(at::gelu(up(norm2(h)))), 0.1, true);
  }
};
TORCH_MODULE(GptLayer);

struct Gpt : nn::Module {
  nn::Embedding tokens, places;
  nn::LayerNorm norm;
  std::vector<GptLayer> layers;
  float layer_drop;
  Gpt(int64_t vocabulary, int64_t length, int64_t width, int64_t count, float drop)
      : tokens(vocabulary, width),
        places(length, width),
        norm(nn::LayerNormOptions({width})),
        layer_drop(drop) {
    register_module("tokens", tokens);
    register_module("places", places);
    register_module("norm", norm);
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), GptLayer(width, 4)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t t = x.size(1);
    const at::Tensor mask = at::ones({t, t}, at::kBool).triu(1);
    at::Tensor h = at::dropout(tokens(x) + places(at::arange(t)), 0.1, true);
    for (GptLayer& layer : layers) {
      // The host decides by a random number.
      if (layer_drop > 0 && at::rand({}).item<float>() < layer_drop) continue;
      h = layer(h, mask);
    }
    return at::matmul(norm(h), tokens->weight.t());
  }
};

inline Subject gpt(float layer_drop, int64_t layers, int64_t width, int64_t length) {
  auto model = std::make_shared<Gpt>(256, length, width, layers, layer_drop);
  auto d = std::make_shared<Data>();
  return {layer_drop > 0 ? "layer drop" : "gpt", model,
          [=](int) {
            d->x = at::randint(256, {8, length});
            d->y = at::randint(256, {8, length});
          },
          [=] { return loss_of(model->forward(d->x), d->y); }};
}

// --- LSTM cells that the host unrolls, to another length at each step ---

struct Cells : nn::Module {
  nn::Embedding embed{50, 32};
  nn::LSTMCell cell{32, 64};
  nn::Linear head{64, 50};
  Cells() {
    register_module("embed", embed);
    register_module("cell", cell);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor e = embed(x);
    at::Tensor h = at::zeros({x.size(0), 64}), c = h;
    std::vector<at::Tensor> all;
    for (int64_t t = 0; t < x.size(1); ++t) {
      std::tie(h, c) = cell(e.select(1, t), std::make_tuple(h, c));
      all.push_back(h);
    }
    return head(at::stack(all, 1));
  }
};

inline Subject cells(int64_t batch, int64_t length) {
  auto model = std::make_shared<Cells>();
  auto d = std::make_shared<Data>();
  return {"cells", model,
          [=](int step) {
            const int64_t now = length + 4 * (step % 3);
            d->x = at::randint(50, {batch, now});
            d->y = at::randint(50, {batch, now});
          },
          [=] { return loss_of(model->forward(d->x), d->y); }};
}

// --- A TreeLSTM over a tree of its own at each step ---

struct TreeLstm : nn::Module {
  struct Node {
    int left = -1, right = -1;
  };
  nn::Linear in{32, 64}, iou{128, 192}, forget{128, 128}, head{64, 10};
  std::vector<Node> nodes;
  at::Tensor leaves;
  TreeLstm() {
    register_module("in", in);
    register_module("iou", iou);
    register_module("forget", forget);
    register_module("head", head);
  }
  int grow(std::mt19937& random, int n) {
    const int at = static_cast<int>(nodes.size());
    nodes.emplace_back();
    if (n == 1) return at;
    const int k = 1 + static_cast<int>(random() % static_cast<unsigned>(n - 1));
    const int left = grow(random, k), right = grow(random, n - k);
    nodes[static_cast<size_t>(at)] = {left, right};
    return at;
  }
  std::pair<at::Tensor, at::Tensor> walk(int at, int64_t& leaf) {
    const Node node = nodes[static_cast<size_t>(at)];
    if (node.left < 0) {
      const at::Tensor h = at::tanh(in(leaves[leaf++]));
      return {h, at::zeros_like(h)};
    }
    const auto [hl, cl] = walk(node.left, leaf);
    const auto [hr, cr] = walk(node.right, leaf);
    const at::Tensor h = at::cat({hl, hr}, 1);
    const auto g = iou(h).chunk(3, 1);
    const auto f = at::sigmoid(forget(h)).chunk(2, 1);
    const at::Tensor c = at::sigmoid(g[0]) * at::tanh(g[2]) + f[0] * cl + f[1] * cr;
    at::Tensor y = at::sigmoid(g[1]) * at::tanh(c);
    if (y.detach().abs().max().item<float>() > 0.5F) y = y * 0.5;  // The data decide.
    return {y, c};
  }
};

inline Subject tree_lstm(int64_t batch, int leaves) {
  auto model = std::make_shared<TreeLstm>();
  auto d = std::make_shared<Data>();
  return {"tree", model,
          [=](int step) {
            std::mt19937 random(static_cast<unsigned>(7 + step));
            const int n = leaves + static_cast<int>(random() % 12);
            model->nodes.clear();
            model->grow(random, n);
            model->leaves = at::randn({n, batch, 32});
            d->y = at::randint(10, {batch});
          },
          [=] {
            int64_t leaf = 0;
            return loss_of(model->head(model->walk(0, leaf).first), d->y);
          }};
}

// --- A mixture of experts: how many rows an expert gets depends on the data ---

struct Experts : nn::Module {
  nn::Linear gate{32, 4}, head{32, 10};
  std::vector<nn::Sequential> experts;
  explicit Experts(int64_t hidden) {
    register_module("gate", gate);
    register_module("head", head);
    for (int i = 0; i < 4; ++i) {
      experts.push_back(register_module(
          "expert" + std::to_string(i),
          nn::Sequential(nn::Linear(32, hidden), nn::GELU(), nn::Linear(hidden, 32))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (int round = 0; round < 4; ++round) {
      const at::Tensor weights = at::softmax(gate(x), 1);
      const at::Tensor chosen = weights.argmax(1);
      at::Tensor y = at::zeros_like(x);
      for (size_t e = 0; e < experts.size(); ++e) {
        const at::Tensor rows = at::nonzero(chosen == static_cast<int64_t>(e)).squeeze(1);
        if (rows.numel() == 0) continue;
        const at::Tensor out =
            experts[e]->forward(x.index_select(0, rows)) *
            weights.index_select(0, rows).select(1, static_cast<int64_t>(e)).unsqueeze(1);
        y = y.index_add(0, rows, out);
      }
      x = x + y;
    }
    return head(x);
  }
};

inline Subject experts(int64_t rows, int64_t hidden) {
  auto model = std::make_shared<Experts>(hidden);
  auto d = std::make_shared<Data>();
  return {"experts", model,
          [=](int) {
            d->x = at::randn({rows, 32});
            d->y = at::randint(10, {rows});
          },
          [=] { return loss_of(model->forward(d->x), d->y); }};
}

}  // namespace reprise::runtime::testing
