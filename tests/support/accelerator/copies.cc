// Copies between the host and devices, and between devices.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstring>
#include <vector>

#include "allocators.h"
#include "kernels.h"
#include "operands.h"
#include "pinned_memory.h"
#include "streams.h"

namespace sim {
namespace {

// The bytes of one can be taken for the other as they are.
bool same_bytes(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() &&
         from.strides() == to.strides() && from.is_non_overlapping_and_dense() &&
         from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
}

std::vector<Access> accesses_of(const at::Tensor& from, const at::Tensor& to) {
  std::vector<Access> accesses;
  const auto add = [&](const at::Tensor& tensor, bool writes) {
    // Other memory of the host has no copies in flight.
    if (on_device(tensor) || pinned_memory().owns(tensor.storage().data())) {
      add_accesses(tensor, writes, accesses);
    }
  };
  add(from, false);
  add(to, true);
  return accesses;
}

// Runs as a kernel of the CPU: within a device, or with a conversion.
void convert(const at::Tensor& from, const at::Tensor& to, int device) {
  Operands source, target;  // they may lie on two devices
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::RecordFunctionGuard unobserved(/*is_enabled=*/false);
  const RouteScope routed(device);
  target.to_host(to).copy_(source.to_host(from));
}

void guard_pinned(const at::Tensor& tensor, bool copy_writes, int stream, uint64_t ticket,
                  uint64_t access) {
  if (on_device(tensor)) return;
  char* const begin = static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
                      static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  if (!pinned_memory().owns(begin)) return;
  pinned_memory().guard({.begin = begin,
                         .bytes = tensor.nbytes(),
                         .copy_writes = copy_writes,
                         .stream = stream,
                         .ticket = ticket,
                         .access = access});
}

// Queues the bytes on the stream, and waits unless nobody needs to.
void transfer(const at::Tensor& from, const at::Tensor& to, int stream, bool wait) {
  const bool to_host = !on_device(to);
  const int device = (to_host ? from : to).device().index();
  const uint64_t access = streams().check().access("a copy", stream, accesses_of(from, to));
  char* const source = kernel_address(from);
  char* const target = kernel_address(to);
  const size_t bytes = to.nbytes();
  const uint64_t ticket =
      streams().queue_copy(stream, device, to_host ? Channel::kToHost : Channel::kToDevice, bytes,
                           [source, target, bytes] { std::memcpy(target, source, bytes); });
  if (wait) {
    streams().host_waits(stream);
    return;
  }
  guard_pinned(from, false, stream, ticket, access);
  guard_pinned(to, true, stream, ticket, access);
}

// As on CUDA: the copy runs on the source's current stream, after what the target's current stream
// has so far, and the target's stream goes on after the copy.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  const int source = current_stream(from.device().index());
  const int target = current_stream(to.device().index());
  Event ready, done;
  streams().record(ready, target);
  streams().stream_waits(source, ready);
  if (same_bytes(from, to)) {
    transfer(from, to, source, /*wait=*/false);
  } else {
    streams().before_kernel(source);
    streams().check().access("a copy", source, accesses_of(from, to));
    convert(from, to, from.device().index());
    streams().kernel_ran(source, from.nbytes() + to.nbytes());
  }
  streams().record(done, source);
  streams().stream_waits(target, done);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (on_device(from) && on_device(to) && from.device() != to.device()) {
    between_devices(from, to);
    return to;
  }
  const int device = (on_device(from) ? from : to).device().index();
  const int stream = current_stream(device);
  if (from.device() != to.device() && same_bytes(from, to)) {
    const at::Tensor& host = on_device(from) ? to : from;
    transfer(from, to, stream, !(non_blocking && pinned_memory().owns(host.storage().data())));
    return to;
  }
  // A copy that converts between host and device holds up the host.
  if (from.device() != to.device()) streams().host_waits(stream);
  streams().before_kernel(stream);
  streams().check().access("a copy", stream, accesses_of(from, to));
  convert(from, to, device);
  streams().kernel_ran(stream, from.nbytes() + to.nbytes());
  if (from.device() != to.device()) streams().host_waits(stream);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

}  // namespace

void register_copies() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  // A copy resolves conjugates and negatives itself. By default they are resolved before, by a copy.
  static torch::Library conjugate(torch::Library::IMPL, "aten", c10::DispatchKey::Conjugate,
                                  __FILE__, __LINE__);
  static torch::Library negative(torch::Library::IMPL, "aten", c10::DispatchKey::Negative, __FILE__,
                                 __LINE__);
  for (torch::Library* const library : {&conjugate, &negative}) {
    library->impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

}  // namespace sim
