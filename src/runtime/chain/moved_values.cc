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
using transfer::OffloadMemories;

namespace {

const std::string kMoved =
    "the plan has moved the memory of this tensor away, and brings it back for the backward "
    "pass. Code outside of the planned stages cannot read what a stage keeps meanwhile: return the "
    "tensor from the last stage, or keep a copy";

}  // namespace

MovedValues::MovedValues(std::vector<bool> moves, OffloadMemories memories)
    : moves_(std::move(moves)), copies_(std::move(memories)) {}

MovedValues::~MovedValues() { end(); }

void MovedValues::set(ValueIndex value, std::vector<WeakStorage> storages) {
  storages_.insert_or_assign(value, std::move(storages));
}

std::vector<c10::Storage> MovedValues::storages_of(ValueIndex value) const {
  std::vector<c10::Storage> storages;
  for (const WeakStorage& weak : storages_.at(value)) {
    auto storage = weak.lock();
    if (!storage) throw InternalError(fmt::format("a storage of value {} is gone", value));
    storages.emplace_back(std::move(storage));
  }
  return storages;
}

void MovedValues::copy(const CopyAction& copy) {
  if (copy.from == 0) {
    copies_.out(copy, storages_of(copy.value));
  } else {
    coming_.insert_or_assign(copy.value, copies_.in(copy));
  }
}

void MovedValues::wait(ValueIndex value, int32_t memory) {
  if (!copies_.wait(value, memory) || memory != 0) return;
  const auto found = coming_.find(value);
  const std::vector<c10::Storage> storages = storages_of(value);
  for (size_t s = 0; s < storages.size(); ++s) {
    give_memory(*storages[s].unsafeGetStorageImpl(), std::move(found->second[s]));
  }
  coming_.erase(found);
}

bool MovedValues::leave(ValueIndex value) {
  if (!copies_.has(value)) return false;
  for (const c10::Storage& storage : storages_of(value)) {
    drop_memory(*storage.unsafeGetStorageImpl(), kMoved);
  }
  return true;
}

void MovedValues::free(ValueIndex value, int32_t memory) { copies_.free(value, memory); }

void MovedValues::end() noexcept {
  copies_.end();  // before the memory that copies write goes
  coming_.clear();
  storages_.clear();
}

}  // namespace reprise::runtime::internal::chain
