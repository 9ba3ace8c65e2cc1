#include "runtime/transfer/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace reprise::runtime::internal::transfer {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio; odd: invertible

// Invertible in `sum`, and in `word`.
uint64_t take(uint64_t sum, uint64_t word) { return std::rotl((sum ^ word) * kOdd, 29); }

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  std::array<uint64_t, 4> lanes{1, 2, 3, 4};
  const auto* at = static_cast<const unsigned char*>(data);
  size_t left = bytes;
  for (; left >= 32; at += 32, left -= 32) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), at, 32);
    for (size_t i = 0; i < 4; ++i) lanes[i] = take(lanes[i], words[i]);
  }
  for (size_t i = 0; left > 0; ++i) {
    uint64_t word = 0;
    const size_t here = left < 8 ? left : 8;
    std::memcpy(&word, at, here);
    lanes[i] = take(lanes[i], word);
    at += here;
    left -= here;
  }
  uint64_t sum = bytes;
  for (const uint64_t lane : lanes) sum = take(sum, lane);
  return sum;
}

}  // namespace reprise::runtime::internal::transfer
