// A step in online mode, from its begin to its end: sees each operation, and keeps the budget.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "reprise/runtime/online.h"
#include "runtime/device/compat.h"
#include "runtime/device/limit_scope.h"
#include "runtime/device/one_thread.h"
#include "runtime/device/room.h"
#include "runtime/online/evictor.h"
#include "runtime/online/follower.h"
#include "runtime/online/heuristics.h"
#include "runtime/online/observed_call.h"
#include "runtime/online/remaker.h"
#include "runtime/online/undo.h"
#include "runtime/online/values.h"

namespace reprise::runtime::internal::online {

// A kernel that finds an operand missing throws an exception whose text begins in this way.
inline constexpr const char* kMissingOperand = "online mode could not make an operand again: ";

// Says whether online mode works on a device: this LibTorch has what it needs, and the device's
// memory can be limited.
bool works_on(c10::Device device);

// Throws InputError for a share. `whose` is "online mode", for the message.
void require_bytes(const Budget& budget, const char* whose);
// Throws InputError for options that cannot be, for a LibTorch before 2.13, and for a device whose
// memory cannot be limited.
void check_options(const OnlineOptions& options, const char* whose);

// The session is in force on this thread while it lives. Its callbacks must not throw, because
// RecordFunction swallows exceptions and runs the kernel all the same. The session keeps an
// exception of a callback and poisons the operands of the kernel, so that the kernel throws.
class Session final : public device::RoomMaker {
 public:
  // If it `undoes`, it keeps what it needs to take the step back.
  Session(const OnlineOptions& options, const Heuristic& heuristic, bool undoes = true);
  ~Session() override;

  // Follows plans, or records the trace of the step. It comes before the step's first operation.
  void follow(OnlinePlans plans);
  // Returns what became of the step beside its plans, behind settle(). Nothing without follow().
  std::optional<Followed> take_followed();
  // Returns the plan that is followed or was given up, if its memory did not suffice. Else null.
  std::shared_ptr<const OnlinePlan> too_small_plan() const {
    return follower_ ? follower_->too_small() : nullptr;
  }

  // Makes again what is evicted and still held.
  void settle();
  // Returns the reason for an exception that has left the step: what a callback met, where the
  // exception only says that an operation found an operand missing, else the exception.
  std::exception_ptr reason_of(const std::exception_ptr& thrown) const;
  int64_t evictions() const { return evictor_.evictions(); }
  // Says whether the records are incomplete, because a callback failed behind a kernel.
  bool broken() const { return broken_; }
  // Ends the recording, for good.
  void close();
  // Undoes the step, after close().
  void undo() { undo_->restore(); }
  // Fills what is counted.
  void report(OnlineReport& report) const;

  std::string make_room(int64_t bytes) override;

  // While one lives, operators that run are not the step's.
  class Busy {
   public:
    explicit Busy(Session& session) : session_(session), before_(session.busy_) {
      session_.busy_ = true;
    }
    ~Busy() { session_.busy_ = before_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Session& session_;
    bool before_;
  };

  // Returns the value in a storage, or null if the step has not seen the storage.
  ValuePtr value_in(const c10::Storage& storage) const {
    return values_.find(storage.unsafeGetStorageImpl());
  }
  // Makes the value present and lets it stay until let_go(). Throws what make() throws.
  void need(const ValuePtr& value);
  void let_go(Value& value) { values_.unpin(value); }
  // Lets another storage have the bytes that an operator has just made in this one.
  void move_home(const c10::Storage& from, const c10::Storage& to) { values_.move_home(from, to); }

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event);
  static void on_end(const at::RecordFunction& event, at::ObserverContext* context);
  static void on_touch(c10::StorageImpl* storage);

  void begin(ObservedCall& call, const at::RecordFunction& event);
  void end(ObservedCall& call, const at::RecordFunction& event);
  void make_operands(ObservedCall& call);
  void fail(ObservedCall& call);
  void freeze_dependents(const ValuePtr& value);
  void touch(const ValuePtr& value);

  static thread_local Session* active_;

  bool busy_ = false;                       // operators that run now are not the step's
  const OperatorFacts* running_ = nullptr;  // the operator of the step that began last
  bool inside_leaf_ = false;  // what an operator with a kernel of its own calls is its own work
  bool broken_ = false;
  std::exception_ptr failure_;
  uint64_t events_ = 0;

  const c10::Device device_;
  std::optional<Undo> undo_;
  Clock clock_;
  Scorer scorer_;
  Values values_;
  Remaker remaker_;
  Evictor evictor_;
  CallCounts counts_;
  std::optional<PlanFollower> follower_;
  const int64_t smallest_;

  std::optional<device::OneThread> one_thread_;
  std::optional<device::LimitScope> limit_;
  std::optional<device::RoomMakerScope> room_;
  std::optional<at::CallbackHandle> callback_;
};

}  // namespace reprise::runtime::internal::online
