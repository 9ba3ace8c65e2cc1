// The packages of PyTorch have Gloo in their libraries, and not its headers. PyTorch's header of
// ProcessGroupGloo holds Gloo's objects by pointers alone, so it needs the names of their classes, and
// one function that it calls inline. This folder has these names, for gloo_backend.cc, which
// never makes an object of Gloo. It is used where PyTorch's own folder has no gloo/context.h.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
