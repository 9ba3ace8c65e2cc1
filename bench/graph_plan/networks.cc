#include "networks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "reprise/model/errors.h"
#include "tape.h"

namespace reprise::bench {
namespace {

struct TextShape {
  int64_t batch, tokens, width, heads, vocabulary;
};

Graph gpt(const std::string& name, int layers, const TextShape& s) {
  Tape tape(name);
  const int64_t rows = s.batch * s.tokens;
  const Tensor tokens = tape.input("tokens", 2 * rows);
  Tensor x = tape.embedding("embedding", tokens, rows, s.width, s.vocabulary);
  const Tensor positions = tape.embedding("positions", tokens, rows, s.width, s.tokens);
  x = tape.add("embedded", x, positions);
  for (int l = 0; l < layers; ++l) {
    const auto id = [l](const char* part) { return fmt::format("l{}.{}", l, part); };
    Tensor y = tape.norm(id("norm1"), x, rows, s.width);
    y = tape.linear(id("qkv"), y, rows, s.width, 3 * s.width);
    y = tape.attention(id("attention"), y, s.batch, s.tokens, s.width, s.heads);
    y = tape.linear(id("projection"), y, rows, s.width, s.width);
    x = tape.add(id("residual1"), x, y);
    y = tape.norm(id("norm2"), x, rows, s.width);
    y = tape.linear(id("up"), y, rows, s.width, 4 * s.width);
    y = tape.smooth(id("gelu"), y);
    y = tape.linear(id("down"), y, rows, 4 * s.width, s.width);
    x = tape.add(id("residual2"), x, y);
  }
  x = tape.norm("norm", x, rows, s.width);
  return tape.cross_entropy(tape.linear("head", x, rows, s.width, s.vocabulary, false), rows);
}

// Makes a batch of square images of some channels.
struct Image {
  Tensor tensor;
  int64_t channels = 0, side = 0;
};

class Images {
 public:
  Images(const std::string& name, int64_t batch, int64_t side) : tape_(name), batch_(batch) {
    image_ = {tape_.input("images", batch * 3 * side * side), 3, side};
  }

  Image image() const { return image_; }
  int64_t pixels(int64_t side) const { return batch_ * side * side; }

  Image convolution(const std::string& name, const Image& x, int64_t out, int64_t kernel,
                    int64_t stride = 1, bool depthwise = false) {
    const int64_t side = x.side / stride;
    return {tape_.convolution(name, x.tensor, pixels(side), x.channels, out, kernel,
                              depthwise ? x.channels : 1),
            out, side};
  }
  // Adds a convolution, a batch norm and a ReLU.
  Image unit(const std::string& name, const Image& x, int64_t out, int64_t kernel,
             int64_t stride = 1, bool relu = true, bool depthwise = false) {
    Image y = convolution(name, x, out, kernel, stride, depthwise);
    y.tensor = tape_.norm(name + ".bn", y.tensor, out, out, true);
    if (relu) y.tensor = tape_.relu(name + ".relu", y.tensor);
    return y;
  }
  Image plain_unit(const std::string& name, const Image& x, int64_t out) {
    Image y = convolution(name, x, out, 3);
    y.tensor = tape_.relu(name + ".relu", y.tensor);
    return y;
  }
  Image max_pool(const std::string& name, const Image& x) {
    return {tape_.max_pool(name, x.tensor, 2), x.channels, x.side / 2};
  }
  Image up(const std::string& name, const Image& x, int64_t out) {
    return {tape_.transposed_convolution(name, x.tensor, pixels(x.side), x.channels, out, 2), out,
            2 * x.side};
  }
  Image joined(const std::string& name, const Image& a, const Image& b) {
    return {tape_.concatenate(name, a.tensor, b.tensor), a.channels + b.channels, a.side};
  }
  // Adds the mean over space, a linear layer and the loss.
  Graph classes(const Image& x, int64_t count) {
    const Tensor mean = tape_.average_pool("mean", x.tensor, x.side);
    return tape_.cross_entropy(tape_.linear("head", mean, batch_, x.channels, count), batch_);
  }
  Graph classes_of_pixels(const Image& x, int64_t count) {
    const Image y = convolution("head", x, count, 1);
    return tape_.cross_entropy(y.tensor, pixels(y.side));
  }
  Tape& tape() { return tape_; }
  int64_t batch() const { return batch_; }

