#include "families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <random>

#include "reprise/model/errors.h"

namespace reprise::bench {
namespace {

constexpr double kMiB = 1 << 20;

struct Shape {
  double output = 16 * kMiB;
  double saved = 4;      // times the output
  double forward = 2e6;  // ns
  double workspace = 0;  // times the output
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // The arithmetic is written here, because std distributions differ between libraries.
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }

 private:
  std::mt19937_64 random_;
};

Shape shape_of(const std::string& family, size_t i, size_t stages, Draw& draw) {
  if (family == "uniform") return {};
  if (family == "noisy") return {.forward = 2e6 * draw.between(0.98, 1.02)};
  if (family == "period4") {
    constexpr std::array<Shape, 4> kBlock{{{16 * kMiB, 3, 2e6, 0},
                                           {16 * kMiB, 2, 0.8e6, 0},
                                           {64 * kMiB, 2.25, 4e6, 0.125},
                                           {16 * kMiB, 4, 2.6e6, 0.25}}};
    return kBlock[i % 4];
  }
  const double first = family == "cnn" ? 128 * kMiB : 32 * kMiB;
  const double halvings = family == "cnn" ? static_cast<double>(5 * i / stages) : 0;
  const double spread = family == "cnn" ? draw.between(0.8, 1.2) : draw.between(0.05, 1);
  return {.output = first * spread / static_cast<double>(1 << static_cast<int>(halvings)),
          .saved = draw.between(1, 6),
          .forward = draw.between(0.5e6, 4e6),
          .workspace = draw.between(0, 0.3)};
}

}  // namespace

const std::vector<std::string>& family_names() {
  static const std::vector<std::string> kNames{"uniform", "period4", "cnn", "random", "noisy"};
  return kNames;
}

Chain make_chain(const std::string& family, size_t stages, uint64_t seed) {
  const std::vector<std::string>& names = family_names();
  if (std::find(names.begin(), names.end(), family) == names.end()) {
    throw InputError(
        fmt::format("unknown family \"{}\"; there are {}", family, fmt::join(names, ", ")));
  }
  Draw draw(seed);
  Chain chain;
  chain.name = fmt::format("{}, L = {}", family, stages);
  chain.input = {Bytes(static_cast<int64_t>(4 * kMiB)), Bytes(static_cast<int64_t>(4 * kMiB))};
  for (size_t i = 0; i < stages; ++i) {
    const Shape shape = shape_of(family, i, stages, draw);
    const Bytes workspace(static_cast<int64_t>(shape.output * shape.workspace));
    Stage stage;
    stage.name = fmt::format("stage{}", i);
    stage.output = Bytes(static_cast<int64_t>(shape.output));
    stage.forward = {Nanos(static_cast<int64_t>(shape.forward)), workspace};
    StageOption option;
    option.saved = Bytes(static_cast<int64_t>(shape.output * shape.saved));
    option.forward = stage.forward;
    option.backward = {Nanos(static_cast<int64_t>(2 * shape.forward)), workspace};
    stage.options.push_back(option);
    chain.stages.push_back(stage);
  }
  return chain;
}

}  // namespace reprise::bench
