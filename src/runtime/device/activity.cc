#include "runtime/device/activity.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::device {
namespace {

struct Activity {
  std::mutex mutex;
  std::multiset<std::thread::id> steps;  // by the thread that began the step
  std::thread::id measurer;              // none when no thread measures
  int depth = 0;  // nested measurements: a captured step may measure a model inside it

  bool another_measures() const { return depth > 0 && measurer != std::this_thread::get_id(); }
};

Activity& activity() {
  static auto* instance = new Activity;  // steps of static lifetime may end after main()
  return *instance;
}

}  // namespace

StepUnderWay::StepUnderWay() : thread_(std::this_thread::get_id()) {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  if (now.another_measures()) {
    throw InputError(
        "another thread measures a model, which reads the counters of this process's allocator: a "
        "step cannot run meanwhile. Make or capture all models, and plan_for() all kinds of input, "
        "before the threads start");
  }
  now.steps.insert(thread_);
}

StepUnderWay::~StepUnderWay() {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  now.steps.erase(now.steps.find(thread_));
}

Measuring::Measuring() {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  const std::thread::id self = std::this_thread::get_id();
  const bool foreign_step = std::any_of(now.steps.begin(), now.steps.end(),
                                        [&](std::thread::id thread) { return thread != self; });
  if (now.another_measures() || foreign_step) {
    throw InputError(std::string("a model cannot be measured while another thread ") +
                     (foreign_step ? "has a step under way" : "measures one") +
                     ": sizes are read from the counters of this process's allocator. Make or "
                     "capture all models, "
                     "and plan_for() all kinds of input, before the threads start");
  }
  now.measurer = self;
  ++now.depth;
}

Measuring::~Measuring() {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  --now.depth;
}

}  // namespace reprise::runtime::internal::device
