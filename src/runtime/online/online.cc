#include "reprise/runtime/online.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "runtime/device/compat.h"
#include "runtime/online/session.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime {

using internal::online::Heuristic;
using internal::online::Session;
using internal::online::heuristic_named;
using internal::online::kMissingOperand;

namespace {

void check(const OnlineOptions& options) {
  if constexpr (!internal::device::kStoragesTellTouches) {
    throw InputError(
        "online mode needs LibTorch 2.13 or newer, in which a storage tells when its memory is "
        "asked for");
  }
  if (options.budget.relative()) {
    throw InputError(
        "a budget of online mode is a number of bytes, such as \"700 MiB\": a share is one of plain "
        "training's peak, which is not known before the step");
  }
  if (options.smallest.count() < 0) {
    throw InputError("the smallest size of a tensor that online mode evicts is negative");
  }
}

Nanos now() {
  return Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count());
}

// Says whether the exception is that of a kernel that found an operand missing.
bool is_of_missing_operand(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return std::string(error.what()).find(kMissingOperand) != std::string::npos;
  } catch (...) {
    return false;
  }
}

}  // namespace

struct Online::State {
  explicit State(OnlineOptions given)
      : options(std::move(given)), heuristic(heuristic_named(options.heuristic)) {}

  Session& session() {
    if (!current) throw InputError("no step in online mode is under way: begin() comes first");
    return *current;
  }

  OnlineOptions options;
  const Heuristic& heuristic;
  std::optional<Session> current;
  Nanos began;
  OnlineReport last;
};

Online::Online(OnlineOptions options) {
  check(options);
  state_ = std::make_unique<State>(std::move(options));
  install_cpu_allocator();
}

Online::~Online() {
  if (state_ && state_->current) undo();
}
Online::Online(Online&&) noexcept = default;
Online& Online::operator=(Online&& other) noexcept {
  if (this != &other) {
    if (state_ && state_->current) undo();
    state_ = std::move(other.state_);
  }
  return *this;
}

void Online::begin() {
  if (state_->current) throw InputError("this step in online mode has begun already");
  state_->began = now();
  reset_peak(c10::kCPU);
  state_->current.emplace(state_->options, state_->heuristic);
}

void Online::end() {
  Session& session = state_->session();
  session.settle();
  OnlineReport report;
  report.budget = state_->options.budget.resolve(Bytes(0));
  report.measured_peak = Bytes(memory_count(c10::kCPU).peak);
  session.report(report);
  state_->current.reset();
  report.time = now() - state_->began;
  report.steps = state_->last.steps + 1;
  state_->last = report;
}

void Online::undo() {
  Session& session = state_->session();
  session.close();
  session.undo();
  state_->current.reset();
}

void Online::fail(std::exception_ptr thrown) {
  std::exception_ptr reason;
  if (state_->current) {
    if (is_of_missing_operand(thrown)) reason = state_->session().failure();
    undo();
  }
  std::rethrow_exception(reason ? reason : thrown);
}

OnlineReport Online::last_step() const { return state_->last; }

}  // namespace reprise::runtime
