// Runs parts of a capture within a budget, in online mode: the runs that are observed, and the walk
// that measures.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "reprise/runtime/online.h"
#include "runtime/device/activity.h"
#include "runtime/online/heuristics.h"
#include "runtime/online/session.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::online {

// A Within keeps nothing to undo a run with; its users put back what a run has written.
class Within final : public step::Surroundings {
 public:
  // Throws InputError for a share, for a LibTorch before 2.13, and for a device whose memory cannot
  // be limited.
  Within(Budget budget, c10::Device device);

  // Runs the body as one step in online mode. When it has ended, what is evicted and still held is
  // made again. Throws BudgetError where the body does not fit.
  void run(c10::function_ref<void()> body) override;
  // The parts of run(), for a step that is under way. end() makes again what is evicted and still
  // held. reason_of() returns the reason for an exception that has left the step.
  void begin();
  void end();
  std::exception_ptr reason_of(const std::exception_ptr& thrown) const;
  // Lets another storage have the bytes that an operator has just made in this one.
  void move_home(const c10::Storage& from, const c10::Storage& to) {
    session_->move_home(from, to);
  }

  bool is_present(const c10::Storage& storage) const override;
  int64_t made_again(const c10::Storage& storage) const override;
  int64_t own_references(const c10::Storage& storage) const override;
  bool holds_values() const override { return true; }

  Bytes budget() const { return options_.budget.resolve(Bytes(0)); }
  // Returns how many values were evicted in the last run().
  int64_t evictions() const { return evictions_; }

 private:
  friend class Needed;
  friend class Unseen;

  OnlineOptions options_;
  const Heuristic& heuristic_;
  std::optional<device::OnlineUnderWay> under_way_;
  std::optional<Session> session_;  // inside run()
  int64_t evictions_ = 0;
};

// The two classes below work inside run(). With null they do nothing.
//
// While a Needed lives, the bytes of these storages are there.
class Needed {
 public:
  Needed(Within* within, const std::vector<c10::Storage>& storages);
  ~Needed();
  Needed(const Needed&) = delete;
  Needed& operator=(const Needed&) = delete;

 private:
  Within* const within_;
  std::vector<ValuePtr> values_;
};

// While an Unseen lives, operators that run are not recorded, so that they take no longer than
// elsewhere. Their results stay until they are dropped. They write only needed storages, whose
// bytes the caller puts back.
class Unseen {
 public:
  explicit Unseen(Within* within);

 private:
  std::optional<Session::Busy> busy_;
  std::optional<at::RecordFunctionGuard> silent_;
};

}  // namespace reprise::runtime::internal::online
