#include "runtime/step/fingerprint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "runtime/device/parallel.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/step/tensors.h"

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

// Numbers that differ from word to word of a piece, as a tensor on the device.
struct Weights {
  at::Tensor first, second;  // [words of a piece], odd
};

constexpr int64_t kWords = Fingerprint::kPiece / 8;
constexpr int64_t kPiecesAtOnce = 1024;  // temporary memory on a device is twice as large
// A smaller storage is copied to the host sooner than a device starts its kernels.
constexpr int64_t kPiecesForDevice = 16;

Weights make_weights(c10::Device device) {
  std::vector<int64_t> words(2 * kWords);
  uint64_t state = 1;
  for (int64_t& word : words) {  // SplitMix64 (Steele, Lea and Flood 2014, figure 17)
    state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    word = static_cast<int64_t>((mixed ^ (mixed >> 31)) | 1);
  }
  const at::Tensor both = at::tensor(words, at::kLong).to(device);
  return {both.narrow(0, 0, kWords), both.narrow(0, kWords, kWords)};
}

const Weights& weights_on(c10::Device device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, Weights>;  // never destroyed, as the device
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find(device.str());
  if (found != known->end()) return found->second;
  return known->emplace(device.str(), make_weights(device)).first->second;
}

// Hashes whole pieces on the device that has them. The hash has two sums over the words x of a piece,
// with weights v and w: that of x v, which differs if one word differs, and that of the upper half of
// x v, times w, because bits at the top cancel each other in the first one.
std::vector<uint64_t> hash_on_device(const c10::Storage& storage, int64_t first, int64_t count) {
  const at::NoGradGuard no_grad;
  const Weights& weights = weights_on(storage.device());
  std::vector<uint64_t> hashes;
  for (int64_t begin = 0; begin < count; begin += kPiecesAtOnce) {
    const int64_t pieces = std::min(kPiecesAtOnce, count - begin);
    const at::Tensor words = tensor_on(storage, {.sizes = {pieces, kWords},
                                                 .strides = {kWords, 1},
                                                 .offset = (first + begin) * kWords,
                                                 .dtype = at::kLong});
    at::Tensor products = words * weights.first;
    const at::Tensor sum = products.sum(1);
    products.bitwise_right_shift_(32);
    products.mul_(weights.second);
    const at::Tensor both = at::stack({sum, products.sum(1)}).cpu();
    const int64_t* data = both.const_data_ptr<int64_t>();
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const auto low = static_cast<uint64_t>(data[piece]);
      hashes.push_back(low * 0x9E3779B97F4A7C15u ^ static_cast<uint64_t>(data[pieces + piece]));
    }
  }
  return hashes;
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
  bool changed = false;
  if (storage.device().is_cpu()) {
    changed = renew_on_host(static_cast<const char*>(storage.data()), first, last, bytes);
  } else {
    // Which pieces are hashed on the device depends on the storage alone, so hashes of different
    // extents compare.
    const int64_t whole = std::min(last, bytes / kPiece);
    int64_t done = first;
    if (bytes / kPiece >= kPiecesForDevice && first < whole) {
      for (const uint64_t hash : hash_on_device(storage, first, whole - first)) {
        uint64_t& before = hashes_[done++];
        changed = changed || hash != before;
        before = hash;
      }
    }
    if (done < last) {
      const HostBytes rest =
          copy_to_host(storage, done * kPiece, std::min(bytes, last * kPiece) - done * kPiece);
      changed = renew_on_host(rest.data() - done * kPiece, done, last, bytes) || changed;
    }
  }
  return changed;
}

bool Fingerprint::renew_on_host(const char* data, int64_t first, int64_t last, int64_t bytes) {
  std::atomic<bool> changed = false;
  const auto hash_pieces = [&](int64_t begin, int64_t end) {
    for (int64_t piece = first + begin; piece < first + end; ++piece) {
      const int64_t at = piece * kPiece;
      const uint64_t hash =
          hash_bytes(data + at, static_cast<size_t>(std::min(kPiece, bytes - at)));
      uint64_t& before = hashes_[piece];
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
