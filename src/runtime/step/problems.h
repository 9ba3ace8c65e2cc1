// This is the first reason that was met why a step cannot be captured.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

class Problems {
 public:
  void fail(const std::string& problem) {
    if (first_.empty()) first_ = problem;
  }
  // Notes that the call, which is the operation at hand, does what the reason says.
  void refuse(const Call& call, const std::string& reason) {
    fail("operation " + std::to_string(operation_) + " (" + call.name() +
         (call.node.empty() ? "" : ", in " + call.node) + ") " + reason +
         (call.place.empty() ? "" : " (" + call.place + ")"));
  }
  void next_operation() { ++operation_; }

  // Returns the number of the operation at hand. Views count as operations here.
  size_t operation() const { return operation_; }
  const std::string& first() const { return first_; }

 private:
  size_t operation_ = 0;
  std::string first_;
};

}  // namespace reprise::runtime::internal::step
