#include "runtime/device/made_storages.h"

#include <algorithm>
#include <unordered_set>

#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::device {
namespace {

// The callbacks of RecordFunction are plain functions, so their state is global to the thread.
thread_local MadeStorages* noting = nullptr;

bool taken_since(const c10::StorageImpl& storage, c10::Device device, uint64_t serial) {
  return storage.device() == device && block_serial(storage) > serial;
}

}  // namespace

MadeStorages::MadeStorages(c10::Device device)
    : device_(device), dated_(device), serial_(block_serial(device)), outer_(noting) {
  noting = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

MadeStorages::~MadeStorages() {
  at::removeCallback(handle_);
  noting = outer_;
}

std::unique_ptr<at::ObserverContext> MadeStorages::on_start(const at::RecordFunction&) {
  return nullptr;
}

void MadeStorages::on_end(const at::RecordFunction& event, at::ObserverContext*) {
  if (noting == nullptr) return;
  for (const c10::IValue& value : event.outputs()) {
    if (value.isTensor()) noting->see(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) noting->see(tensor);
  }
}

void MadeStorages::see(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (known_.emplace(storage, seen_.size()).second) {
    seen_.push_back(tensor.storage().getWeakStorageImpl());
  }
}

std::vector<WeakStorage> MadeStorages::alive_without(const std::vector<at::Tensor>& others) const {
  std::unordered_set<const c10::StorageImpl*> excluded;
  for (const at::Tensor& tensor : others) {
    if (tensor.defined() && tensor.has_storage()) {
      excluded.insert(tensor.storage().unsafeGetStorageImpl());
    }
  }
  std::vector<WeakStorage> alive;
  for (const WeakStorage& weak : seen_) {
    const auto storage = weak.lock();
    if (storage && !excluded.contains(storage.get()) && taken_since(*storage, device_, serial_)) {
      alive.push_back(weak);
    }
  }
  return alive;
}

std::vector<WeakStorage> storages_taken_since(const std::vector<at::Tensor>& tensors,
                                              c10::Device device, uint64_t serial) {
  std::unordered_set<const c10::StorageImpl*> seen;
  std::vector<WeakStorage> storages;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    if (!seen.insert(&storage).second || !taken_since(storage, device, serial)) continue;
    storages.push_back(tensor.storage().getWeakStorageImpl());
  }
  return storages;
}

void drop_dead(std::vector<WeakStorage>& storages) {
  std::erase_if(storages, [](const WeakStorage& weak) { return weak.expired(); });
}

int64_t counted_bytes_of(const std::vector<WeakStorage>& storages) {
  int64_t total = 0;
  for (const WeakStorage& weak : storages) {
    if (const auto storage = weak.lock()) {
      total += counted_bytes(static_cast<int64_t>(storage->nbytes()), storage->device());
    }
  }
  return total;
}

}  // namespace reprise::runtime::internal::device
