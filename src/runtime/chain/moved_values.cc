#include "runtime/chain/moved_values.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/transfer/storage_memory.h"

namespace reprise::runtime::internal::chain {

using device::WeakStorage;
using transfer::drop_memory;
using transfer::give_memory;
using transfer::Resident;

namespace {

const std::string kMoved =
    "the plan has moved the memory of this tensor away, and brings it back for the backward "
    "pass. Code outside of the planned stages cannot read what a stage keeps meanwhile: return the "
    "tensor from the last stage, or keep a copy";

}  // namespace

void MovedValues::set(ValueIndex value, std::vector<WeakStorage> storages) {
  storages_.insert_or_assign(value, std::move(storages));
}

std::vector<Resident> MovedValues::residents(ValueIndex value, int32_t /*memory*/) {
  std::vector<Resident> residents;
  for (const WeakStorage& weak : storages_.at(value)) {
    auto storage = weak.lock();
    if (!storage) throw InternalError(fmt::format("a storage of value {} is gone", value));
    residents.emplace_back(c10::Storage(std::move(storage)));
  }
  return residents;
}

void MovedValues::arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) {
  const std::vector<Resident> all = residents(value, memory);
  for (size_t s = 0; s < all.size(); ++s) {
    give_memory(*all[s].storage.unsafeGetStorageImpl(), std::move(blocks[s]));
  }
}

bool MovedValues::leave(ValueIndex value) {
  if (!carrier_.has(value)) return false;
  for (const Resident& resident : residents(value, 0)) {
    drop_memory(*resident.storage.unsafeGetStorageImpl(), kMoved);
  }
  return true;
}

}  // namespace reprise::runtime::internal::chain
