// These are the codecs of saved tensors on the host. They turn elements in memory order into codes
// and numbers of groups, and back. The layers of runtime/nn keep these numbers in tensors, and the
// alternatives of captured steps keep them in one block.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "reprise/runtime/nn/group_codec.h"

namespace reprise::runtime::internal::codec {

using runtime::nn::CodecKind;
using runtime::nn::GroupCodec;

// A group has a multiple of so many elements.
constexpr int64_t kGroupUnit = 16;

int64_t groups_in(int64_t elements, int64_t group);
int64_t bytes_of_codes(int64_t elements, const GroupCodec& codec);

// A Place says where the parts of encoded elements lie.
struct Place {
  uint8_t* codes = nullptr;
  float* step = nullptr;   // for each group
  float* least = nullptr;  // for each group; null for OliVe
};

// A block holds all parts: the numbers of the groups, then the codes.
int64_t block_bytes(int64_t elements, const GroupCodec& codec);
Place place_in(void* block, int64_t elements, const GroupCodec& codec);

// A codec states this about the elements that it has encoded.
struct Stated {
  double bound = 0;    // no element is off by more; NaN if one was not finite
  double largest = 0;  // the largest absolute value of an element, up to the bound
};

// The elements are of one of the types float64, float32, float16 and bfloat16.
Stated encode(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
              const Place& place);
void decode(at::ScalarType type, const Place& place, int64_t elements, const GroupCodec& codec,
            void* x);

// Returns the largest error of an element whose group begins at `least` and has this step, where
// decoded numbers are of this type.
double range_bound(double least, double step, at::ScalarType type, const GroupCodec& codec);

// Groups that one thread takes at once.
int64_t grain_of(const GroupCodec& codec);

// The largest number that both float32 and the type can hold.
template <class Element>
constexpr float largest_of() {
  return static_cast<float>(std::min<double>(
      std::numeric_limits<float>::max(), static_cast<double>(std::numeric_limits<Element>::max())));
}

// Calls `work` with a null pointer to the type of the elements.
template <class Work>
auto with_element(at::ScalarType type, const Work& work) {
  switch (type) {
    case at::kDouble:
      return work(static_cast<double*>(nullptr));
    case at::kHalf:
      return work(static_cast<at::Half*>(nullptr));
    case at::kBFloat16:
      return work(static_cast<at::BFloat16*>(nullptr));
    default:
      return work(static_cast<float*>(nullptr));
  }
}

}  // namespace reprise::runtime::internal::codec
