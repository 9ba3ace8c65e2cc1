// These are aligned blocks of the heap.
#pragma once

#include <cstdint>

namespace reprise::runtime::internal::device {

// Takes a block that begins at a multiple of kBlockAlignment. Returns null if there is no memory.
//
// posix_memalign() cuts an aligned block out of a larger one. With glibc, the hole that the block
// leaves is then too small for the next request of the same size, and small blocks between such
// holes keep them apart: recording a step made the heap grow to five times the bytes in use. So
// these blocks keep the room for their alignment, and one fits into the hole of another.
void* take_heap_block(int64_t bytes);
void give_back_heap_block(void* data);

// Gives the pages of the heap that nothing uses back to the system, where the heap can do that. It
// takes some milliseconds. The heap keeps such pages for itself otherwise, and a process would need
// them beside an arena that is as large.
void give_back_idle_pages();

}  // namespace reprise::runtime::internal::device
