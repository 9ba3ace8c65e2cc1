#include "reprise/runtime/online.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/online/state.h"

namespace reprise::runtime {

using internal::online::check_options;
using internal::online::Session;

namespace {

Nanos now() {
  return Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count());
}

}  // namespace

Online::Online(OnlineOptions options) {
  check_options(options, "online mode");
  state_ = std::make_unique<State>(std::move(options));
  install_cpu_allocator();
}

Online::Online(std::unique_ptr<State> state) : state_(std::move(state)) {
  check_options(state_->options, "online mode");
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
  // Steps of several threads take turns, also those of one object.
  auto turn = std::make_unique<internal::device::OnlineUnderWay>();
  state_->plans.receive();
  state_->began = now();
  reset_peak(state_->options.device);
  state_->current.emplace(state_->options, state_->heuristic);
  state_->under_way = std::move(turn);
  if (state_->plans.in_use()) state_->current->follow(state_->plans.all());
}

void Online::end() {
  Session& session = state_->session();
  session.settle();
  OnlineReport report;
  report.budget = state_->options.budget.resolve(Bytes(0));
  report.measured_peak = Bytes(memory_count(state_->options.device).peak);
  session.report(report);
  auto followed = session.take_followed();
  state_->current.reset();
  report.time = now() - state_->began;
  if (followed) state_->plans.learn(*std::move(followed), report);
  report.steps = state_->last.steps + 1;
  {
    const std::lock_guard lock(state_->last_mutex);
    state_->last = report;
  }
  state_->under_way.reset();
}

void Online::undo() {
  Session& session = state_->session();
  // The step may have failed because the plan was too small. The next one does without.
  if (const auto plan = session.too_small_plan()) state_->plans.drop(*plan);
  session.close();
  session.undo();
  state_->current.reset();
  state_->under_way.reset();
}

void Online::fail(std::exception_ptr thrown) {
  std::exception_ptr reason = thrown;
  if (state_->current) {
    reason = state_->session().reason_of(thrown);
    undo();
  }
  std::rethrow_exception(reason);
}

void Online::wait_for_plan() { state_->plans.wait(); }

void Online::stop_planning() { state_->plans.stop(); }

OnlineReport Online::last_step() const {
  const std::lock_guard lock(state_->last_mutex);
  return state_->last;
}

}  // namespace reprise::runtime
