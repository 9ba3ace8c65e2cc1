#include "runtime/state/bits.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/device/parallel.h"

namespace reprise::runtime::internal::state {
namespace {

constexpr int64_t kGrain = 4096;  // bytes of bits for each thread
constexpr int64_t kRun = 512;     // bytes of bits at a time: their answers stay in the cache

// Packs eight answers, bytes of 0 or 1, into one byte. The product moves bit 8 i to bit 56 + i. All
// its other terms land below bit 56 or beyond bit 63, without a carry.
uint8_t packed(const uint8_t* answers) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t eight = 0;
  std::memcpy(&eight, answers, sizeof eight);
  return static_cast<uint8_t>(eight * 0x0102040810204080 >> 56);
}

template <class Element>
void pack(const Element* from, Element yes, uint8_t* to, int64_t elements) {
  device::parallel_ranges(bytes_of_bits(elements), kGrain, [&](int64_t begin, int64_t end) {
    std::array<uint8_t, 8 * kRun> answers;
    for (int64_t first = begin; first < end; first += kRun) {
      const int64_t bytes = std::min(kRun, end - first);
      const int64_t count = std::min(8 * bytes, elements - 8 * first);
      for (int64_t i = 0; i < count; ++i) answers[i] = from[8 * first + i] == yes;
      std::fill(answers.begin() + count, answers.begin() + 8 * bytes, uint8_t{0});
      for (int64_t k = 0; k < bytes; ++k) to[first + k] = packed(&answers[8 * k]);
    }
  });
}

// Writes eight elements at a time from a table of all bytes.
template <class Element>
void unpack(const uint8_t* from, const std::array<Element, 2>& values, Element* to,
            int64_t elements) {
  std::array<std::array<Element, 8>, 256> table;
  for (size_t byte = 0; byte < table.size(); ++byte) {
    for (size_t b = 0; b < 8; ++b) table[byte][b] = values[byte >> b & 1];
  }
  device::parallel_ranges(elements / 8, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      std::memcpy(to + 8 * k, table[from[k]].data(), sizeof table[0]);
    }
  });
  for (int64_t i = elements / 8 * 8; i < elements; ++i) to[i] = values[from[i / 8] >> i % 8 & 1];
}

// Calls `work` with `values` as two elements of the tensor's element size.
template <class Work>
void as_elements(const at::Tensor& tensor, const StandIns& values, Work&& work) {
  const auto with = [&]<class Element>(Element) {
    std::array<Element, 2> elements;
    std::memcpy(elements.data(), values.data(), sizeof elements);
    work(elements);
  };
  switch (tensor.element_size()) {
    case 1:
      return with(uint8_t());
    case 2:
      return with(uint16_t());
    case 4:
      return with(uint32_t());
    default:
      return with(uint64_t());
  }
}

}  // namespace

int64_t bytes_of_bits(int64_t elements) { return (elements + 7) / 8; }

void pack_bits(const at::Tensor& from, const StandIns& values, uint8_t* to) {
  as_elements(from, values, [&]<class Element>(const std::array<Element, 2>& two) {
    pack(static_cast<const Element*>(from.const_data_ptr()), two[1], to, from.numel());
  });
}

void unpack_bits(const uint8_t* from, const StandIns& values, const at::Tensor& to) {
  as_elements(to, values, [&]<class Element>(const std::array<Element, 2>& two) {
    unpack(from, two, static_cast<Element*>(to.mutable_data_ptr()), to.numel());
  });
}

}  // namespace reprise::runtime::internal::state