 private:
  Tape tape_;
  int64_t batch_;
  Image image_;
};

Image residual_block(Images& net, const std::string& id, const Image& x, int64_t width,
                     int64_t stride, bool bottleneck) {
  const int64_t out = bottleneck ? 4 * width : width;
  Image y = net.unit(id + ".conv1", x, width, bottleneck ? 1 : 3, bottleneck ? 1 : stride);
  y = net.unit(id + ".conv2", y, width, 3, bottleneck ? stride : 1, bottleneck);
  if (bottleneck) y = net.unit(id + ".conv3", y, out, 1, 1, false);
  Image shortcut = x;
  if (stride != 1 || x.channels != out) {
    shortcut = net.unit(id + ".shortcut", x, out, 1, stride, false);
  }
  y.tensor = net.tape().add(id + ".sum", shortcut.tensor, y.tensor);
  y.tensor = net.tape().relu(id + ".relu", y.tensor);
  return y;
}

Graph resnet(const std::string& name, const std::array<int, 4>& blocks, bool bottleneck,
             int64_t batch, int64_t side) {
  Images net(name, batch, side);
  Image x = net.unit("stem", net.image(), 64, 7, 2);
  x = net.max_pool("stem.pool", x);
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int b = 0; b < blocks[stage]; ++b) {
      const int64_t stride = b == 0 && stage > 0 ? 2 : 1;
      x = residual_block(net, fmt::format("s{}b{}", stage, b), x, int64_t{64} << stage, stride,
                         bottleneck);
    }
  }
  return net.classes(x, 100);
}

Graph vgg16(const std::string& name, int64_t batch, int64_t side, bool norms) {
  Images net(name, batch, side);
  Image x = net.image();
  constexpr std::array<int, 5> kDepths{2, 2, 3, 3, 3};
  constexpr std::array<int64_t, 5> kWidths{64, 128, 256, 512, 512};
  for (size_t group = 0; group < kDepths.size(); ++group) {
    for (int k = 0; k < kDepths[group]; ++k) {
      const std::string id = fmt::format("g{}c{}", group, k);
      x = norms ? net.unit(id, x, kWidths[group], 3) : net.plain_unit(id, x, kWidths[group]);
    }
    x = net.max_pool(fmt::format("g{}.pool", group), x);
  }
  return net.classes(x, 100);
}

Graph mobilenet(const std::string& name) {
  Images net(name, 32, 224);
  Image x = net.unit("stem", net.image(), 32, 3, 2);
  constexpr std::array<int64_t, 13> kWidths{64,  128, 128, 256, 256,  512, 512,
                                            512, 512, 512, 512, 1024, 1024};
  for (size_t k = 0; k < kWidths.size(); ++k) {
    const bool halves = kWidths[k] != x.channels && k > 0;
    const std::string id = fmt::format("b{}", k);
    x = net.unit(id + ".depthwise", x, x.channels, 3, halves ? 2 : 1, true, true);
    x = net.unit(id + ".pointwise", x, kWidths[k], 1);
  }
  return net.classes(x, 100);
}

// Makes five levels down and up again, with long skips or without.
Graph down_and_up(const std::string& name, bool skips) {
  Images net(name, 16, 224);
  Image x = net.image();
  std::vector<Image> levels;
  constexpr std::array<int64_t, 5> kWidths{64, 128, 256, 512, 512};
  for (size_t level = 0; level < kWidths.size(); ++level) {
    x = net.plain_unit(fmt::format("down{}a", level), x, kWidths[level]);
    x = net.plain_unit(fmt::format("down{}b", level), x, kWidths[level]);
    levels.push_back(x);
    if (level + 1 < kWidths.size()) x = net.max_pool(fmt::format("down{}.pool", level), x);
  }
  for (size_t level = kWidths.size() - 1; level-- > 0;) {
    x = net.up(fmt::format("up{}", level), x, kWidths[level]);
    if (skips) x = net.joined(fmt::format("up{}.joined", level), x, levels[level]);
    x = net.plain_unit(fmt::format("up{}a", level), x, kWidths[level]);
    x = net.plain_unit(fmt::format("up{}b", level), x, kWidths[level]);
  }
  return net.classes_of_pixels(x, 16);
}

