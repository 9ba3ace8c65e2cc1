// Runs the works of a captured step in the order of a plan.
#pragma once

#include <c10/core/Storage.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "reprise/run/interpreter.h"
#include "runtime/device/reserved_space.h"
#include "runtime/graph/home_store.h"
#include "runtime/graph/lower.h"
#include "runtime/graph/placed_step.h"
#include "runtime/state/random_state.h"
#include "runtime/step/recording.h"
#include "runtime/step/replay_scope.h"
#include "runtime/transfer/carrier.h"

namespace reprise::runtime::internal::graph {

// Changes are what is not as at capture in one run of a followed step.
struct Changes {
  std::map<std::pair<size_t, size_t>, c10::IValue> numbers;  // by call and argument
  // By external: the storage in its place, and where the external begins later in it, in bytes.
  std::map<size_t, std::pair<c10::Storage, int64_t>> externals;
};

// A Replay is the backend of captured steps. It holds a storage for each live value in each memory
// that computes, and calls kernels below autograd with arguments that the recording describes. What
// carries values between memories finds their storages here. It is not thread-safe. It keeps
// references to `recording`, `works` and `lowered`, which must outlive it and stay where they are.
//
// A value is one version of a storage, which nothing writes any more while it is that value. So its
// bytes may leave the device and come back into another storage. A value on another device than the
// step's takes no memory of it: such a value stays where it is when the plan moves it.
class Replay final : public Backend, public transfer::Residency {
 public:
  Replay(const step::Recording& recording, const step::Works& works, const LoweredStep& lowered);

  // Begins a step with the storages of these inputs. The carriers move its values, and `homes` has
  // what lies in another memory between the steps, which are the homed values of `placed`.
  void begin(const Tensors& inputs, transfer::Carriers carriers = {}, HomeStore* homes = nullptr,
             const PlacedStep* placed = nullptr);
  // From now on each call is audited when it runs for the first time: its results have the shapes and
  // strides of the recording, or run() throws InputError. It is for a recording on stand-ins.
  void audit() { unaudited_.assign(recording_.calls.size(), true); }
  // Lets the step under way use what has changed. It lasts until the next call.
  void use(Changes changes) { changes_ = std::move(changes); }
  Changes& changes() { return changes_; }
  // Ends the copies that are under way, and drops every value and saved random state.
  void clear();
  // Returns what the step has moved that was cleared last.
  const transfer::MovedBytes& moved() const { return moved_; }
  // Returns the externals that the runs since clear() have written, or have begun to write.
  const std::set<int32_t>& written() const { return written_; }
  // Lets all devices wait for the copies between them, so that others may use the step's memory.
  void settle();
  at::Tensor tensor(const step::TensorRef& ref) const;
  const c10::Storage& storage_of(int32_t step_value) const {
    return residents_[0].values[step_value];
  }
  // Returns where an external lies in the step under way.
  c10::Storage external_storage(int32_t external) const {
    return input_now(static_cast<size_t>(external)).storage;
  }

  // Makes a value live whose memory something else has written.
  void set(size_t step_value, c10::Storage storage) {
    residents_[0].values[step_value] = std::move(storage);
  }

  bool has(int32_t memory) const override {
    return memory < static_cast<int32_t>(residents_.size());
  }
  void run(const RunAction& step) override;
  void free(ValueIndex value, int32_t memory) override;
  void copy(const CopyAction& copy) override;
  void wait(ValueIndex value, int32_t memory) override;

  std::vector<transfer::Resident> residents(ValueIndex value, int32_t memory) override;
  void arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) override;
  transfer::ParcelPtr bring(ValueIndex value) override;
  void sent(ValueIndex value, const transfer::ParcelPtr& parcel) override;

  // These are the parts of run(), for measuring. invoke() calls the kernel and leaves its results
  // on the stack; keep_results() makes them values, and drop_results() drops them. `memory` is the
  // position of the device.
  void invoke(const step::Work& work, int32_t memory = 0);
  void keep_results(const step::Work& work, int32_t memory = 0);
  void drop_results() { stack_.clear(); }
  // Stands for a run of a work that cannot be undone: the next works find what it would have written
  // over as it was.
  void pass_over(const step::Work& work) {
    if (work.made.empty()) keep_results(work);
  }
  const std::vector<c10::IValue>& results() const { return stack_; }
  // Copies what the work reads to another device, and waits for it. Returns false if it is not
  // there.
  bool bring_operands(const step::Work& work, int32_t memory);
  const c10::Storage& storage_in(int32_t step_value, int32_t memory) {
    return residents_[memory].values[step_value];
  }
  // Drops what lies on other devices.
  void drop_others();

 private:
  struct Input {
    c10::Storage storage;
    int64_t moved;  // in bytes, from where the input began in its storage at capture
  };

  // The storages that lie in a memory that computes. The caller has the externals of the first one.
  struct Residents {
    std::vector<c10::Storage> values;     // by step value
    std::vector<c10::Storage> externals;  // by external
  };

  void push(const step::Argument& argument, int32_t memory);
  // Puts the numbers of this run into the stack, in the place of those at capture.
  void change_numbers(const step::Work& work);
  at::Tensor operand(const step::TensorRef& ref, bool shape_only, int32_t memory) const;
  at::Tensor external(const step::TensorRef& ref) const;
  Input input_now(size_t external) const;
  // Returns where the value lies in this memory, which may be the memory of an external.
  c10::Storage& place_of(ValueIndex value, int32_t memory);
  transfer::Carrier* carrier_of(int32_t memory) const {
    return memory < static_cast<int32_t>(carriers_.size()) ? carriers_[memory].get() : nullptr;
  }
  void before_overwrites(const step::Work& work, int32_t memory);
  void audit_results(size_t call);
  // Returns the step value of a value that a plan moves.
  size_t step_value(ValueIndex value) const;
  // Whether the value lies on another device than all that the plan moves values from.
  bool stays(ValueIndex value) const;
  std::optional<size_t> homed_of(ValueIndex value) const {
    return homes_ != nullptr ? placed_->homed_of(value) : std::nullopt;
  }

  const step::Recording& recording_;
  const step::Works& works_;
  const LoweredStep& lowered_;
  std::vector<Residents> residents_;  // by memory that computes
  std::vector<Input> inputs_;
  std::vector<std::optional<state::RandomState>> random_;  // by op of the graph
  std::shared_ptr<device::ReservedSpace> reserved_;
  std::vector<c10::IValue> stack_;
  std::set<int32_t> written_;
  std::vector<bool> unaudited_;  // by call; empty if none is audited
  Changes changes_;
  std::vector<ValueIndex> graph_value_of_;  // by step value, if there are other devices; -1: none
  transfer::Carriers carriers_;             // of the step
  transfer::MovedBytes moved_;
  HomeStore* homes_ = nullptr;
  const PlacedStep* placed_ = nullptr;
};

}  // namespace reprise::runtime::internal::graph
