// These are the kinds of codecs: a row of host_codec.cc calls these functions.
#pragma once

#include "runtime/codec/host_codec.h"

namespace reprise::runtime::internal::codec {

// Chen et al., arXiv 2104.14129, section 4.1 (range_codec.cc).
Stated encode_range(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
                    const Place& place);
void decode_range(at::ScalarType type, const Place& place, int64_t elements,
                  const GroupCodec& codec, void* x);

// Guo et al., arXiv 2304.07493 (olive_codec.cc).
Stated encode_olive(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
                    const Place& place);
void decode_olive(at::ScalarType type, const Place& place, int64_t elements,
                  const GroupCodec& codec, void* x);

}  // namespace reprise::runtime::internal::codec
