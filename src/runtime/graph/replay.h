// Runs the operations of a recording, in whatever order a plan says.
#pragma once

#include <c10/core/Storage.h>

#include <memory>
#include <optional>
#include <vector>

#include "runtime/graph/lower.h"
#include "runtime/step/recording.h"
#include "runtime/step/replay_scope.h"
#include "runtime/state/random_state.h"
#include "reprise/run/interpreter.h"

namespace reprise::runtime::internal::graph {

// Memory of which operators ask for the shape only: address space that holds nothing. Reading it is
// allowed and finds zeros.
class ReservedSpace {
 public:
  explicit ReservedSpace(int64_t bytes);
  ~ReservedSpace();
  ReservedSpace(const ReservedSpace&) = delete;
  ReservedSpace& operator=(const ReservedSpace&) = delete;
  c10::Storage storage() const;

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// Holds one storage a value. Kernels are called below autograd, with arguments prepared from the
// recording. Not thread-safe. `recording`, `works` and `lowered` must outlive it.
class Replay final : public Backend {
 public:
  Replay(const step::Recording& recording, const step::Works& works, const LoweredStep& lowered);

  // The storages of the caller's inputs, for this step.
  void begin(const Tensors& inputs);
  // Drops every value and saved random state.
  void clear();
  at::Tensor tensor(const step::TensorRef& ref) const;
  const c10::Storage& storage_of(int32_t step_value) const {
    return slots_[static_cast<size_t>(step_value)];
  }

  void run(const RunAction& step) override;
  void free(ValueIndex value) override;

  // The parts of run(), for measuring: calls the kernel with its results left on the stack, and takes
  // them from there.
  void invoke(const step::Work& work);
  void keep_results(const step::Work& work);
  void drop_results() { stack_.clear(); }

 private:
  struct Input {
    c10::Storage storage;
    int64_t moved;  // bytes, from where it began in its storage at capture
  };

  void push(const step::Argument& argument);
  at::Tensor operand(const step::TensorRef& ref, bool shape_only) const;
  at::Tensor external(const step::TensorRef& ref) const;

  const step::Recording& recording_;
  const step::Works& works_;
  const LoweredStep& lowered_;
  std::vector<c10::Storage> slots_;  // by step value
  std::vector<Input> inputs_;
  std::vector<std::optional<state::RandomState>> random_;  // by operation of the graph
  std::shared_ptr<ReservedSpace> reserved_;
  std::vector<c10::IValue> stack_;
};

}  // namespace reprise::runtime::internal::graph
