#include "runtime/lockstep/words.h"

#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "runtime/step/replay_scope.h"

namespace reprise::runtime::internal::lockstep {
namespace {

constexpr size_t kLongest = 60;
constexpr int64_t kMostNumbers = 4;

std::string shortened(std::string text) {
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

}  // namespace

std::string words_of(const c10::IValue& value) {
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isBool()) return value.toBool() ? "True" : "False";
  std::ostringstream text;
  text << value;
  return shortened(text.str());
}

std::string numbers_in(const at::Tensor& tensor) {
  const step::ReplayScope scope;
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const at::Tensor flat = real.detach().to(at::kCPU).reshape({-1});
  std::vector<std::string> numbers;
  for (int64_t i = 0; i < std::min(flat.numel(), kMostNumbers); ++i) {
    const at::Scalar number = flat[i].item();
    if (flat.scalar_type() == at::kFloat) {  // It has fewer digits than a double.
      numbers.push_back(fmt::format("{}", number.to<float>()));
    } else {
      numbers.push_back(words_of(c10::IValue(number)));
    }
  }
  if (tensor.dim() == 0 && numbers.size() == 1) return numbers.front();
  if (flat.numel() > kMostNumbers) numbers.emplace_back("...");
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string shape_of(const step::Geometry& geometry) {
  return fmt::format("{}[{}]", c10::toString(geometry.dtype), fmt::join(geometry.sizes, ", "));
}

}  // namespace reprise::runtime::internal::lockstep
