#include "runtime/chain/moved_values.h"

#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <string>

#include "reprise/model/errors.h"
#include "runtime/device/compat.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::chain {

using device::wall_clock;
using device::WeakStorage;
using transfer::Block;
using transfer::FarMemory;
using transfer::TicketPtr;

namespace {

const std::string kAway =
    "the plan has moved the memory of this tensor away, and brings it back for the backward "
    "pass. Code outside of the planned stages cannot read what a stage keeps meanwhile: return the "
    "tensor from the last stage, or keep a copy";

void drop_memory(c10::StorageImpl& storage) {
  storage.set_data_ptr_noswap({nullptr, storage.device()});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kAway);
}

void give_memory(c10::StorageImpl& storage, c10::DataPtr memory) {
  device::give_address_again(storage);
  storage.set_data_ptr_noswap(std::move(memory));
}

}  // namespace

std::vector<bool> moved_by(const Program& program, size_t values) {
  std::vector<bool> moved(values);
  for (const Program::Entry& entry : program.entries()) {
    if (entry.kind != ActionKind::kCopy) continue;
    if (entry.copy.from != 0 && entry.copy.to != 0) {
      throw InputError(
          "this plan copies a value from one memory behind the device to another, which chain mode "
          "does not do");
    }
    moved[static_cast<size_t>(entry.copy.value)] = true;
  }
  return moved;
}

MovedValues::MovedValues(std::vector<bool> moves, FarMemories memories)
    : moves_(std::move(moves)), memories_(std::move(memories)) {}

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

std::vector<TicketPtr> MovedValues::tickets_of(const std::vector<int64_t>& actions) const {
  std::vector<TicketPtr> tickets;
  for (const int64_t action : actions) tickets.push_back(tickets_.at(action));
  return tickets;
}

void MovedValues::copy(const CopyAction& copy) {
  std::vector<c10::Storage> storages = storages_of(copy.value);
  std::vector<TicketPtr> after = tickets_of(copy.after);
  std::vector<Block> blocks;
  int64_t bytes = 0;
  for (const c10::Storage& storage : storages) bytes += static_cast<int64_t>(storage.nbytes());
  TicketPtr ticket;
  if (copy.from == 0) {
    FarMemory& memory = *memories_.at(static_cast<size_t>(copy.to));
    for (const c10::Storage& storage : storages) {
      blocks.push_back({const_cast<void*>(storage.data()), static_cast<int64_t>(storage.nbytes())});
    }
    Elsewhere there{memory.place(bytes), {}};
    ticket = memory.out(std::move(blocks), there.parcel, std::move(after));
    there.out = {.ticket = ticket, .held = std::move(storages)};
    elsewhere_.insert_or_assign({copy.value, copy.to}, std::move(there));
    moved_.out += Bytes(bytes);
  } else {
    FarMemory& memory = *memories_.at(static_cast<size_t>(copy.from));
    const Elsewhere& there = elsewhere_.at({copy.value, copy.from});
    after.push_back(there.out.ticket);
    Copy coming;
    for (const c10::Storage& storage : storages) {
      c10::Allocator* const allocator = c10::GetAllocator(storage.device_type());
      coming.memory.push_back(allocator->allocate(storage.nbytes()));
      blocks.push_back({coming.memory.back().get(), static_cast<int64_t>(storage.nbytes())});
    }
    ticket = memory.in(there.parcel, std::move(blocks), std::move(after));
    coming.ticket = ticket;
    coming_.insert_or_assign(copy.value, std::move(coming));
    moved_.in += Bytes(bytes);
  }
  tickets_[copy.action] = std::move(ticket);
}

void MovedValues::wait_for(const TicketPtr& ticket) {
  const Nanos before = wall_clock();
  ticket->wait();
  moved_.waited += wall_clock() - before;
}

void MovedValues::wait(ValueIndex value, int32_t memory) {
  if (memory != 0) {
    Copy& out = elsewhere_.at({value, memory}).out;
    wait_for(out.ticket);
    out.held.clear();
    return;
  }
  const auto found = coming_.find(value);
  if (found == coming_.end()) return;  // it was waited for already, or a run made it
  wait_for(found->second.ticket);
  const std::vector<c10::Storage> storages = storages_of(value);
  for (size_t s = 0; s < storages.size(); ++s) {
    give_memory(*storages[s].unsafeGetStorageImpl(), std::move(found->second.memory[s]));
  }
  coming_.erase(found);
}

bool MovedValues::leave(ValueIndex value) {
  const auto there = elsewhere_.lower_bound({value, 0});
  if (there == elsewhere_.end() || there->first.first != value) return false;
  for (const c10::Storage& storage : storages_of(value)) {
    drop_memory(*storage.unsafeGetStorageImpl());
  }
  return true;
}

void MovedValues::free_elsewhere(ValueIndex value, int32_t memory) {
  elsewhere_.erase({value, memory});
}

void MovedValues::end() noexcept {
  for (const auto& [action, ticket] : tickets_) ticket->cancel();
  tickets_.clear();
  coming_.clear();
  elsewhere_.clear();
  storages_.clear();
}

}  // namespace reprise::runtime::internal::chain
