#include "runtime/graph/home_store.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/transfer/storage_memory.h"

namespace reprise::runtime::internal::graph {

using transfer::Block;
using transfer::drop_memory;
using transfer::give_memory;
using transfer::OffloadMemory;
using transfer::ParcelPtr;
using transfer::Resident;
using transfer::take_memory;
using transfer::TicketPtr;

namespace {

std::string away(HomedKind kind) {
  const bool is_state = kind == HomedKind::kState;
  return fmt::format(
      "a captured step keeps this {} in another memory between its runs ({}). Call {}() of the "
      "step first, which brings it back until the next run",
      is_state ? "state of the optimizer" : "parameter",
      is_state ? "offload_optimizer" : "offload_parameters",
      is_state ? "fetch_optimizer_state" : "fetch_parameters");
}

std::string lost(HomedKind kind) {
  const bool is_state = kind == HomedKind::kState;
  return fmt::format(
      "this {} was in another memory, and could not be read back when its captured step ended: "
      "load the {} from where you saved it",
      is_state ? "state of the optimizer" : "parameter", is_state ? "optimizer" : "model");
}

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
    if (storage.nbytes() < kLeastMovableBytes ||
        std::any_of(storages.begin(), storages.end(), is_known)) {
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

HomeStore::HomeStore(std::shared_ptr<ParameterOptimizer> optimizer, c10::Device device,
                     std::shared_ptr<OffloadMemory> memory)
    : optimizer_(std::move(optimizer)), device_(device), memory_(std::move(memory)) {}

void HomeStore::expect(const HomedValues& homed) {
  for (Entry& entry : all_) {
    entry.bytes = 0;
    entry.stays = false;
  }
  by_homed_.clear();
  for (const HomedValue& one : homed) {
    const bool is_parameter = one.tensor.defined();
    const auto key = std::make_pair(static_cast<const void*>(one.tensor.unsafeGetTensorImpl()),
                                    is_parameter ? 0 : one.number);
    const auto [found, is_new] = position_of_.try_emplace(key, all_.size());
    if (is_new) all_.emplace_back();
    Entry& entry = all_[found->second];
    entry.kind = is_parameter ? HomedKind::kParameter : HomedKind::kState;
    entry.name = one.name;
    entry.tensor = one.tensor;
    entry.parameter = one.update ? std::optional(one.number) : std::nullopt;
    entry.stays = one.stays;
    entry.bytes = one.stays ? 0 : one.bytes;
    by_homed_.push_back(found->second);
  }
}

HomeStore::~HomeStore() {
  undo({});
  for (const HomedKind kind : {HomedKind::kState, HomedKind::kParameter}) {
    try {
      fetch(kind);
    } catch (const std::exception&) {
      for (const Entry& entry : all_) {
        if (!entry.home || entry.kind != kind) continue;
        for (const c10::Storage& storage : entry.storages) {
          drop_memory(*storage.unsafeGetStorageImpl(), lost(kind));
        }
      }
    }
  }
}

HomeStore::Entry* HomeStore::state_of(size_t parameter) {
  const auto found =
      position_of_.find({static_cast<const void*>(at::Tensor().unsafeGetTensorImpl()), parameter});
  if (found == position_of_.end() || all_[found->second].bytes == 0) return nullptr;
  return &all_[found->second];
}

std::vector<c10::Storage> HomeStore::storages_now(const Entry& entry) const {
  if (entry.kind == HomedKind::kParameter) return {entry.tensor.storage()};
  return movable_state(*optimizer_, *entry.parameter, device_);
}

int64_t HomeStore::bytes_here() const {
  int64_t sum = 0;
  for (const Entry& entry : all_) {
    if (entry.bytes > 0 && !entry.home) sum += counted(storages_now(entry), device_);
  }
  return sum;
}

void HomeStore::give(Entry& entry, std::vector<c10::DataPtr> blocks) {
  for (size_t s = 0; s < entry.storages.size(); ++s) {
    give_memory(*entry.storages[s].unsafeGetStorageImpl(), std::move(blocks[s]));
  }
  entry.here = true;
}

void HomeStore::drop(Entry& entry) {
  for (const c10::Storage& storage : entry.storages) {
    drop_memory(*storage.unsafeGetStorageImpl(), away(entry.kind));
  }
  entry.here = false;
}

void HomeStore::park() {
  for (Entry& entry : all_) {
    if (entry.bytes == 0) continue;
    std::vector<c10::Storage> now = storages_now(entry);
    if (entry.home && same(now, entry.storages)) continue;
    // Other bytes were loaded, or the optimizer has made its state.
    entry.home.reset();
    entry.storages = std::move(now);
    if (entry.storages.empty()) continue;
    if (counted(entry.storages, device_) != entry.bytes) {
      throw InputError(fmt::format(
          "{} lies in memory of another size than when the step was captured: capture it again",
          entry.name));
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
  for (Entry& entry : all_) {
    if (entry.stays) fetch(entry);
  }
}

void HomeStore::fetch(Entry& entry) {
  if (!entry.home) return;
  std::vector<c10::DataPtr> taken;
  std::vector<Block> blocks;
  for (const c10::Storage& storage : entry.storages) {
    taken.push_back(take_memory(device_, static_cast<int64_t>(storage.nbytes())));
    blocks.push_back({taken.back().get(), static_cast<int64_t>(storage.nbytes())});
  }
  const TicketPtr ticket = memory_->in(entry.home, std::move(blocks), {});
  try {
    ticket->wait();
  } catch (...) {
    ticket->cancel();
    throw;
  }
  give(entry, std::move(taken));
  entry.here = false;  // It is in no step.
  entry.home.reset();
  entry.storages.clear();
}

void HomeStore::fetch(HomedKind kind) {
  for (Entry& entry : all_) {
    if (entry.kind == kind) fetch(entry);
  }
}

void HomeStore::fetch_unexpected() {
  for (Entry& entry : all_) {
    if (entry.bytes == 0) fetch(entry);
  }
}

ParcelPtr HomeStore::bring(size_t homed) {
  Entry& entry = of(homed);
  if (!entry.home) {
    entry.room = at::empty({entry.bytes}, at::TensorOptions(at::kByte).device(device_));
  }
  return entry.home;
}

void HomeStore::arrive(size_t homed, std::vector<c10::DataPtr> blocks) {
  give(of(homed), std::move(blocks));
}

void HomeStore::before_update(size_t parameter) {
  if (Entry* const entry = state_of(parameter)) entry->room = at::Tensor();
}

void HomeStore::after_update(size_t parameter) {
  Entry* const entry = state_of(parameter);
  if (entry == nullptr) return;
  entry->storages = storages_now(*entry);
  entry->here = true;
}

std::vector<Resident> HomeStore::residents(size_t homed) {
  Entry& entry = of(homed);
  if (counted(entry.storages, device_) != entry.bytes) {
    throw InputError(fmt::format(
        "the optimizer has made {} of another size than it was measured with: plan without "
        "offload_optimizer",
        entry.name));
  }
  return {entry.storages.begin(), entry.storages.end()};
}

void HomeStore::sent(size_t homed, const ParcelPtr& written) { of(homed).written = written; }

void HomeStore::leave(size_t homed) {
  Entry& entry = of(homed);
  entry.room = at::Tensor();
  if (entry.here) drop(entry);
}

void HomeStore::commit() {
  for (Entry& entry : all_) {
    if (entry.written) entry.home = std::move(entry.written);
    if (entry.here) drop(entry);  // The plan has left it on the device.
    entry.written.reset();
  }
}

// The memory of state that stays on the device may be that of the step's arena.
void HomeStore::keep_here(Entry& entry) noexcept {
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
      drop_memory(*storage.unsafeGetStorageImpl(), lost(entry.kind));
    }
  }
  entry.storages.clear();
}

void HomeStore::undo(const std::vector<size_t>& updated) noexcept {
  for (Entry& entry : all_) {
    entry.room = at::Tensor();
    const bool is_updated = entry.parameter && std::find(updated.begin(), updated.end(),
                                                         *entry.parameter) != updated.end();
    const bool is_written = entry.written != nullptr;
    if (is_updated && is_written) entry.home = std::move(entry.written);
    if (entry.here && is_updated && !is_written) {
      keep_here(entry);
    } else if (entry.here) {
      drop(entry);
    }
    entry.written.reset();
    entry.here = false;
  }
}

}  // namespace reprise::runtime::internal::graph
