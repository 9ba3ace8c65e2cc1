// A stage that runs again right before its backward has to make what autograd saves. It need not
// make its output, nor anything else that only the output is made from. One run of the stage notes
// its calls of operators and finds those that are needed. Later runs leave out the others: autograd
// records them as ever, and no kernel runs. Their results look as noted and have no bytes.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "runtime/lockstep/intercept.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::chain {

struct NotedCall {
  c10::OperatorHandle op;
  bool needed = true;
  // A call that is left out has the shapes of the tensors that it was given, and its results.
  std::vector<std::vector<int64_t>> operands = {};
  std::vector<step::Geometry> results = {};
  std::vector<size_t> result_bytes = {};
};
using NotedCalls = std::vector<NotedCall>;

// Notes the calls of a run.
class CallNoter final : public lockstep::Taker {
 public:
  explicit CallNoter(c10::Device device) : device_(device) {}

  c10::Device device() const override { return device_; }
  void take(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  void leave(const std::string&) override {}
  void touch_gradient(const at::Tensor&) override {}

  // To be called after the run, when nobody holds its output. What is still alive is needed.
  // Returns an empty list if no call can be left out, or if the host reads a number of a tensor,
  // because then the next calls may depend on it.
  NotedCalls finish();

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Facts {
    bool may_be_left_out = false;
    bool reads_bytes = true;  // not of a view, or of fresh memory that looks like a tensor
    std::vector<const c10::StorageImpl*> read, made;
  };

  void know(const c10::Storage& storage) { known_.push_back(storage.getWeakStorageImpl()); }

  const c10::Device device_;
  NotedCalls calls_;
  std::vector<Facts> facts_;  // by call
  std::vector<Weak> known_;   // keep the addresses of storages from being used again
  bool host_reads_ = false;
};

// Makes the calls of a run that are needed. A call that is not the noted one throws InputError, and
// so does a kernel that reads a result without bytes.
class CallSkipper final : public lockstep::Taker {
 public:
  CallSkipper(const NotedCalls& calls, c10::Device device) : calls_(calls), device_(device) {}

  c10::Device device() const override { return device_; }
  void take(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  void leave(const std::string&) override {}
  void touch_gradient(const at::Tensor&) override {}

  // To be called after the run, when nobody holds its output. Returns whether it made all the noted
  // calls, and whether nobody holds a result without bytes.
  bool is_as_noted() const;
  bool failed() const { return failed_; }  // whether a call threw

 private:
  bool is_same(const NotedCall& call, const torch::jit::Stack& stack) const;

  const NotedCalls& calls_;
  const c10::Device device_;
  size_t next_ = 0;
  bool differs_ = false, failed_ = false;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> shells_;
};

}  // namespace reprise::runtime::internal::chain
