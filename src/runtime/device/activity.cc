#include "runtime/device/activity.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/foreign_memory.h"

namespace reprise::runtime::internal::device {
namespace {

struct Activity {
  std::mutex mutex;
  std::multiset<std::thread::id> steps;  // by the thread that began the step
  std::thread::id measurer;              // none when no thread measures
  int depth = 0;           // nested measurements: a captured step may measure a model inside it
  std::thread::id online;  // the thread of a step in online mode; none when there is no such step
  std::condition_variable online_ended;
  std::vector<at::Tensor> dropped;  // they go when no step is under way

  bool another_measures() const { return depth > 0 && measurer != std::this_thread::get_id(); }
  void begin_step() {
    if (another_measures()) {
      throw InputError(
          "another thread measures a model, which reads the counters of this process's allocator: "
          "a step cannot run meanwhile. Make or capture all models, and plan_for() all kinds of "
          "input, before the threads start");
    }
    steps.insert(std::this_thread::get_id());
  }
  // The caller lets go of what this returns when it has unlocked the mutex.
  std::vector<at::Tensor> end_step(std::thread::id thread) {
    steps.erase(steps.find(thread));
    return steps.empty() ? std::exchange(dropped, {}) : std::vector<at::Tensor>();
  }
  void require_not_inside_online(const char* what) const {
    if (online != std::this_thread::get_id()) return;
    throw InputError(
        std::string(what) +
        " inside a step in online mode: captured steps and planned chains manage their "
        "memory themselves. Call them outside");
  }
};

Activity& activity() {
  static auto* instance = new Activity;  // steps of static lifetime may end after main()
  return *instance;
}

}  // namespace

StepUnderWay::StepUnderWay() : thread_(std::this_thread::get_id()) {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  now.require_not_inside_online("a planned step cannot run");
  now.begin_step();
}

StepUnderWay::~StepUnderWay() {
  std::vector<at::Tensor> gone;
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  gone = now.end_step(thread_);
}

OnlineUnderWay::OnlineUnderWay() : thread_(std::this_thread::get_id()) {
  Activity& now = activity();
  std::unique_lock<std::mutex> lock(now.mutex);
  if (now.online == thread_) {
    throw InputError("another step in online mode has begun already in this thread, and is not over");
  }
  now.online_ended.wait(lock, [&] { return now.online == std::thread::id(); });
  now.begin_step();
  now.online = thread_;
}

OnlineUnderWay::~OnlineUnderWay() {
  std::vector<at::Tensor> gone;
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  now.online = std::thread::id();
  gone = now.end_step(thread_);
  now.online_ended.notify_one();
}

Measuring::Measuring() : mark_(measuring_mark(), std::make_shared<MeasuringMark>()) {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  const std::thread::id self = std::this_thread::get_id();
  now.require_not_inside_online("a model cannot be measured");
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
  if (++now.depth == 1) count_cpu_memory_apart();
}

Measuring::~Measuring() {
  Activity& now = activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  if (--now.depth == 0) count_cpu_memory_together();
}

}  // namespace reprise::runtime::internal::device

namespace reprise::runtime {

void drop_between_steps(std::vector<at::Tensor> tensors) {
  internal::device::Activity& now = internal::device::activity();
  std::lock_guard<std::mutex> lock(now.mutex);
  if (now.steps.empty()) return;
  now.dropped.insert(now.dropped.end(), std::make_move_iterator(tensors.begin()),
                     std::make_move_iterator(tensors.end()));
}

}  // namespace reprise::runtime
