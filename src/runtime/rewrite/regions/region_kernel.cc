#include "runtime/rewrite/regions/region_kernel.h"

#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/rewrite/words.h"

namespace reprise::runtime::internal::rewrite {

namespace {

std::mutex& compiler_mutex() {
  static std::mutex mutex;
  return mutex;
}

// The compiler is never destroyed: it may be a function of Python, which may be gone by then.
RegionCompiler& registered_compiler() {
  static RegionCompiler& compiler = *new RegionCompiler;
  return compiler;
}

RegionKernel refused(std::string reason) {
  RegionKernel kernel;
  kernel.refusal = std::move(reason);
  return kernel;
}

// A library stays loaded, because plans hold its functions.
RegionKernel loaded(const CompiledRegion& region) {
  if (!region.refusal.empty()) return refused(region.refusal);
  void* library = dlopen(region.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refused(fmt::format("it cannot be loaded: {}", dlerror()));
  void* function = dlsym(library, region.symbol.c_str());
  if (function == nullptr) return refused(fmt::format("{} is not there", region.symbol));
  return {.run = reinterpret_cast<RegionKernel::Function>(function), .scratch = region.scratch};
}

std::vector<CompiledRegion> compiled(const std::vector<std::string>& texts) {
  RegionCompiler compiler;
  {
    const std::lock_guard lock(compiler_mutex());
    compiler = registered_compiler();
  }
  if (!compiler) {
    return {texts.size(), {.library = {}, .symbol = {}, .scratch = {}, .refusal = "no compiler"}};
  }
  std::vector<CompiledRegion> all = compiler(texts);
  all.resize(texts.size(),
             {.library = {}, .symbol = {}, .scratch = {}, .refusal = "the compiler left it out"});
  return all;
}

// A number of the host in the type in which the kernel reads it.
using NumberBytes = std::array<char, sizeof(double)>;

NumberBytes number_bytes(const at::Tensor& number, at::ScalarType type) {
  NumberBytes bytes{};
  const c10::Scalar scalar = number.item();
  if (type == at::kDouble) {
    const auto value = scalar.to<double>();
    std::memcpy(bytes.data(), &value, sizeof(value));
  } else {
    const auto value = scalar.to<float>();
    std::memcpy(bytes.data(), &value, sizeof(value));
  }
  return bytes;
}

}  // namespace

std::vector<RegionKernel> compile_regions(const std::vector<RegionText>& texts) {
  std::map<std::string, size_t> positions;
  std::vector<std::string> different;
  for (const RegionText& one : texts) {
    if (positions.try_emplace(one.text, different.size()).second) different.push_back(one.text);
  }
  std::vector<RegionKernel> kernels;
  if (different.empty()) return kernels;
  for (const CompiledRegion& one : compiled(different)) kernels.push_back(loaded(one));
  std::vector<RegionKernel> all;
  all.reserve(texts.size());
  for (const RegionText& one : texts) all.push_back(kernels[positions.at(one.text)]);
  return all;
}

std::vector<at::Tensor> run_region(const RegionText& region, const RegionKernel& kernel,
                                   const std::vector<int64_t>& over,
                                   const std::vector<at::Tensor>& inputs) {
  std::vector<NumberBytes> numbers(inputs.size());
  std::vector<char*> in(inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& number = region.inputs[k].number;
    if (number) {
      numbers[k] = number_bytes(inputs[k], *number);
      in[k] = numbers[k].data();
    } else {
      in[k] = static_cast<char*>(inputs[k].mutable_data_ptr());
    }
  }
  std::vector<at::Tensor> outputs;
  std::vector<char*> out;
  for (size_t k = 0; k < region.outputs.size(); ++k) {
    const Geometry& look = region.outputs[k].geometry;
    if (over[k] >= 0) {
      outputs.push_back(inputs[over[k]]);
    } else {
      int64_t elements = 1;
      for (const int64_t size : look.sizes) elements *= size;
      outputs.push_back(at::empty({elements}, at::TensorOptions(look.dtype)));
    }
    out.push_back(static_cast<char*>(outputs.back().mutable_data_ptr()));
  }
  std::vector<at::Tensor> buffers;
  std::vector<char*> scratch;
  for (const int64_t bytes : kernel.scratch) {
    buffers.push_back(at::empty({bytes}, at::TensorOptions(at::kByte)));
    scratch.push_back(static_cast<char*>(buffers.back().mutable_data_ptr()));
  }
  kernel.run(in.data(), out.data(), scratch.data());
  return outputs;
}

Work work_of(const RegionText& region, const RegionKernel& kernel, const std::vector<int64_t>& over,
             const std::string& name) {
  Work work{.name = name + " " + region.operators,
            .kernel =
                [region = std::make_shared<const RegionText>(region), kernel,
                 over](std::vector<c10::IValue>& stack) {
                  std::vector<at::Tensor> inputs;
                  for (size_t k = 0; k < region->inputs.size(); ++k) {
                    inputs.push_back(std::move(stack[k]).toTensor());
                  }
                  stack.clear();
                  for (at::Tensor& one : run_region(*region, kernel, over, inputs)) {
                    stack.emplace_back(std::move(one));
                  }
                },
            .arguments = {}};
  for (const RegionText::Input& input : region.inputs) {
    work.arguments.push_back({.kind = ArgumentKind::kTensor, .tensors = {input.ref}});
  }
  // The kernel does not read this. It tells works apart that do different things.
  work.arguments.push_back({.constant = fmt::format("{}{}", region.text, fmt::join(over, ","))});
  for (size_t k = 0; k < region.outputs.size(); ++k) {
    if (over[k] < 0) {
      work.made.push_back({k, 0, region.outputs[k].index});
    } else {
      work.overwrites.emplace_back(region.outputs[k].index, region.inputs[over[k]].ref.index);
    }
  }
  return work;
}

}  // namespace reprise::runtime::internal::rewrite

namespace reprise::runtime {

void compile_regions_with(RegionCompiler compiler) {
  namespace rewrite = internal::rewrite;
  const std::lock_guard lock(rewrite::compiler_mutex());
  rewrite::registered_compiler() = std::move(compiler);
}

}  // namespace reprise::runtime
