#include "runtime/nn/stored.h"

#include <ATen/ATen.h>

#include <array>

namespace reprise::runtime::internal::nn {
namespace {

using runtime::nn::DerivativeStorage;

constexpr int64_t kBlock = 256;   // elements with one scale
constexpr double kLargest = 127;  // of 8 bits with a sign

int64_t blocks_of(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// Calls `work` with the whole blocks of a range as rows, and with the rest as one row. The arguments
// are the first element, the shape, and the number of the first block.
template <class Work>
void for_blocks(int64_t elements, const Work& work) {
  const int64_t whole = elements / kBlock, rest = elements % kBlock;
  if (whole > 0) work(0, {whole, kBlock}, 0);
  if (rest > 0) work(whole * kBlock, {1, rest}, whole);
}

at::Tensor rows_of(const at::Tensor& flat, int64_t begin, at::IntArrayRef shape) {
  return flat.narrow(0, begin, shape[0] * shape[1]).view(shape);
}

void store_scaled(const at::Tensor& derivative, const at::Tensor& values,
                  const at::Tensor& scales) {
  for_blocks(values.numel(), [&](int64_t begin, std::array<int64_t, 2> shape, int64_t block) {
    const at::Tensor from = rows_of(derivative, begin, shape);
    const at::Tensor largest = from.abs().amax({1}, true).to(at::kFloat);
    const at::Tensor scale = (largest / kLargest).masked_fill_(largest.eq(0), 1);
    rows_of(values, begin, shape).copy_((from / scale).round_().nan_to_num_(0));
    scales.narrow(0, block, shape[0]).copy_(scale.view({-1}));
  });
}

Stored scaled(const Tiling& tiling) {
  const at::Tensor values = tiling.new_output(at::kChar);
  return {values, at::empty({tiling.tiles(), blocks_of(tiling.largest_tile())},
                            values.options().dtype(at::kFloat))};
}

}  // namespace

Stored room_for(const Tiling& tiling, DerivativeStorage storage, at::ScalarType type) {
  switch (storage) {
    case DerivativeStorage::kFloat16:
      return {tiling.new_output(at::kHalf)};
    case DerivativeStorage::kBFloat16:
      return {tiling.new_output(at::kBFloat16)};
    case DerivativeStorage::kScaled8:
      return scaled(tiling);
    case DerivativeStorage::kFull:
      break;
  }
  return {tiling.new_output(type)};
}

void store(const Tiling& tiling, const Tile& tile, const at::Tensor& derivative, const Stored& to) {
  const at::Tensor part = tiling.part(to.values, tile);
  if (!to.scales.defined()) {
    if (derivative.defined()) part.copy_(derivative);
    if (!derivative.defined()) part.zero_();
    return;
  }
  const at::Tensor flat = derivative.defined()
                              ? derivative.reshape({-1})
                              : at::zeros({part.numel()}, part.options().dtype(at::kFloat));
  store_scaled(flat, part.view({-1}), to.scales[tile.number]);
}

void multiply(const at::Tensor& gradient, const Stored& stored, int64_t number, int64_t begin,
              const at::Tensor& to) {
  const int64_t elements = to.numel();
  const at::Tensor values =
      stored.values.as_strided({elements}, {1}, stored.values.storage_offset() + begin);
  if (!stored.scales.defined()) {
    to.copy_(gradient * values.to(gradient.scalar_type()));
    return;
  }
  const at::Tensor scales = stored.scales[number];
  for_blocks(elements, [&](int64_t first, std::array<int64_t, 2> shape, int64_t block) {
    const at::Tensor scale = scales.narrow(0, block, shape[0]).view({-1, 1});
    const at::Tensor derivative = rows_of(values, first, shape).to(at::kFloat).mul_(scale);
    rows_of(to, first, shape).copy_(rows_of(gradient, first, shape) * derivative);
  });
}

}  // namespace reprise::runtime::internal::nn
