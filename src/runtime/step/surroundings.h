// An observed step runs in Surroundings: plainly, or so that memory is taken from its values, or so
// that they have none.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::step {

// Surroundings may take the bytes of values away while a step runs, and make them again before an
// operation reads them. The results of the step stay the same to the last bit, unless the values have
// stand-ins.
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
  // Says whether they may hold memory of values. Autograd adds gradients in place only where nobody
  // else holds the memory.
  virtual bool holds_values() const = 0;

  // The functions below are for surroundings in which values have stand-ins: bytes that are there for
  // one operation and are not those of the training.
  //
  // Says whether values have their own bytes.
  virtual bool computes() const { return true; }
  // Says whether the storage has stand-ins, or nothing.
  virtual bool is_stand_in(const c10::Storage&) const { return false; }
  // The tensor, which the observation has made for the step, may have stand-ins.
  virtual void take(const at::Tensor&) {}
  // An operation is about to run with these arguments. Returns the storages of its operands.
  virtual std::vector<c10::Storage> lend(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue>) {
    return {};
  }
  // The operation has ended with these results. There are none if it has failed.
  virtual void take_back(const c10::OperatorHandle&, const std::vector<c10::Storage>& /*operands*/,
                         c10::ArrayRef<c10::IValue> /*results*/) {}
};

}  // namespace reprise::runtime::internal::step
