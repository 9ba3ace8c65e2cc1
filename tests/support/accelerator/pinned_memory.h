// This file has pinned memory of the host, and who may touch it while copies are under way.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "accelerator.h"
#include "double_mapping.h"
#include "holes.h"

namespace sim {

// A queued copy makes its pages forbidden to the host: for reading and writing if the copy writes
// them, else for writing. They open again when the host has waited for the copy. A touch in between
// is a fault; its handler writes a report, opens the page and goes on, so that the program runs to
// its end with the bytes that a device might have left there.
//
// Three things are missed. System calls that read or write forbidden memory fail with EFAULT without a
// report. A page opens as a whole, also after a touch of bytes in it that no copy uses. On processors
// other than x86-64 a write to memory that a copy reads cannot be told from a read, and is let through.
class PinnedMemory final : public c10::Allocator {
 public:
  explicit PinnedMemory(const Options& options);

  // Returns pages that belong to this block alone. Throws c10::OutOfMemoryError. If a block is freed
  // while copies use it, the copies land first.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  bool owns(const void* front) const { return pages_.in_front(front); }
  char* back(const void* front) const { return pages_.to_back(front); }

  // A copy that is queued under this ticket of the stream uses the range until the host has waited
  // for this access of the stream.
  struct Guard {
    char* begin = nullptr;
    size_t bytes = 0;
    bool copy_writes = false;
    int stream = 0;
    uint64_t ticket = 0, access = 0;
  };
  void guard(const Guard& guard);
  // The host has waited for something: opens what no copy needs any more, and hands on the reports.
  void open_finished();

  // Handles a touch of the host; the handler of faults calls it. Takes no lock and no memory. Returns
  // false if the address is not pinned memory.
  bool touched(char* address, bool writes, bool known_to_write) noexcept;

 private:
  static constexpr size_t kSlots = 1024;
  struct Slot {  // what the handler reads of a guard
    std::atomic<char*> begin{nullptr};
    std::atomic<char*> end{nullptr};
    std::atomic<bool> copy_writes{false};
    std::atomic<int> stream{0};
  };
  struct Touch {
    std::atomic<bool> full{false};
    bool writes = false, copy_writes = false;
    int stream = 0;
  };
  void release(void* front);
  void protect();  // with the mutex held: the pages of all guards, and of no others
  void drop(size_t slot);
  void hand_on_reports();

  DoubleMapping pages_;
  std::mutex mutex_;
  Holes holes_;
  std::map<char*, size_t> blocks_;  // bytes of each
  std::map<size_t, Guard> guards_;  // by slot
  std::map<char*, size_t> closed_;  // ranges of pages that are forbidden now
  std::array<Slot, kSlots> slots_;
  std::array<Touch, 64> touches_;
  std::atomic<size_t> touched_{0};
};

void make_pinned_memory(const Options& options);
PinnedMemory& pinned_memory();

}  // namespace sim
