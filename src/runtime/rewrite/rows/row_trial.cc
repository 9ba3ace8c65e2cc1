#include "runtime/rewrite/rows/row_trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/rows/column_sum.h"
#include "runtime/rewrite/tiles/tile_trial.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::rewrite {

using step::kind_of;

namespace {

// There are at least so many blocks, as long as they are not shorter than products run well with.
constexpr int64_t kBlocks = 16, kLeastRows = 128;
// MKL adds up a product over rows in parts of 192 rows of float32 and of 256 of float64.
constexpr std::array<int64_t, 4> kWeightRows = {192, 256, 384, 128};
constexpr int64_t kLeastElements = 8192;  // in fewer, another order may not show
constexpr uint64_t kSeed = 20220920;

// Returns a tensor of random numbers with this geometry.
at::Tensor random_like(Geometry look, at::Generator& generator, c10::Device device) {
  look.offset %= 16;  // keeps an alignment that matters to vectorised kernels
  const auto size = static_cast<int64_t>(c10::elementSize(look.dtype));
  at::Tensor memory = at::empty({extent_bytes(look) / size}, at::TensorOptions(look.dtype));
  memory.uniform_(-1, 1, generator);
  return tensor_on(memory.to(device).storage(), look);
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_contiguous() || a.nbytes() != b.nbytes()) return false;
  if (!a.device().is_cpu()) return a.view(at::kByte).equal(b.view(at::kByte));
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Returns whether the blocks leave the bits of `whole`. A product is compared block by block, so
// that its result, perhaps the logits of all rows, is there only once.
bool blocks_agree(const RowCall& call, const RowBlocks& blocks,
                  const std::vector<at::Tensor>& operands, const at::Tensor& whole) {
  const bool is_product = call.kind == RowKind::kProduct;
  const at::Tensor bias = operands.size() > 2 ? operands[2] : at::Tensor();
  const at::Tensor result = is_product ? at::Tensor() : at::empty(whole.sizes(), whole.options());
  ColumnSum sum(call.rows, call.kind == RowKind::kSum ? call.width() : 0, whole.options());
  bool agree = true;
  for_each_block(blocks, [&](int64_t first, int64_t count) {
    const at::Tensor rows = operands[0].narrow(0, first, count);
    if (is_product) {
      const at::Tensor part = at::empty({count, call.width()}, whole.options());
      multiply_rows(rows, operands[1], bias, part);
      agree = agree && equal_bits(whole.narrow(0, first, count), part);
    } else if (call.kind == RowKind::kWeight) {
      add_weight(rows, operands[1].narrow(0, first, count), first, blocks.weight, result);
    } else {
      sum.add(rows);
    }
  });
  if (call.kind == RowKind::kSum) sum.finish(result);
  return is_product ? agree : equal_bits(whole, result);
}

// Returns the recorded call on these operands, which have the order of RowCall::operands.
at::Tensor as_a_whole(const RowCall& call, const Call& recorded,
                      const std::vector<at::Tensor>& operands) {
  std::vector<c10::IValue> stack;
  size_t next = operands.size() > 2 ? 2 : 0;  // a bias is the first argument
  for (const Argument& argument : recorded.arguments) {
    if (argument.kind == ArgumentKind::kConstant) {
      stack.push_back(argument.constant);
      continue;
    }
    const at::Tensor& operand = operands[next];
    const bool turned = call.kind == RowKind::kWeight && stack.empty();
    stack.emplace_back(turned ? operand.t() : operand.view(argument.tensors[0].geometry.sizes));
    next = (next + 1) % operands.size();
  }
  recorded.op.callBoxed(stack);
  return stack.at(0).toTensor();
}

bool agrees(const RowCall& call, const Call& recorded, const RowBlocks& blocks,
            c10::Device device) {
  const ReplayScope scope;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  int64_t compared = 0;
  while (compared < kLeastElements) {
    std::vector<at::Tensor> operands;
    for (const TensorRef& ref : call.operands) {
      operands.push_back(random_like(ref.geometry, generator, device));
    }
    const at::Tensor whole = as_a_whole(call, recorded, operands);
    if (!blocks_agree(call, blocks, operands, whole)) return false;
    compared += whole.numel();
  }
  return true;
}

// Returns whether vectors of element-wise kernels end in the blocks where they end in the whole:
// blocks begin at multiples of the alignment, and so do threads of the whole.
bool ends_agree(const RowCall& call, const RowBlocks& blocks) {
  if (call.elements->rounds_once) return true;
  const int64_t elements = call.elements->elements, grain = at::internal::GRAIN_SIZE;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (elements + grain - 1) / grain);
  const bool in_threads = threads <= 1 || (elements + threads - 1) / threads % kTileAlignment == 0;
  return in_threads && blocks.block * call.width() % kTileAlignment == 0;
}

}  // namespace

bool RowTrials::passes(const RowCall& call, const RowBlocks& blocks) {
  if (call.kind == RowKind::kElements) return ends_agree(call, blocks);
  const Call& recorded = recording_.calls[call.call];
  const Work work{.name = recorded.name(), .kernel = {}, .arguments = recorded.arguments};
  const std::string kind =
      fmt::format("{} {} {} {} {}", static_cast<int>(call.kind), kind_of(work), blocks.rows,
                  blocks.block, call.kind == RowKind::kWeight ? blocks.weight : 0);
  const auto [passed, fresh] = passed_.try_emplace(kind, false);
  if (fresh) passed->second = agrees(call, recorded, blocks, recording_.device);
  return passed->second;
}

std::optional<RowBlocks> find_blocks(const std::vector<RowCall>& calls, int64_t rows,
                                     RowTrials& trials) {
  int64_t multiple = 1;
  for (const RowCall& call : calls) {
    if (call.kind == RowKind::kElements && !call.elements->rounds_once) {
      multiple = std::lcm(multiple, kTileAlignment / std::gcd(kTileAlignment, call.width()));
    }
  }
  const int64_t wanted = std::max((rows + kBlocks - 1) / kBlocks, kLeastRows);
  for (const int64_t weight : kWeightRows) {
    const int64_t step = std::lcm(weight, multiple);
    const RowBlocks blocks{rows, (wanted + step - 1) / step * step, weight};
    if (2 * blocks.block > rows) continue;
    if (std::ranges::all_of(calls,
                            [&](const RowCall& call) { return trials.passes(call, blocks); })) {
      return blocks;
    }
  }
  return std::nullopt;
}

}  // namespace reprise::runtime::internal::rewrite
