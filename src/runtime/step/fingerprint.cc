#include "runtime/step/fingerprint.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/device/parallel.h"
#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::step {

namespace {

// So many pieces are worth another thread.
constexpr int64_t kPiecesOfAThread = 4;

// Mixes words in eight independent lanes, so that a core reads memory as fast as it can.
uint64_t hash_bytes(const char* data, size_t size) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  constexpr size_t kLanes = 8;
  uint64_t lanes[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = (size + lane) * kMix;
  size_t at = 0;
  for (; at + 8 * kLanes <= size; at += 8 * kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint64_t word;
      std::memcpy(&word, data + at + 8 * lane, 8);
      lanes[lane] = (lanes[lane] ^ word) * kMix;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  for (; at < size; ++at) {
    lanes[at % kLanes] = (lanes[at % kLanes] ^ static_cast<unsigned char>(data[at])) * kMix;
    lanes[at % kLanes] ^= lanes[at % kLanes] >> 29;
  }
  uint64_t hash = 0;
  for (const uint64_t lane : lanes) {
    hash = (hash ^ lane) * kMix;
    hash ^= hash >> 32;
  }
  return hash;
}

size_t pieces_of(const c10::Storage& storage) {
  constexpr auto kPiece = static_cast<size_t>(Fingerprint::kPiece);
  return (storage.nbytes() + kPiece - 1) / kPiece;
}

}  // namespace

Extent extent_of(const Geometry& geometry) {
  return {geometry.offset * static_cast<int64_t>(c10::elementSize(geometry.dtype)),
          extent_bytes(geometry)};
}

Fingerprint::Fingerprint(const c10::Storage& storage) : hashes_(pieces_of(storage)) {
  renew(storage, {0, static_cast<int64_t>(storage.nbytes())});
}

bool Fingerprint::renew(const c10::Storage& storage, const Extent& extent) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  if (pieces_of(storage) != hashes_.size()) {
    *this = Fingerprint(storage);
    return true;
  }
  const int64_t first = std::max<int64_t>(extent.begin, 0) / kPiece;
  const int64_t last =
      std::min((extent.end + kPiece - 1) / kPiece, static_cast<int64_t>(hashes_.size()));
  if (last <= first) return false;
  const bool on_host = storage.device().is_cpu();
  const HostBytes copy = on_host ? HostBytes() : copy_to_host(storage);
  const char* data = on_host ? static_cast<const char*>(storage.data()) : copy.data();
  std::atomic<bool> changed = false;
  const auto hash_pieces = [&](int64_t begin, int64_t end) {
    for (int64_t piece = first + begin; piece < first + end; ++piece) {
      const int64_t at = piece * kPiece;
      const uint64_t hash =
          hash_bytes(data + at, static_cast<size_t>(std::min(kPiece, bytes - at)));
      uint64_t& before = hashes_[static_cast<size_t>(piece)];
      if (hash != before) changed.store(true, std::memory_order_relaxed);
      before = hash;
    }
  };
  if (last - first < 2 * kPiecesOfAThread) {
    hash_pieces(0, last - first);
  } else {
    device::parallel_ranges(last - first, kPiecesOfAThread, hash_pieces);
  }
  return changed;
}

}  // namespace reprise::runtime::internal::step
