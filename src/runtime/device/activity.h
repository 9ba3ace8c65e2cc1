// Guards the one allocator of this process. The measurement of a model reads the allocator's
// counters, so no step of another thread may take memory meanwhile.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <thread>

namespace reprise::runtime::internal::device {

// A StepUnderWay is a step, from its first request for memory to its last. Any number of steps may
// be under way at once. The constructor throws InputError while another thread measures a model.
class StepUnderWay {
 public:
  StepUnderWay();
  ~StepUnderWay();  // may run on any thread
  StepUnderWay(const StepUnderWay&) = delete;
  StepUnderWay& operator=(const StepUnderWay&) = delete;

 private:
  std::thread::id thread_;
};

// An OnlineUnderWay is a step in online mode. It is a step under way, and no step and no
// measurement may begin inside it on its thread. The constructor waits while another thread has one,
// and throws InputError if this thread has one.
class OnlineUnderWay {
 public:
  OnlineUnderWay();
  ~OnlineUnderWay();  // may run on any thread
  OnlineUnderWay(const OnlineUnderWay&) = delete;
  OnlineUnderWay& operator=(const OnlineUnderWay&) = delete;

 private:
  std::thread::id thread_;
};

// A Measuring is a measurement on this thread. What other threads do with plain PyTorch meanwhile
// does not count (foreign_memory.h). The constructor throws InputError while another thread measures,
// or while a step that another thread began is not over.
class Measuring {
 public:
  Measuring();
  ~Measuring();
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

 private:
  const c10::DebugInfoGuard mark_;
};

}  // namespace reprise::runtime::internal::device
