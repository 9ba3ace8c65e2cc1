#include "runtime/lockstep/shells.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "runtime/device/compat.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/step/places.h"

namespace reprise::runtime::internal::lockstep {

c10::Storage shell(int64_t bytes, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                       c10::DataPtr(nullptr, device));
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::string(kNoBytes));
  return storage;
}

void fill(const c10::Storage& shell, const c10::Storage& bytes) {
  c10::StorageImpl& to = *shell.unsafeGetStorageImpl();
  c10::StorageImpl& from = *bytes.unsafeGetStorageImpl();
  device::give_address_again(to);
  to.set_data_ptr_noswap(std::move(from._mutable_data_ptr_no_checks()));
  from.set_data_ptr_noswap({nullptr, from.device()});
}

c10::Storage blank_memory(int64_t bytes) {
  const auto size = static_cast<size_t>(device::counted_bytes(bytes));
  void* data = std::aligned_alloc(device::kBlockAlignment, size);
  if (data == nullptr && size > 0) throw std::bad_alloc();
  if (size > 0) std::memset(data, step::kUnwritten, size);
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
          c10::DataPtr(data, data, &std::free, c10::kCPU)};
}

void Homes::put(const c10::Storage& storage, Home home) {
  const void* address = storage.unsafeGetStorageImpl();
  by_storage_.insert_or_assign(address, Entry{storage.getWeakStorageImpl(), home});
  by_home_.insert_or_assign(key_of(home), address);
}

Home Homes::of(const c10::Storage& storage) const {
  const auto found = by_storage_.find(storage.unsafeGetStorageImpl());
  return found == by_storage_.end() ? Home() : found->second.home;
}

c10::Storage Homes::storage_of(Home home) const {
  const auto found = by_home_.find(key_of(home));
  if (found == by_home_.end()) return {};
  return c10::Storage(by_storage_.at(found->second).alive.lock());
}

std::vector<HeldShell> Homes::held() const {
  std::vector<HeldShell> all;
  for (const auto& [address, entry] : by_storage_) {
    if (entry.home.memory != step::Memory::kValue) continue;
    if (auto alive = entry.alive.lock()) {
      all.push_back({entry.home.index, c10::Storage(std::move(alive))});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const HeldShell& a, const HeldShell& b) { return a.value < b.value; });
  return all;
}

void Homes::move(const c10::Storage& storage, Home to) {
  const void* address = storage.unsafeGetStorageImpl();
  Entry& entry = by_storage_.at(address);
  const auto from = by_home_.find(key_of(entry.home));
  if (from != by_home_.end() && from->second == address) by_home_.erase(from);
  entry.home = to;
  by_home_.insert_or_assign(key_of(to), address);
}

}  // namespace reprise::runtime::internal::lockstep
