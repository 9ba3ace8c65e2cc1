// This is the search for the plan of a trace: behind the step, or on a thread of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "reprise/model/units.h"
#include "runtime/online/online_plan.h"

namespace reprise::runtime::internal::online {

// It is a value of its own. No step has a part in it.
struct PlanQuestion {
  Trace trace;
  OnlinePlanOptions options;
};

struct PlanAnswer {
  std::shared_ptr<const OnlinePlan> plan = {};  // null: there is none
  std::string why_not = {};
  Nanos time = {};  // of the search
};

// Makes a plan, as plan_step() does.
using PlanFunction = std::function<std::optional<OnlinePlan>(const Trace&, const OnlinePlanOptions&,
                                                             std::string& why_not)>;

// Asks the function. What it throws becomes the reason why there is no plan.
PlanAnswer answer_to(const PlanQuestion& question, const PlanFunction& plan);

// A BackgroundSearch is at most one search on a thread of its own. All functions but close() are
// for one thread. In a child of fork(), in which the thread does not exist, no search is under way.
class BackgroundSearch {
 public:
  BackgroundSearch() = default;
  ~BackgroundSearch() { close(); }
  BackgroundSearch(const BackgroundSearch&) = delete;
  BackgroundSearch& operator=(const BackgroundSearch&) = delete;

  // Says whether a search has begun whose answer was not taken.
  bool under_way();
  // Begins a search. Returns why it could not begin, or an empty text.
  std::string begin(PlanQuestion question, PlanFunction plan);
  // Returns the answer of the search, once, if the search is over.
  std::optional<PlanAnswer> take();
  // Waits until the search is over, if one is under way.
  void wait();
  // Ends the search without an answer, and waits for its thread. No other one begins. It may be called
  // on any thread.
  void close();

 private:
  struct Job {
    PlanQuestion question;
    PlanFunction plan;
    PlanAnswer answer;
    std::atomic<bool> over = false;  // `answer` may be read
    pid_t process = -1;
    std::jthread thread;  // It ends first: it works on the members above.
  };

  void forget_in_child();

  std::stop_source closed_;
  std::mutex mutex_;  // of the job; the thread of the search does not take it
  std::unique_ptr<Job> job_;
};

}  // namespace reprise::runtime::internal::online
