// These are the sequences that a search over devices begins with.
#pragma once

#include "plan/place/devices/sequence.h"

namespace reprise::internal::devices {

// List scheduling by ranks, H. Topcuoglu, S. Hariri, M.-Y. Wu: Performance-effective and
// low-complexity task scheduling for heterogeneous computing, IEEE TPDS 13(3), 2002 (HEFT). Of the
// ops that can run, the one whose rank is highest comes next: the mean time of the longest way from
// it to the end, with copies. It takes the device on which it is over first. Memory is not looked
// at, nor are copies that wait for each other. Ops that run once keep the graph's order.
Sequence earliest_finish(const Ground& ground);

// Keeps runs together that hand much to each other, in the way of edge zeroing (V. Sarkar:
// Partitioning and Scheduling Parallel Programs for Multiprocessors, MIT Press, 1989): the runs at
// both ends of a value join, the largest values first, unless the cluster would take more than a
// device's share of the time. The longest cluster comes first, and each takes the device that is
// then done first. Copies are not looked at.
Sequence by_clusters(const Ground& ground);

// Returns plain training's runs, each on this device where its op has a twin of the variant there.
// A twin reads, writes and takes the same.
Sequence on_device(const Ground& ground, int32_t device);

// Returns the position of a twin of the variant on the device, or -1.
int32_t twin_on(const Ground& ground, const Run& run, int32_t device);

}  // namespace reprise::internal::devices
