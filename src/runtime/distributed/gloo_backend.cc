// This is the only file that includes PyTorch's header of Gloo's backend (see without_gloo).
#include "runtime/distributed/gloo_backend.h"

#include "reprise/model/errors.h"

#ifdef USE_C10D_GLOO
#include <cstdlib>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace reprise::runtime::internal::distributed {

#ifdef USE_C10D_GLOO

c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto options = Gloo::Options::create(timeout);
  const char* const names = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream interfaces(names == nullptr ? "" : names);
  for (std::string name; std::getline(interfaces, name, ',');) {
    options->devices.push_back(Gloo::createDeviceForInterface(name));
  }
  if (options->devices.empty()) options->devices.push_back(Gloo::createDefaultDevice());
  options->threads = static_cast<int>(2 * options->devices.size());  // as torch.distributed has
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}

#else

c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                               std::chrono::milliseconds) {
  throw InputError(
      "Reprise was built without Gloo, because PyTorch's header of it could not be compiled: use "
      "Python, where torch.distributed.init_process_group(\"gloo\") makes the group");
}

#endif

}  // namespace reprise::runtime::internal::distributed
