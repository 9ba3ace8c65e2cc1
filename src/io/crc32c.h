// Computes the checksum CRC-32C (polynomial 0x1EDC6F41, reflected), as in RFC 3720, appendix B.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reprise::io {

// Returns the checksum of `bytes`. `before` is the checksum of the bytes in front of them, so that
// a text may be summed piece by piece. Time: about a nanosecond a byte or less.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace reprise::io
