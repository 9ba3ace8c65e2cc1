#include "runtime/codec/host_codec.h"

#include "runtime/codec/kinds.h"

namespace reprise::runtime::internal::codec {

int64_t groups_in(int64_t elements, int64_t group) { return (elements + group - 1) / group; }

int64_t bytes_of_codes(int64_t elements, const GroupCodec& codec) {
  const int64_t last = codec.kind == CodecKind::kOlive ? elements % 2 : 0;  // its neighbour
  return ((elements + last) * codec.bits + 7) / 8;
}

int64_t grain_of(const GroupCodec& codec) { return std::max<int64_t>(1, 32'768 / codec.group); }

int64_t block_bytes(int64_t elements, const GroupCodec& codec) {
  const int64_t numbers = codec.kind == CodecKind::kOlive ? 1 : 2;
  return numbers * static_cast<int64_t>(sizeof(float)) * groups_in(elements, codec.group) +
         bytes_of_codes(elements, codec);
}

Place place_in(void* block, int64_t elements, const GroupCodec& codec) {
  const int64_t groups = groups_in(elements, codec.group);
  auto* const numbers = static_cast<float*>(block);
  Place place{.codes = nullptr, .step = numbers, .least = nullptr};
  float* behind = numbers + groups;
  if (codec.kind == CodecKind::kRange) {
    place.least = behind;
    behind += groups;
  }
  place.codes = reinterpret_cast<uint8_t*>(behind);
  return place;
}

Stated encode(at::ScalarType type, const void* x, int64_t elements, const GroupCodec& codec,
              const Place& place) {
  switch (codec.kind) {
    case CodecKind::kRange:
      break;
    case CodecKind::kOlive:
      return encode_olive(type, x, elements, codec, place);
  }
  return encode_range(type, x, elements, codec, place);
}

void decode(at::ScalarType type, const Place& place, int64_t elements, const GroupCodec& codec,
            void* x) {
  switch (codec.kind) {
    case CodecKind::kRange:
      break;
    case CodecKind::kOlive:
      return decode_olive(type, place, elements, codec, x);
  }
  decode_range(type, place, elements, codec, x);
}

}  // namespace reprise::runtime::internal::codec
