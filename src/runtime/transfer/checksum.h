// This is a checksum of a block of bytes that is faster than a disk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::runtime::internal::transfer {

// Each of four lanes takes every fourth word of eight bytes by an invertible step, so that a change
// of a single word always changes the sum. It is made for accidents (a lost write, a block of
// another place, flipped bits), and it does not protect against intent. It reads about 8 bytes a
// cycle.
uint64_t checksum(const void* data, size_t bytes);

}  // namespace reprise::runtime::internal::transfer
