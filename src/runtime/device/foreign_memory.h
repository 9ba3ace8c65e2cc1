// Keeps the memory of other work out of the counts by which one thread measures.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

namespace reprise::runtime::internal::device {

// The thread that measures has this mark. LibTorch hands it on to the threads on which autograd's
// backward works for that thread. LibTorch has this kind of mark for tests, and uses it nowhere.
inline c10::DebugInfoKind measuring_mark() { return c10::DebugInfoKind::TEST_INFO_2; }
struct MeasuringMark final : c10::DebugInfoBase {};

// Says whether this thread works for what is measured.
bool works_for_measuring();

// Until count_cpu_memory_together(), the counts of the CPU's memory (memory_count(), reset_peak())
// leave out what other threads take and give back, so that a model is measured in the same bytes
// while they train or load data. For the other threads, and for the limit, all bytes count. The
// caller sees to it that one thread measures at a time (Measuring in activity.h).
void count_cpu_memory_apart();
// From now on the bytes of all threads count for all of them.
void count_cpu_memory_together();

}  // namespace reprise::runtime::internal::device
