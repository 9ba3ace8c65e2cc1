// The first calls of a recording, and the recording of what follows them in another run.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/step/audit.h"
#include "runtime/step/recording.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::step {

// Returns the recording of a step that ends behind so many of these calls, and of those that are
// left out. Its values, externals and leaves are the first ones of the whole.
Recording first_calls(const Recording& whole, size_t calls, size_t left_out);

// Returns a number that is equal for recordings of the same operations on the same shapes.
uint64_t print_of(const Recording& recording);

// A RestOfStep records what this thread does while it lives, as the rest of a step whose first
// calls are known. `places` says which storages are values and externals of them. A process makes one
// recording at a time; the constructor throws InputError if another one is under way.
class RestOfStep {
 public:
  RestOfStep(Recording begun, const std::vector<std::pair<c10::Storage, TensorRef>>& places,
             const Tensors& inputs, const Audit& known, Surroundings* surroundings);
  ~RestOfStep();
  RestOfStep(const RestOfStep&) = delete;
  RestOfStep& operator=(const RestOfStep&) = delete;

  // Ends the step, which has returned these. Throws InputError if it cannot be replayed.
  Recording finish(Tensors outputs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reprise::runtime::internal::step
