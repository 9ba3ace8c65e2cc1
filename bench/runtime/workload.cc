#include "workload.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "reprise/runtime/allocator.h"

namespace reprise::bench {
namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

std::vector<char> bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor dense = tensor.detach().contiguous();
  const char* data = static_cast<const char*>(dense.const_data_ptr());
  return {data, data + dense.nbytes()};
}

template <class Collect>
std::vector<at::Tensor> distinct(const std::vector<runtime::Stage>& stages, Collect&& collect) {
  std::vector<at::Tensor> result;
  std::unordered_set<void*> seen;
  for (const runtime::Stage& stage : stages) {
    if (!stage.module) continue;
    for (const at::Tensor& tensor : collect(*stage.module)) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
    }
  }
  return result;
}

training::Model make(const training::ModelConfig& config) {
  runtime::install_cpu_allocator();
  at::manual_seed(20240923);
  return training::make_model(config);
}

void compare(const char* what, const std::vector<std::vector<char>>& a,
             const std::vector<std::vector<char>>& b, std::string& text) {
  if (a.size() != b.size()) text += fmt::format("{} {}s against {}; ", a.size(), what, b.size());
  int named = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()) && named < 4; ++i) {
    if (a[i] != b[i] && ++named < 4) text += fmt::format("{} {}; ", what, i);
  }
}

}  // namespace

Workload::Workload(const training::ModelConfig& config)
    : model(make(config)),
      input(model.sample_input()),
      target(model.sample_target()),
      parameters(distinct(model.stages, [](const auto& m) { return m.parameters(); })),
      buffers(distinct(model.stages, [](const auto& m) { return m.buffers(); })),
      level(runtime::memory_count(c10::kCPU).live) {}

runtime::Loss Workload::loss() const {
  return [loss = model.loss, target = target](const runtime::Tensors& y) {
    return loss(y.at(0), target);
  };
}

at::Tensor Workload::plain_loss() const {
  runtime::Tensors x{input};
  for (const runtime::Stage& stage : model.stages) x = stage.forward(x);
  return model.loss(std::move(x)[0], target);
}

void Workload::drop_gradients() const {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

Snapshot Workload::snapshot(const at::Tensor& loss) const {
  Snapshot result{bytes_of(loss), {}, {}, bytes_of(generator().get_state())};
  for (const at::Tensor& p : parameters) result.gradients.push_back(bytes_of(p.grad()));
  for (const at::Tensor& b : buffers) result.buffers.push_back(bytes_of(b));
  return result;
}

void Workload::restore(const Snapshot& state) const {
  drop_gradients();
  for (size_t b = 0; b < buffers.size(); ++b) {
    std::memcpy(buffers[b].data_ptr(), state.buffers[b].data(), state.buffers[b].size());
  }
  at::Tensor random = at::empty({static_cast<int64_t>(state.random.size())}, at::kByte);
  std::memcpy(random.data_ptr(), state.random.data(), state.random.size());
  generator().set_state(random);
}

std::string difference(const Snapshot& a, const Snapshot& b) {
  std::string text;
  if (a.loss != b.loss) text += "loss; ";
  compare("gradient", a.gradients, b.gradients, text);
  compare("buffer", a.buffers, b.buffers, text);
  if (a.random != b.random) text += "random state; ";
  return text;
}

double largest_error(const std::vector<std::vector<char>>& a,
                     const std::vector<std::vector<char>>& b) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kWrong;
  double error = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const std::vector<char>&x = a[i], &y = b[i];
    if (x.size() != y.size()) return kWrong;
    for (size_t at = 0; at + sizeof(float) <= x.size(); at += sizeof(float)) {
      float u = 0, v = 0;
      std::memcpy(&u, x.data() + at, sizeof u);
      std::memcpy(&v, y.data() + at, sizeof v);
      if (!std::isfinite(u) || !std::isfinite(v)) return kWrong;
      error = std::max(error, std::abs(static_cast<double>(u) - v));
      largest = std::max(largest, std::abs(static_cast<double>(u)));
    }
  }
  return largest > 0 ? error / largest : error;
}

void keep_freed_pages() {
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace reprise::bench
