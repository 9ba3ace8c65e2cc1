#include "runtime/online/undo.h"

#include "reprise/runtime/allocator.h"
#include "runtime/device/backward_queue.h"
#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::online {

Undo::Undo(c10::Device device)
    : last_host_block_(cpu_allocation_serial()), random_(device) {}

// Memory that the step made by code that calls no operator looks as if it came from outside, too.
bool Undo::is_from_before(const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() == 0) return false;
  // Allocators of other devices do not number their blocks. Keeping an image too many does no harm.
  return !storage.device().is_cpu() || cpu_allocation_serial(storage.data()) <= last_host_block_;
}

void Undo::note_leaf(const at::Tensor& tensor) {
  if (!leaves_.insert(tensor.unsafeGetTensorImpl()).second || !is_from_before(tensor)) return;
  images_.keep_place(tensor);
  images_.keep_gradient(tensor);
  images_.keep_flag(tensor);
}

void Undo::note_write(const at::Tensor& tensor) {
  if (images_.has(tensor) || !is_from_before(tensor)) return;
  const bool has_history = tensor.requires_grad() && !tensor.is_leaf();
  images_.keep(has_history ? tensor.detach() : tensor, step::copy_to_host(tensor.storage()));
}

void Undo::restore() {
  // A pass of autograd that failed leaves work behind, with its gradients.
  device::drain_backward_queue();
  images_.restore();
  random_.restore();
}

}  // namespace reprise::runtime::internal::online
