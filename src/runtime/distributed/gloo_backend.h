// Makes Gloo's backend of a process group, as torch.distributed does for "gloo".
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace reprise::runtime::internal::distributed {

// Connects the ranks that meet in the store. Throws InputError if Reprise was built without Gloo, and
// what c10d throws if the ranks do not find each other.
c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout);

}  // namespace reprise::runtime::internal::distributed
