// The memory of an arena in pages: one range of addresses for each block, whatever pages it has.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "reprise/pack/pages.h"

namespace reprise::runtime::internal::arena {

// The page size of the system.
Bytes system_page();

// The arena is mapped at one address, with huge pages where blocks stand adjacent, and each scattered block a
// second time at an address of its own, behind the arena. Memory: `height` of the packing, once, and page tables for
// both; released at the end.
//
// In a child process of fork() all blocks have what they had, and what it writes is its own; where the parent writes
// on into pages of scattered blocks, the child may see that. Blocks do not share pages any more there: it must not
// put others in their place. Where the system has no room for the child's own pages, it cannot touch them.
class PageMemory {
 public:
  // Null if the system refuses, and for an arena of no bytes. Thread-safe.
  static std::unique_ptr<PageMemory> map(const PagedPacking& packing);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  void* address(size_t block) const { return addresses_[block]; }
  bool contains(const void* data) const;
  bool of_the_parent() const {
    return of_the_parent_;
  }  // this is a child, and there are scattered blocks

 private:
  // Of a part of the file.
  struct Mapping {
    char* address;
    size_t offset, bytes;
  };
  struct Forks;

  PageMemory() = default;
  bool reserve(size_t arena, size_t views);
  bool map_shared(const PagedPacking& packing, size_t arena);
  bool map_again(int flags) const;
  void leave_the_parent();
  static Forks& forks();

  char* reserved_ = nullptr;  // addresses
  size_t size_ = 0;           // of them
  char* base_ = nullptr;      // of the arena
  std::vector<char*> addresses_;
  int file_ = -1;  // in memory, of the arena; -1: nothing is scattered
  std::vector<Mapping> shared_;
  bool of_the_parent_ = false;
};

}  // namespace reprise::runtime::internal::arena
