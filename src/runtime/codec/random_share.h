// These are random numbers that depend on a seed and on the place of an element alone.
#pragma once

#include <cstdint>

namespace reprise::runtime::internal::codec {

// This is the finalizer of MurmurHash3 (A. Appleby, public domain).
inline uint32_t mixed(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  h *= 0xc2b2ae35U;
  return h ^ h >> 16;
}

// Returns a number in [0, 1) for the element.
inline float random_share(uint64_t seed, int64_t element) {
  const auto place = static_cast<uint64_t>(element);
  const uint32_t low = mixed(static_cast<uint32_t>(place) ^ static_cast<uint32_t>(seed));
  const uint32_t high = static_cast<uint32_t>(place >> 32) + static_cast<uint32_t>(seed >> 32);
  return static_cast<float>(mixed(low + 0x9e3779b9U * (high + 1)) >> 8) * 0x1p-24f;
}

}  // namespace reprise::runtime::internal::codec