// Adds group norm, SiLU and convolution, twice. A 1x1 convolution is the shortcut where the width
// changes.
Image smooth_unit(Images& net, const std::string& id, const Image& x, int64_t out) {
  Tape& tape = net.tape();
  Image y = x;
  for (int half = 0; half < 2; ++half) {
    const std::string part = fmt::format("{}.{}", id, half);
    y.tensor = tape.norm(part + ".norm", y.tensor, 8 * net.batch(), y.channels);
    y.tensor = tape.smooth(part + ".silu", y.tensor);
    y = net.convolution(part + ".conv", y, out, 3);
  }
  const Image shortcut = x.channels == out ? x : net.convolution(id + ".shortcut", x, out, 1);
  y.tensor = tape.add(id + ".sum", shortcut.tensor, y.tensor);
  return y;
}

Image attention_unit(Images& net, const std::string& id, const Image& x) {
  Tape& tape = net.tape();
  const int64_t rows = net.pixels(x.side);
  Tensor y = tape.norm(id + ".norm", x.tensor, 8 * net.batch(), x.channels);
  y = tape.linear(id + ".qkv", y, rows, x.channels, 3 * x.channels);
  y = tape.attention(id, y, net.batch(), x.side * x.side, x.channels, 1);
  y = tape.linear(id + ".projection", y, rows, x.channels, x.channels);
  return {tape.add(id + ".sum", x.tensor, y), x.channels, x.side};
}

Graph unet_attention(const std::string& name) {
  Images net(name, 8, 64);
  constexpr std::array<int64_t, 4> kWidths{32, 64, 128, 192};
  Image x = net.convolution("stem", net.image(), kWidths[0], 3);
  std::vector<Image> skips;
  for (size_t level = 0; level < kWidths.size(); ++level) {
    x = smooth_unit(net, fmt::format("down{}", level), x, kWidths[level]);
    if (level + 1 == kWidths.size()) break;
    skips.push_back(x);
    x = {net.tape().average_pool(fmt::format("pool{}", level), x.tensor, 2), x.channels,
         x.side / 2};
  }
  x = attention_unit(net, "attention", x);
  x = smooth_unit(net, "middle", x, kWidths.back());
  for (size_t level = kWidths.size() - 1; level-- > 0;) {
    x = net.up(fmt::format("up{}", level), x, kWidths[level]);
    x = net.joined(fmt::format("up{}.joined", level), x, skips[level]);
    x = smooth_unit(net, fmt::format("up{}.unit", level), x, kWidths[level]);
  }
  return net.classes_of_pixels(x, 16);
}

Graph gpt_of(const std::string& name) {
  int layers = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 3, end, layers);
  if (parsed.ec != std::errc() || parsed.ptr != end || layers < 1 || layers > 10000) {
    throw InputError(fmt::format("\"{}\" is no number of layers", name.substr(3)));
  }
  return layers <= 12 ? gpt(name, layers, {4, 256, 256, 4, 8192})
                      : gpt(name, layers, {8, 512, 512, 8, 8192});
}

}  // namespace

const std::vector<std::string>& network_names() {
  static const std::vector<std::string> kNames{
      "gpt12", "unet_attention", "resnet18", "resnet101", "vgg16_bn", "unet",   "segnet",
      "vgg16", "mobilenet",      "resnet50", "gpt48",     "gpt100",   "gpt200", "gpt400"};
  return kNames;
}

Graph make_network(const std::string& name) {
  if (name.starts_with("gpt")) return gpt_of(name);
  if (name == "unet_attention") return unet_attention(name);
  if (name == "resnet18") return resnet(name, {2, 2, 2, 2}, false, 64, 64);
  if (name == "resnet50") return resnet(name, {3, 4, 6, 3}, true, 32, 224);
  if (name == "resnet101") return resnet(name, {3, 4, 23, 3}, true, 32, 64);
  if (name == "vgg16") return vgg16(name, 32, 224, false);
  if (name == "vgg16_bn") return vgg16(name, 16, 64, true);
  if (name == "mobilenet") return mobilenet(name);
  if (name == "unet") return down_and_up(name, true);
  if (name == "segnet") return down_and_up(name, false);
  throw InputError(
      fmt::format("unknown network \"{}\"; there are {}", name, fmt::join(network_names(), ", ")));
}

}  // namespace reprise::bench
