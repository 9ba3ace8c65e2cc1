#include "runtime/graph/far_state.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/stopwatch.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/transfer/away.h"

namespace reprise::runtime::internal::graph {

using transfer::Block;
using transfer::drop_memory;
using transfer::FarMemory;
using transfer::give_memory;
using transfer::ParcelPtr;
using transfer::Ticket;
using transfer::TicketPtr;

namespace {

constexpr size_t kLeast = 4096;  // bytes of a storage, so that a copy carries a page

const std::string kAway =
    "a captured step keeps this state of the optimizer in another memory between its runs "
    "(offload_optimizer). Call fetch_optimizer_state() of the step first, which brings the state "
    "back "
    "until the next run";
const std::string kLost =
    "this state of the optimizer was in another memory, and could not be read back when its "
    "captured "
    "step ended: load the optimizer from where you saved it";

std::vector<Block> blocks_of(const std::vector<c10::Storage>& storages) {
  std::vector<Block> blocks;
  for (const c10::Storage& storage : storages) {
    blocks.push_back({const_cast<void*>(storage.data()), static_cast<int64_t>(storage.nbytes())});
  }
  return blocks;
}

int64_t exact(const std::vector<c10::Storage>& storages) {
  int64_t sum = 0;
  for (const c10::Storage& storage : storages) sum += static_cast<int64_t>(storage.nbytes());
  return sum;
}

bool same(const std::vector<c10::Storage>& a, const std::vector<c10::Storage>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const c10::Storage& x, const c10::Storage& y) {
                      return x.unsafeGetStorageImpl() == y.unsafeGetStorageImpl();
                    });
}

}  // namespace

