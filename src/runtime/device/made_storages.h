// Finds the storages that were made while a piece of code ran, and that something still holds.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/device/dated_blocks.h"

namespace reprise::runtime::internal::device {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// While a MadeStorages lives, it notes the storages of all results of operators on this thread. A
// tensor that autograd saves is a result of an operator, or an operand that was one. Memory that
// code takes past the operators is not found: compare bytes() with what the allocator counts. It is
// about memory of one device, whose blocks have numbers meanwhile.
class MadeStorages {
 public:
  explicit MadeStorages(c10::Device device);
  ~MadeStorages();
  MadeStorages(const MadeStorages&) = delete;
  MadeStorages& operator=(const MadeStorages&) = delete;

  // Returns those that are still alive, have memory that was taken from the allocator since the
  // beginning, and are not among the storages of `others`; in the order in which they were seen.
  std::vector<WeakStorage> alive_without(const std::vector<at::Tensor>& others) const;

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event);
  static void on_end(const at::RecordFunction& event, at::ObserverContext* context);
  void see(const at::Tensor& tensor);

  const c10::Device device_;
  const DatedScope dated_;
  const uint64_t serial_;  // of the last block, at the beginning
  MadeStorages* const outer_;
  at::CallbackHandle handle_ = 0;
  std::unordered_map<const c10::StorageImpl*, size_t> known_;
  std::vector<WeakStorage> seen_;  // the weak references keep the addresses
};

// Returns the distinct storages of the tensors that lie in blocks of the device with numbers
// (dated_blocks.h). Those with numbers up to `serial` are left out, because they were there before.
std::vector<WeakStorage> storages_taken_since(const std::vector<at::Tensor>& tensors,
                                              c10::Device device, uint64_t serial);

// Removes those that nobody holds any more.
void drop_dead(std::vector<WeakStorage>& storages);

// Returns the bytes of the storages that are alive, as the allocator counts them.
int64_t counted_bytes_of(const std::vector<WeakStorage>& storages);

}  // namespace reprise::runtime::internal::device
