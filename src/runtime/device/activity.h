// Who uses the one allocator of this process. Measuring a model reads its counters, so no step of another
// thread may take memory meanwhile.
#pragma once

#include <thread>

namespace reprise::runtime::internal::device {

// A step, from its first request for memory to its last. Any number may be under way at once. Throws
// InputError while another thread measures a model.
class StepUnderWay {
 public:
  StepUnderWay();
  ~StepUnderWay();  // on whatever thread
  StepUnderWay(const StepUnderWay&) = delete;
  StepUnderWay& operator=(const StepUnderWay&) = delete;

 private:
  std::thread::id thread_;
};

// Measuring, on this thread. Throws InputError while another thread measures, or has begun a step that is
// not over.
class Measuring {
 public:
  Measuring();
  ~Measuring();
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;
};

}  // namespace reprise::runtime::internal::device
