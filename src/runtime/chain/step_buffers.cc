#include "runtime/chain/step_buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using state::ValueKeeper;

namespace {

using Buffers = std::vector<at::Tensor>;

const void* memory_of(const at::Tensor& buffer) { return buffer.storage().unsafeGetStorageImpl(); }

// Returns the number of stages that use each piece of memory. Two modules may hold it as different
// tensors.
std::map<const void*, int> count_users(const PreparedModel& model) {
  std::map<const void*, int> users;
  const auto count = [&](const PreparedStage& stage) {
    std::set<const void*> own;
    for (const at::Tensor& buffer : stage.traits.buffers) own.insert(memory_of(buffer));
    for (const void* memory : own) ++users[memory];
  };
  for (const PreparedStage& stage : model.stages) count(stage);
  if (model.tail) count(*model.tail);
  return users;
}

}  // namespace

StepBuffers::StepBuffers(const PreparedModel& model) : step_start_(model.buffers) {
  int64_t largest = 0;
  for (const PreparedStage& stage : model.stages) {
    largest = std::max(largest, ValueKeeper::bytes_of(stage.traits.buffers));
  }
  const at::Tensor rerun_memory =
      at::empty({largest}, at::TensorOptions(at::kByte).device(model.device));
  std::map<const void*, int> users = count_users(model);
  for (const PreparedStage& stage : model.stages) {
    Buffers own, shared;
    for (const at::Tensor& buffer : stage.traits.buffers) {
      (users[memory_of(buffer)] > 1 ? shared : own).push_back(buffer);
    }
    stages_.push_back({step_start_.part(own), ValueKeeper(shared),
                       ValueKeeper(stage.traits.buffers, rerun_memory)});
  }
}

void StepBuffers::begin_rerun(size_t stage, bool from_start) {
  OfStage& buffers = stages_[stage];
  buffers.now.save();
  if (!from_start) return;
  buffers.own_start.restore();
  buffers.shared_start.restore();
}

}  // namespace reprise::runtime::internal::chain
