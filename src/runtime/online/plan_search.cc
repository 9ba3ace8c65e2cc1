#include "runtime/online/plan_search.h"

#include <chrono>
#include <exception>
#include <utility>

namespace reprise::runtime::internal::online {

using SteadyClock = std::chrono::steady_clock;

PlanAnswer answer_to(const PlanQuestion& question, const PlanFunction& plan) {
  const auto began = SteadyClock::now();
  PlanAnswer answer;
  try {
    if (auto found = plan(question.trace, question.options, answer.why_not)) {
      answer.plan = std::make_shared<const OnlinePlan>(*std::move(found));
    }
  } catch (const std::exception& error) {
    // The step is over and right; only later ones would have been faster.
    answer.why_not = std::string("planning failed: ") + error.what();
  } catch (...) {
    answer.why_not = "planning failed: an exception of an unknown kind";
  }
  answer.time = Nanos(std::chrono::nanoseconds(SteadyClock::now() - began).count());
  return answer;
}

// The thread and all that it holds are lost in a child. To join it would be to wait for ever, and to
// detach it might name another thread.
void BackgroundSearch::forget_in_child() {
  if (job_ && job_->process != ::getpid()) job_.release();  // NOLINT(bugprone-unused-return-value)
}

bool BackgroundSearch::under_way() {
  const std::lock_guard lock(mutex_);
  forget_in_child();
  return job_ != nullptr;
}

std::string BackgroundSearch::begin(PlanQuestion question, PlanFunction plan) {
  const std::lock_guard lock(mutex_);
  if (closed_.stop_requested()) return "planning was ended";
  auto job = std::make_unique<Job>();
  job->question = std::move(question);
  job->question.options.stop = closed_.get_token();
  job->plan = std::move(plan);
  job->answer.why_not = "planning failed: out of memory";
  job->process = ::getpid();
  try {
    job->thread = std::jthread([job = job.get()] {
      try {
        job->answer = answer_to(job->question, job->plan);
      } catch (...) {  // There was no memory for a message.
      }
      job->over.store(true, std::memory_order_release);
    });
  } catch (const std::exception& error) {
    return std::string("planning failed: no thread for it could begin: ") + error.what();
  }
  job_ = std::move(job);
  return {};
}

std::optional<PlanAnswer> BackgroundSearch::take() {
  const std::lock_guard lock(mutex_);
  forget_in_child();
  if (!job_ || !job_->over.load(std::memory_order_acquire)) return std::nullopt;
  PlanAnswer answer = std::move(job_->answer);
  job_.reset();
  return answer;
}

void BackgroundSearch::wait() {
  const std::lock_guard lock(mutex_);
  forget_in_child();
  if (job_ && job_->thread.joinable()) job_->thread.join();
}

void BackgroundSearch::close() {
  closed_.request_stop();  // before the lock, because wait() holds it
  const std::lock_guard lock(mutex_);
  forget_in_child();
  job_.reset();
}

}  // namespace reprise::runtime::internal::online
