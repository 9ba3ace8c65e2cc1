// An observed step runs in Surroundings: plainly, or so that memory is taken from its values.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace reprise::runtime::internal::step {

// Surroundings may take the bytes of values away while a step runs, and make them again before an
// operation reads them. The results of the step stay the same to the last bit.
class Surroundings {
 public:
  virtual ~Surroundings() = default;

  // Runs the body, which runs the step once. Hands on what the body throws, or the reason for it.
  virtual void run(c10::function_ref<void()> body) = 0;

  // The functions below answer at the begin and the end of an operation inside run().
  //
  // Says whether the bytes of an operand are there. They may be absent where the operator asks for
  // the shape only.
  virtual bool is_present(const c10::Storage& storage) const = 0;
  // Returns a number that changes whenever the bytes have been made again. Memory that an operation
  // has not written may then have other bytes.
  virtual int64_t made_again(const c10::Storage& storage) const = 0;
  // Returns how many of the references to the storage are their own.
  virtual int64_t own_references(const c10::Storage& storage) const = 0;
};

}  // namespace reprise::runtime::internal::step
