#include "runtime/nn/tiling.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "runtime/device/parallel.h"

namespace reprise::runtime::internal::nn {
namespace {

// Tiles are multiples of these many elements where that is possible: no kernel of ATen has a tail
// inside a multiple of the larger number, and few have one inside a multiple of the smaller.
constexpr int64_t kAlignments[] = {4096, 128};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns how many rows of `inner` elements a tile has.
int64_t rows_of_tile(int64_t inner, int64_t tile) {
  const int64_t rows = std::max<int64_t>(1, tile / inner);
  for (const int64_t alignment : kAlignments) {
    const int64_t step = alignment / std::gcd(alignment, inner);
    if (step * inner <= 4 * tile) return std::max(step, rows / step * step);
  }
  return rows;
}

// Gives the threads of a parallel loop the thread-local state of the one that began it.
class OnThreads {
 public:
  std::unique_ptr<at::ThreadLocalStateGuard> state_here() const {
    if (std::this_thread::get_id() == caller_) return nullptr;
    return std::make_unique<at::ThreadLocalStateGuard>(state_);
  }

 private:
  at::ThreadLocalState state_;
  std::thread::id caller_ = std::this_thread::get_id();
};

}  // namespace

Tiling::Tiling(const Tensors& operands, int64_t tile) {
  // TensorIterator finds the layout of a result, and which dimensions are one. It sees tensors
  // without memory.
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false);
  config.declare_static_dtype_and_device(at::kFloat, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) {
    operands_.push_back(operand.detach());
    config.add_owned_const_input(
        at::empty_strided(operand.sizes(), operand.strides(), operand.options().device(at::kMeta)));
  }
  const at::TensorIterator iterator = config.build();
  sizes_ = iterator.output().sizes().vec();
  strides_ = iterator.output().strides().vec();
  dims_ = iterator.shape().vec();
  if (dims_.empty()) dims_ = {1};
  const auto strides_of = [&](size_t argument, int64_t bytes) {
    std::vector<int64_t> strides = iterator.strides(static_cast<int64_t>(argument)).vec();
    for (int64_t& stride : strides) stride /= bytes;
    strides.resize(dims_.size());
    return strides;
  };
  output_strides_ = strides_of(0, static_cast<int64_t>(sizeof(float)));
  for (size_t i = 0; i < operands_.size(); ++i) {
    operand_strides_.push_back(
        strides_of(i + 1, static_cast<int64_t>(operands_[i].element_size())));
  }
  if (iterator.numel() == 0) return;
  while (cut_ + 1 < dims_.size() && inner_ * dims_[cut_] <= tile) inner_ *= dims_[cut_++];
  rows_ = std::min(rows_of_tile(inner_, tile), dims_[cut_]);
  blocks_ = divide_up(dims_[cut_], rows_);
  for (size_t d = cut_ + 1; d < dims_.size(); ++d) outer_ *= dims_[d];
}

at::Tensor Tiling::new_output(at::ScalarType type) const {
  return at::empty_strided(sizes_, strides_, operands_[0].options().dtype(type));
}

Tile Tiling::tile(int64_t number) const {
  Tile tile{.number = number, .first = std::vector<int64_t>(dims_.size(), 0)};
  tile.first[cut_] = number % blocks_ * rows_;
  const int64_t rows = std::min(rows_, dims_[cut_] - tile.first[cut_]);
  int64_t outer = number / blocks_;
  tile.begin = outer * inner_ * dims_[cut_] + tile.first[cut_] * inner_;
  tile.elements = inner_ * rows;
  for (size_t d = cut_ + 1; d < dims_.size(); ++d) {
    tile.first[d] = outer % dims_[d];
    outer /= dims_[d];
  }
  tile.sizes = {rows};
  for (size_t d = cut_; d-- > 0;) tile.sizes.push_back(dims_[d]);
  return tile;
}

Tile Tiling::flat_tile(int64_t begin, int64_t end) const {
  return {.begin = begin, .elements = end - begin, .sizes = {end - begin}, .first = {begin}};
}

at::Tensor Tiling::view(const at::Tensor& tensor, const std::vector<int64_t>& strides,
                        const Tile& tile, const std::vector<int64_t>& sizes) const {
  int64_t offset = tensor.storage_offset();
  for (size_t d = 0; d < dims_.size(); ++d) offset += tile.first[d] * strides[d];
  std::vector<int64_t> reversed(strides.begin(),
                                strides.begin() + static_cast<std::ptrdiff_t>(sizes.size()));
  std::reverse(reversed.begin(), reversed.end());
  return tensor.as_strided(sizes, reversed, offset);
}

at::Tensor Tiling::operand(size_t i, const Tile& tile) const {
  return view(operands_[i], operand_strides_[i], tile, tile.sizes);
}

at::Tensor Tiling::part(const at::Tensor& output, const Tile& tile) const {
  return view(output, output_strides_, tile, tile.sizes);
}

void Tiling::add_to_sum(size_t i, const Tile& tile, const at::Tensor& numbers,
                        const at::Tensor& sum) const {
  std::vector<int64_t> sizes = tile.sizes, along;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (operand_strides_[i][d] != 0) continue;
    const size_t outermost_first = sizes.size() - 1 - d;
    along.push_back(static_cast<int64_t>(outermost_first));
    sizes[outermost_first] = 1;
  }
  const at::Tensor to = view(sum, operand_strides_[i], tile, sizes);
  to.add_(along.empty() ? numbers : numbers.sum(along, true, sum.scalar_type()));
}

void Tiling::for_each(Order order, const std::function<void(const Tile&)>& work) const {
  if (tiles() == 0) return;
  if (order == Order::kOneByOne || !operands_[0].is_cpu()) {
    for (int64_t number = 0; number < tiles(); ++number) work(tile(number));
  } else if (order == Order::kLikeKernels && flat()) {
    const OnThreads threads;
    device::parallel_ranges(dims_[0], at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
      const auto state = threads.state_here();
      for (int64_t at = begin; at < end; at += rows_) {
        work(flat_tile(at, std::min(end, at + rows_)));
      }
    });
  } else {
    for_numbers(tiles(), operands_[0].device(), [&](int64_t number) { work(tile(number)); });
  }
}

void for_numbers(int64_t count, c10::Device device, const std::function<void(int64_t)>& work) {
  if (!device.is_cpu()) {
    for (int64_t number = 0; number < count; ++number) work(number);
    return;
  }
  const OnThreads threads;
  device::parallel_ranges(count, 1, [&](int64_t begin, int64_t end) {
    const auto state = threads.state_here();
    for (int64_t number = begin; number < end; ++number) work(number);
  });
}

}  // namespace reprise::runtime::internal::nn
