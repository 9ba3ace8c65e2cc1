// Runs the optimizer's part of a captured step. Each parameter is updated when its gradient is
// complete and nothing in the step needs the parameter any more; the gradient ends there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reprise/runtime/optimizer.h"
#include "runtime/graph/home_store.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

// An Updater runs updates, knows what the step under way has updated, and keeps room for the
// optimizer's state. The works of the updates share ownership of it.
class Updater {
 public:
  // `optimizer` is null if there are no updates; then the updater does nothing.
  Updater(std::shared_ptr<ParameterOptimizer> optimizer, step::Updates updates, c10::Device device);
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  const step::Updates& updates() const { return updates_; }

  // Keeps room from now on for state that the optimizer has not made yet. `state_bytes` has the
  // bytes of each update's state.
  void keep_room(std::vector<int64_t> state_bytes);

  // Keeps no room for state that lies in another memory between the steps: `homes` brings it for each
  // update, and has these bytes of it. Null: all state is on the device.
  void use_homes(std::shared_ptr<HomeStore> homes, const std::vector<int64_t>& movable_bytes);

  // Lets other ranks do all updates but these, and keep the state of their parameters.
  void shard(std::vector<size_t> own);
  // Says whether this rank does the k-th update.
  bool owns(size_t k) const { return own_[k]; }
  // Drops the optimizer's state that other ranks keep. Throws InputError if it cannot be dropped.
  // Does nothing without a shard.
  void keep_shard();

  // Begins a step. Throws InputError when gradients are there already, or when the optimizer is no
  // longer the one that was captured.
  void begin();
  // Does the k-th update.
  void update(size_t k, const at::Tensor& gradient);
  // Gives the parameter of the k-th update the values that another rank has found.
  void take(size_t k, const at::Tensor& values);
  const at::Tensor& parameter(size_t k) const { return parameters_[updates_.each[k].parameter]; }
  // Says whether the next step makes state.
  bool makes_state() const;
  // Says whether the step that was begun has made state.
  bool made_state() const { return made_state_; }
  // Returns the parameters that the step that was begun has updated.
  std::vector<size_t> parameters_done() const;
  // Says in words which parameters the step that was begun has updated. The text is empty if there
  // are none.
  std::string updated() const;

 private:
  void reserve();
  std::vector<std::string> memory_keys() const;

  std::shared_ptr<ParameterOptimizer> optimizer_;
  step::Updates updates_;
  c10::Device device_;
  std::vector<at::Tensor> parameters_;    // of the optimizer, at capture
  std::vector<std::string> memory_keys_;  // by update, at capture
  std::vector<int64_t> state_bytes_;      // by update
  std::vector<int64_t> movable_bytes_;    // by update: the part of them that `homes_` brings
  std::shared_ptr<HomeStore> homes_;
  std::vector<at::Tensor> reserved_;  // by update: room for state that is not there yet
  std::vector<size_t> done_;          // updates of the step that was begun
  std::vector<bool> own_;             // by update: whether this rank does it
  bool made_state_ = false;
  bool sharded_ = false;
};

// Returns the works with those of the updater's updates behind them, at the positions that the
// updates name.
step::Works with_updates(step::Works works, const step::Recording& recording,
                         const std::shared_ptr<Updater>& updater);

}  // namespace reprise::runtime::internal::graph
