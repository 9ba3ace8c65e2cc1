#include "runtime/arena/page_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

namespace reprise::runtime::internal::arena {
namespace {

// The unit of madvise(MADV_HUGEPAGE) where pages have 4 KiB. It is a multiple of any page size.
constexpr size_t kHugePage = size_t{1} << 21;

size_t size_of(Bytes bytes) { return static_cast<size_t>(bytes.count()); }
size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t whole_pages(Bytes bytes) { return round_up(size_of(bytes), size_of(system_page())); }

// A Part is a range of bytes of the arena.
struct Part {
  size_t begin, end;
};

// Returns the huge pages in which scattered blocks lie. They are mapped twice, which takes small
// pages.
std::vector<Part> shared_parts(const PagedPacking& packing, size_t arena) {
  std::vector<Part> parts;
  for (const std::vector<Extent>& extents : packing.extents) {
    if (extents.size() == 1) continue;
    for (const Extent& extent : extents) {
      const size_t begin = size_of(extent.offset), end = begin + size_of(extent.bytes);
      parts.push_back({begin / kHugePage * kHugePage, std::min(arena, round_up(end, kHugePage))});
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::vector<Part> joined;
  for (const Part& part : parts) {
    if (!joined.empty() && part.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, part.end);
    } else {
      joined.push_back(part);
    }
  }
  return joined;
}

}  // namespace

Bytes system_page() { return Bytes(sysconf(_SC_PAGESIZE)); }

// Forks knows all memories that are shared with a child process after fork(), because a child must
// not write into the parent's memory.
struct PageMemory::Forks {
  std::mutex mutex;
  std::set<PageMemory*> shared;

  void before() { mutex.lock(); }
  void in_parent() { mutex.unlock(); }
  void in_child() {
    for (PageMemory* memory : shared) memory->leave_the_parent();
    mutex.unlock();
  }
};

// The instance is never destroyed, because arenas of static lifetime end after main().
PageMemory::Forks& PageMemory::forks() {
  static auto* instance = [] {
    pthread_atfork([] { forks().before(); }, [] { forks().in_parent(); },
                   [] { forks().in_child(); });
    return new Forks;
  }();
  return *instance;
}

std::unique_ptr<PageMemory> PageMemory::map(const PagedPacking& packing) {
  const size_t arena = whole_pages(packing.height);
  size_t views = 0;
  for (const std::vector<Extent>& extents : packing.extents) {
    if (extents.size() == 1) continue;
    for (const Extent& extent : extents) views += whole_pages(extent.bytes);
  }
  std::unique_ptr<PageMemory> memory(new PageMemory);
  if (arena == 0 || !memory->reserve(arena, views)) return nullptr;
  if (views > 0 && !memory->map_shared(packing, arena)) return nullptr;
  char* view = memory->base_ + arena;
  for (const std::vector<Extent>& extents : packing.extents) {
    const bool adjacent = extents.size() == 1;
    memory->addresses_.push_back(adjacent ? memory->base_ + extents[0].offset.count() : view);
    for (const Extent& extent : extents) view += adjacent ? 0 : whole_pages(extent.bytes);
  }
  return memory;
}

PageMemory::~PageMemory() {
  if (file_ >= 0) {
    std::lock_guard<std::mutex> lock(forks().mutex);
    forks().shared.erase(this);
    close(file_);
  }
  if (reserved_ != nullptr) munmap(reserved_, size_);
}

bool PageMemory::contains(const void* data) const {
  const char* address = static_cast<const char*>(data);
  return address >= reserved_ && address < reserved_ + size_;
}

// Reserves addresses for the arena and the views, and takes memory for the arena.
bool PageMemory::reserve(size_t arena, size_t views) {
  size_ = arena + views + kHugePage;  // The arena can begin at a huge page then.
  void* reserved =
      mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  reserved_ = static_cast<char*>(reserved);
  base_ = reserved_ + (kHugePage - reinterpret_cast<uintptr_t>(reserved_) % kHugePage);
  if (mmap(base_, arena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    return false;
  }
  madvise(base_, arena, MADV_HUGEPAGE);
  return true;
}

// Maps the shared parts in the arena, and each scattered block behind it.
bool PageMemory::map_shared(const PagedPacking& packing, size_t arena) {
  for (const Part& part : shared_parts(packing, arena)) {
    shared_.push_back({base_ + part.begin, part.begin, part.end - part.begin});
  }
  char* view = base_ + arena;
  for (const std::vector<Extent>& extents : packing.extents) {
    if (extents.size() == 1) continue;
    for (const Extent& extent : extents) {
      const size_t bytes = whole_pages(extent.bytes);
      shared_.push_back({view, size_of(extent.offset), bytes});
      view += bytes;
    }
  }
  std::lock_guard<std::mutex> lock(forks().mutex);
  rlimit largest{};  // ftruncate() beyond this limit would end the process.
  const bool allowed = getrlimit(RLIMIT_FSIZE, &largest) == 0 &&
                       (largest.rlim_cur == RLIM_INFINITY || largest.rlim_cur >= arena);
  file_ = allowed ? memfd_create("reprise-arena", MFD_CLOEXEC) : -1;
  if (file_ < 0) return false;
  forks().shared.insert(this);
  return ftruncate(file_, static_cast<off_t>(arena)) == 0 && map_again(MAP_SHARED);
}

// Gives a child process pages of its own. Pages that are its own already stay in a child of a
// child.
void PageMemory::leave_the_parent() {
  if (std::exchange(of_the_parent_, true) || map_again(MAP_PRIVATE)) return;
  // A fault at once is better than to write over the parent's bytes.
  for (const Mapping& part : shared_) mprotect(part.address, part.bytes, PROT_NONE);
}

bool PageMemory::map_again(int flags) const {
  return std::all_of(shared_.begin(), shared_.end(), [&](const Mapping& part) {
    return mmap(part.address, part.bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file_,
                static_cast<off_t>(part.offset)) != MAP_FAILED;
  });
}

}  // namespace reprise::runtime::internal::arena
