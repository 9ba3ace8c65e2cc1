// Kernels for the host, and the same by operations of PyTorch.
//
// The number of a step is the number of boundaries that are not above x. A loop over the boundaries
// counts them for a few hundred elements at a time, so that compilers make vectors of it. Eight
// numbers, bytes of one 64-bit word, are then cut into planes: bit j of all of them is one byte.
#include "runtime/nn/step_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/codec/host_codec.h"
#include "runtime/device/parallel.h"
#include "runtime/step/record.h"

namespace reprise::runtime::internal::nn {

using codec::with_element;

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kEight = 8;
constexpr int64_t kRun = 256;     // elements at a time
constexpr int64_t kGrain = 4096;  // groups of eight for a thread
constexpr uint64_t kOnes = 0x0101010101010101;

int64_t groups_of(int64_t elements) { return (elements + kEight - 1) / kEight; }

// Returns the lowest bits of eight bytes as one byte.
uint8_t gathered(uint64_t bytes) {
  return static_cast<uint8_t>((bytes & kOnes) * 0x0102040810204080 >> 56);
}

// Returns, for each byte, its eight bits as eight bytes.
std::array<uint64_t, 256> spread_table() {
  std::array<uint64_t, 256> table{};
  for (uint64_t byte = 0; byte < table.size(); ++byte) {
    for (uint64_t bit = 0; bit < 8; ++bit) table[byte] |= (byte >> bit & 1) << 8 * bit;
  }
  return table;
}

template <class Number>
std::vector<Number> numbers_of(const at::Tensor& tensor) {
  const double* data = tensor.const_data_ptr<double>();
  return {data, data + tensor.numel()};
}

// 16-bit numbers are compared and multiplied as float32.
template <class Element>
using Wide = std::conditional_t<std::is_same_v<Element, double>, double, float>;

template <class Element>
void encode(const Element* from, const std::vector<Wide<Element>>& boundaries, int bits,
            int64_t elements, uint8_t* to) {
  using Number = Wide<Element>;
  device::parallel_ranges(groups_of(elements), kGrain, [&](int64_t begin, int64_t end) {
    std::array<Number, kRun> x;
    std::array<std::conditional_t<std::is_same_v<Number, double>, int64_t, int32_t>, kRun> code;
    for (int64_t group = begin; group < end; group += kRun / kEight) {
      const int64_t groups = std::min(kRun / kEight, end - group);
      const int64_t first = group * kEight, count = std::min(groups * kEight, elements - first);
      for (int64_t i = 0; i < count; ++i) x[i] = static_cast<Number>(from[first + i]);
      std::fill(x.begin() + count, x.end(), Number{0});
      std::fill(code.begin(), code.end(), 0);
      for (const Number boundary : boundaries) {
        for (int64_t i = 0; i < kRun; ++i) code[i] += !(x[i] < boundary);
      }
      std::fill(code.begin() + count, code.end(), 0);  // of elements that are not there
      for (int64_t g = 0; g < groups; ++g) {
        uint64_t eight = 0;
        for (int64_t e = 0; e < kEight; ++e) {
          eight |= static_cast<uint64_t>(code[g * kEight + e]) << 8 * e;
        }
        for (int bit = 0; bit < bits; ++bit) to[(group + g) * bits + bit] = gathered(eight >> bit);
      }
    }
  });
}

template <class Element>
void decode(const Element* gradient, const uint8_t* codes, const std::vector<Wide<Element>>& levels,
            int bits, int64_t elements, Element* to) {
  static const std::array<uint64_t, 256> spread = spread_table();
  device::parallel_ranges(groups_of(elements), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      uint64_t eight = 0;
      for (int bit = 0; bit < bits; ++bit) eight |= spread[codes[group * bits + bit]] << bit;
      const int64_t first = group * kEight, count = std::min(kEight, elements - first);
      for (int64_t e = 0; e < count; ++e) {
        const Wide<Element> level = levels[eight >> 8 * e & 0xff];
        to[first + e] =
            static_cast<Element>(level * static_cast<Wide<Element>>(gradient[first + e]));
      }
    }
  });
}

at::Tensor in_memory_order(const at::Tensor& x) {
  return x.as_strided({x.numel()}, {1}, x.storage_offset());
}

bool by_kernels(const at::Tensor& x) { return x.is_cpu() && !step::is_recording(); }

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor numbers_to(int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kInt));
}

}  // namespace

at::Tensor step_codes(const at::Tensor& x, const StepTensors& table) {
  if (!by_kernels(x)) return step_codes_by_operations(x, table);
  const at::Tensor codes =
      at::empty({groups_of(x.numel()) * table.bits}, x.options().dtype(at::kByte));
  with_element(x.scalar_type(), [&]<class Element>(Element*) {
    encode<Element>(x.const_data_ptr<Element>(), numbers_of<Wide<Element>>(table.boundaries),
                    table.bits, x.numel(), codes.mutable_data_ptr<uint8_t>());
  });
  return codes;
}

at::Tensor times_levels(const at::Tensor& gradient, const at::Tensor& codes,
                        const StepTensors& table) {
  if (!by_kernels(gradient)) return times_levels_by_operations(gradient, codes, table);
  const at::Tensor product =
      at::empty_strided(gradient.sizes(), gradient.strides(), gradient.options());
  with_element(gradient.scalar_type(), [&]<class Element>(Element*) {
    decode<Element>(gradient.const_data_ptr<Element>(), codes.const_data_ptr<uint8_t>(),
                    numbers_of<Wide<Element>>(table.levels), table.bits, gradient.numel(),
                    product.mutable_data_ptr<Element>());
  });
  return product;
}

at::Tensor step_codes_by_operations(const at::Tensor& x, const StepTensors& table) {
  const at::ScalarType wide = wide_type(x);
  const at::Tensor codes = at::bucketize(in_memory_order(x).to(wide), table.boundaries.to(wide),
                                         /*out_int32=*/true, /*right=*/true);
  const int64_t missing = groups_of(x.numel()) * kEight - x.numel();
  const at::Tensor groups = at::constant_pad_nd(codes, {0, missing}).view({-1, 1, kEight});
  const at::Tensor planes = at::bitwise_and(
      at::bitwise_right_shift(groups, numbers_to(table.bits, x).view({1, -1, 1})), 1);
  const at::Tensor places = numbers_to(kEight, x).view({1, 1, -1});
  return at::bitwise_left_shift(planes, places).sum({2}).to(at::kByte).view({-1});
}

at::Tensor times_levels_by_operations(const at::Tensor& gradient, const at::Tensor& codes,
                                      const StepTensors& table) {
  const at::ScalarType wide = wide_type(gradient);
  const at::Tensor planes = codes.view({-1, table.bits, 1}).to(at::kInt);
  const at::Tensor bits = at::bitwise_and(
      at::bitwise_right_shift(planes, numbers_to(kEight, codes).view({1, 1, -1})), 1);
  const at::Tensor places = numbers_to(table.bits, codes).view({1, -1, 1});
  const at::Tensor numbers = at::bitwise_left_shift(bits, places).sum({1}).view({-1});
  const at::Tensor levels =
      table.levels.to(wide).index_select(0, numbers.narrow(0, 0, gradient.numel()));
  const at::Tensor product =
      (in_memory_order(gradient).to(wide) * levels).to(gradient.scalar_type());
  return product.as_strided(gradient.sizes(), gradient.strides());
}

}  // namespace reprise::runtime::internal::nn
