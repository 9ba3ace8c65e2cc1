#include "pinned_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "streams.h"

namespace sim {
namespace {

std::unique_ptr<PinnedMemory>& instance() {
  static auto* made = new std::unique_ptr<PinnedMemory>;  // lives until the process ends
  return *made;
}

size_t page_size() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Whole pages.
size_t in_pages(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + page_size() - 1) / page_size() * page_size();
}

}  // namespace

PinnedMemory::PinnedMemory(const Options& options)
    : pages_(options.pinned_capacity, DoubleMapping::Front::kOpen), holes_(pages_.bytes()) {
  page_size();  // so that the handler of faults only reads it
}

c10::DataPtr PinnedMemory::allocate(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<size_t> offset = holes_.take(in_pages(bytes));
  if (!offset) {
    C10_THROW_ERROR(OutOfMemoryError, "sim: no pinned memory for " + std::to_string(bytes) +
                                          " bytes; raise Options::pinned_capacity");
  }
  char* const front = pages_.front() + *offset;
  blocks_[front] = in_pages(bytes);
  return {front, front, raw_deleter(), c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr PinnedMemory::raw_deleter() const {
  return [](void* front) {
    if (front != nullptr) pinned_memory().release(front);
  };
}

void PinnedMemory::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

void PinnedMemory::release(void* front) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto block = blocks_.find(static_cast<char*>(front));
  TORCH_INTERNAL_ASSERT(block != blocks_.end(), "sim: no pinned block begins at the freed address");
  const auto [begin, bytes] = *block;
  std::vector<size_t> slots;
  std::vector<Guard> copies;
  for (const auto& [slot, guard] : guards_) {
    if (guard.begin < begin || guard.begin >= begin + bytes) continue;
    slots.push_back(slot);
    copies.push_back(guard);
  }
  for (const size_t slot : slots) drop(slot);
  if (!slots.empty()) protect();
  lock.unlock();  // nobody waits for streams with this lock held
  // As on CUDA, where the allocator itself waits for the copies that it knows of.
  for (const Guard& copy : copies) streams().land(copy.stream, copy.ticket);
  streams().check().forget(begin, begin + bytes);
  lock.lock();
  blocks_.erase(begin);
  holes_.give_back(static_cast<size_t>(begin - pages_.front()), bytes);
}

void PinnedMemory::guard(const Guard& guard) {
  if (guard.bytes == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  size_t slot = 0;
  while (guards_.contains(slot)) ++slot;
  TORCH_CHECK(slot < kSlots, "sim: more than ", kSlots,
              " copies of pinned memory wait for the host; synchronize a stream");
  guards_[slot] = guard;
  slots_[slot].copy_writes = guard.copy_writes;
  slots_[slot].stream = guard.stream;
  slots_[slot].end = guard.begin + guard.bytes;
  slots_[slot].begin = guard.begin;
  protect();
}

void PinnedMemory::drop(size_t slot) {
  slots_[slot].begin = nullptr;
  guards_.erase(slot);
}

void PinnedMemory::open_finished() {
  std::lock_guard<std::mutex> lock(mutex_);
  hand_on_reports();
  std::vector<size_t> ended;
  for (const auto& [slot, guard] : guards_) {
    if (streams().check().host_knows(guard.stream, guard.access)) ended.push_back(slot);
  }
  for (const size_t slot : ended) drop(slot);
  if (!ended.empty()) protect();
}

void PinnedMemory::protect() {
  for (const auto& [begin, bytes] : closed_) mprotect(begin, bytes, PROT_READ | PROT_WRITE);
  closed_.clear();
  for (const bool writes : {false, true}) {  // a page of both kinds is forbidden as a whole
    for (const auto& [slot, guard] : guards_) {
      if (guard.copy_writes != writes) continue;
      const auto offset = static_cast<size_t>(guard.begin - pages_.front());
      char* const begin = pages_.front() + offset / page_size() * page_size();
      const size_t bytes = in_pages(static_cast<size_t>(guard.begin + guard.bytes - begin));
      mprotect(begin, bytes, writes ? PROT_NONE : PROT_READ);
      size_t& closed = closed_[begin];
      closed = std::max(closed, bytes);
    }
  }
}

bool PinnedMemory::touched(char* address, bool writes, bool known_to_write) noexcept {
  if (!pages_.in_front(address)) return false;
  for (const Slot& slot : slots_) {
    char* const begin = slot.begin;
    if (begin == nullptr || address < begin || address >= slot.end) continue;
    const bool copy_writes = slot.copy_writes;
    if (!copy_writes && !(writes && known_to_write)) continue;
    const size_t at = touched_.fetch_add(1);
    if (at < touches_.size()) {
      touches_[at].writes = writes;
      touches_[at].copy_writes = copy_writes;
      touches_[at].stream = slot.stream;
      touches_[at].full = true;
    }
    break;
  }
  const auto offset = static_cast<size_t>(address - pages_.front());
  mprotect(pages_.front() + offset / page_size() * page_size(), page_size(),
           PROT_READ | PROT_WRITE);
  return true;
}

void PinnedMemory::hand_on_reports() {
  for (Touch& touch : touches_) {
    if (!touch.full.exchange(false)) continue;
    streams().check().report(std::string("the host ") + (touch.writes ? "writes" : "reads") +
                             " pinned memory that a copy on " + stream_name(touch.stream) +
                             " still " + (touch.copy_writes ? "writes" : "reads") +
                             ": wait for an event after the copy, or for the stream, first");
  }
  touched_ = 0;
}

void make_pinned_memory(const Options& options) {
  instance() = std::make_unique<PinnedMemory>(options);
}
PinnedMemory& pinned_memory() { return *instance(); }

}  // namespace sim