std::vector<c10::Storage> movable_state(const ParameterOptimizer& optimizer, size_t parameter,
                                        c10::Device device) {
  std::vector<c10::Storage> storages;
  for (const at::Tensor& tensor : optimizer.state_of(parameter)) {
    if (!tensor.defined() || tensor.device() != device || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    const auto is_known = [&](const c10::Storage& other) {
      return other.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    };
    if (storage.nbytes() < kLeast || std::any_of(storages.begin(), storages.end(), is_known)) {
      continue;
    }
    storages.push_back(storage);
  }
  return storages;
}

int64_t counted(const std::vector<c10::Storage>& storages, c10::Device device) {
  int64_t sum = 0;
  for (const c10::Storage& storage : storages) {
    sum += device::counted_bytes(static_cast<int64_t>(storage.nbytes()), device);
  }
  return sum;
}

FarState::FarState(std::shared_ptr<ParameterOptimizer> optimizer, c10::Device device,
                   std::shared_ptr<FarMemory> memory)
    : optimizer_(std::move(optimizer)),
      device_(device),
      memory_(std::move(memory)),
      all_(optimizer_->parameters().size()) {}

void FarState::expect(const step::Updates& updates, const std::vector<int64_t>& bytes) {
  for (size_t k = 0; k < updates.each.size(); ++k) {
    all_[updates.each[k].parameter].bytes = bytes[k];
  }
}

FarState::~FarState() {
  undo({});
  try {
    fetch();
  } catch (const std::exception&) {
    for (const Entry& entry : all_) {
      if (!entry.home) continue;
      for (const c10::Storage& storage : entry.storages) {
        drop_memory(*storage.unsafeGetStorageImpl(), kLost);
      }
    }
  }
}

void FarState::wait_for(Ticket& ticket) {
  const Nanos before = device::wall_clock();
  ticket.wait();
  moved_.waited += device::wall_clock() - before;
}

std::vector<c10::DataPtr> FarState::take_memory(const Entry& entry) const {
  c10::Allocator* const allocator = c10::GetAllocator(device_.type());
  const c10::DeviceGuard current(device_);
  std::vector<c10::DataPtr> taken;
  for (const c10::Storage& storage : entry.storages) {
    taken.push_back(allocator->allocate(storage.nbytes()));
  }
  return taken;
}

std::vector<Block> FarState::blocks_in(const Entry& entry,
                                       const std::vector<c10::DataPtr>& memory) {
  std::vector<Block> blocks;
  for (size_t s = 0; s < memory.size(); ++s) {
    blocks.push_back({memory[s].get(), static_cast<int64_t>(entry.storages[s].nbytes())});
  }
  return blocks;
}

void FarState::give(Entry& entry) {
  for (size_t s = 0; s < entry.storages.size(); ++s) {
    give_memory(*entry.storages[s].unsafeGetStorageImpl(), std::move(entry.memory[s]));
  }
  entry.memory.clear();
  entry.here = true;
}

void FarState::drop(Entry& entry) {
  for (const c10::Storage& storage : entry.storages) {
    drop_memory(*storage.unsafeGetStorageImpl(), kAway);
  }
  entry.here = false;
}

void FarState::park() {
  moved_ = {};
  for (size_t p = 0; p < all_.size(); ++p) {
    Entry& entry = all_[p];
    if (entry.bytes == 0) continue;
    std::vector<c10::Storage> now = movable_state(*optimizer_, p, device_);
    if (entry.home && same(now, entry.storages)) continue;
    // Other state was loaded, or the optimizer has made its own.
    entry.home.reset();
    entry.storages = std::move(now);
    if (entry.storages.empty()) continue;
    if (counted(entry.storages, device_) != entry.bytes) {
      throw InputError(fmt::format(
          "the state of parameter {} of the optimizer has other sizes than when the step was "
          "captured: capture it again",
          p));
    }
    const ParcelPtr place = memory_->place(exact(entry.storages));
    const TicketPtr ticket = memory_->out(blocks_of(entry.storages), place, {});
    try {
      ticket->wait();
    } catch (...) {
      ticket->cancel();
      throw;
    }
    drop(entry);
    entry.home = place;
  }
}

void FarState::fetch() {
  for (Entry& entry : all_) {
    if (!entry.home) continue;
    std::vector<c10::DataPtr> taken = take_memory(entry);
    const TicketPtr ticket = memory_->in(entry.home, blocks_in(entry, taken), {});
    try {
      ticket->wait();
    } catch (...) {
      ticket->cancel();
      throw;
    }
    entry.memory = std::move(taken);
    give(entry);
    entry.here = false;  // It is in no step.
    entry.home.reset();
    entry.storages.clear();
  }
}

void FarState::bring(size_t parameter) {
  Entry& entry = all_[parameter];
  if (!entry.home) {
    entry.room = at::empty({entry.bytes}, at::TensorOptions(at::kByte).device(device_));
    return;
  }
  entry.memory = take_memory(entry);
  entry.coming = memory_->in(entry.home, blocks_in(entry, entry.memory), {});
  moved_.in += Bytes(exact(entry.storages));
}

void FarState::arrive(size_t parameter) {
  Entry& entry = all_[parameter];
  if (!entry.coming) return;
  wait_for(*entry.coming);
  entry.coming.reset();
  give(entry);
}

void FarState::before_update(size_t parameter) { all_[parameter].room = at::Tensor(); }

void FarState::after_update(size_t parameter) {
  Entry& entry = all_[parameter];
  if (entry.bytes == 0) return;
  entry.storages = movable_state(*optimizer_, parameter, device_);
  entry.here = true;
}

void FarState::send(size_t parameter) {
  Entry& entry = all_[parameter];
  if (counted(entry.storages, device_) != entry.bytes) {
    throw InputError(fmt::format(
        "the optimizer has made state of other sizes for parameter {} than it was measured "
        "with: plan without offload_optimizer",
        parameter));
  }
  entry.written = memory_->place(exact(entry.storages));
  entry.going = memory_->out(blocks_of(entry.storages), entry.written, {});
  moved_.out += Bytes(exact(entry.storages));
}

void FarState::sent(size_t parameter) {
  Entry& entry = all_[parameter];
  if (!entry.going) return;
  wait_for(*entry.going);
  entry.going.reset();
  entry.is_written = true;
}

void FarState::leave(size_t parameter) {
  Entry& entry = all_[parameter];
  if (entry.coming) entry.coming->cancel();
  entry.coming.reset();
  entry.memory.clear();
  entry.room = at::Tensor();
  if (entry.here) drop(entry);
}

void FarState::commit() {
  for (Entry& entry : all_) {
    if (entry.is_written) entry.home = std::move(entry.written);
    entry.written.reset();
    entry.is_written = entry.here = false;
  }
}

// The memory of state that stays on the device may be that of the step's arena.
void FarState::keep_here(Entry& entry) noexcept {
  entry.home.reset();
  try {
    const BlockSourceScope heap(nullptr, device_);
    for (const c10::Storage& storage : entry.storages) {
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      const at::Tensor from = at::empty({0}, at::TensorOptions(at::kByte).device(device_))
                                  .set_(storage, 0, {bytes}, {1});
      const at::Tensor copy = from.clone();
      give_memory(*storage.unsafeGetStorageImpl(),
                  copy.storage().unsafeGetStorageImpl()->set_data_ptr({nullptr, device_}));
    }
  } catch (const std::exception&) {
    for (const c10::Storage& storage : entry.storages) {
      drop_memory(*storage.unsafeGetStorageImpl(), kLost);
    }
  }
  entry.storages.clear();
}

void FarState::undo(const std::vector<size_t>& updated) noexcept {
  for (size_t p = 0; p < all_.size(); ++p) {
    Entry& entry = all_[p];
    for (TicketPtr* const ticket : {&entry.coming, &entry.going}) {
      if (*ticket) (*ticket)->cancel();
      ticket->reset();
    }
    entry.memory.clear();
    entry.room = at::Tensor();
    const bool is_updated = std::find(updated.begin(), updated.end(), p) != updated.end();
    if (is_updated && entry.is_written) entry.home = std::move(entry.written);
    if (entry.here && is_updated && !entry.is_written) {
      keep_here(entry);
    } else if (entry.here) {
      drop(entry);
    }
    entry.written.reset();
    entry.is_written = entry.here = false;
  }
}

}  // namespace reprise::runtime::internal::graph
