// PageMemory is the memory of an arena in pages. Each block has one range of addresses, whatever
// pages it lies in.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "reprise/pack/pages.h"
#include "runtime/arena/arena_memory.h"

namespace reprise::runtime::internal::arena {

// Returns the page size of the system.
Bytes system_page();

// PageMemory maps the arena at one address, with huge pages where blocks stand adjacent. It maps
// each scattered block a second time, at an address of its own behind the arena. Memory: `height`
// of the packing, once, and page tables for both mappings. The destructor releases it.
//
// In a child process of fork() all blocks keep their contents, and the child's writes are its own.
// The child may see what the parent goes on writing into pages of scattered blocks. Blocks do not
// share pages any more in the child, so the child must not put other blocks in their place. If the
// system has no room for the child's own pages, the child cannot touch scattered blocks.
class PageMemory final : public ArenaMemory {
 public:
  // Maps the memory of a packing. Returns null if the system refuses, and for an arena of no bytes.
  // Thread-safe.
  static std::unique_ptr<PageMemory> map(const PagedPacking& packing);
  ~PageMemory() override;
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  void* address(size_t block) const override { return addresses_[block]; }
  bool contains(const void* data) const override;
  // Says whether this process is a child, and there are scattered blocks of the parent.
  bool of_the_parent() const override { return of_the_parent_; }

 private:
  // A Mapping is an address at which a part of the file is mapped.
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

  char* reserved_ = nullptr;  // start of the reserved addresses
  size_t size_ = 0;           // number of reserved bytes
  char* base_ = nullptr;      // start of the arena
  std::vector<char*> addresses_;
  int file_ = -1;  // the arena's file in memory; -1 if no block is scattered
  std::vector<Mapping> shared_;
  bool of_the_parent_ = false;
};

}  // namespace reprise::runtime::internal::arena
