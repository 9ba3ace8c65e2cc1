// Finds the places of the works that belong to no call: those of buckets, and updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

// A Behind is one work that stands behind a call.
struct FollowUp {
  enum class Kind : uint8_t { kFill, kStart, kWait, kBack, kUpdate, kShard, kGather, kGathered };
  Kind kind = Kind::kUpdate;
  size_t index = 0;    // of the bucket, or of the update
  size_t filling = 0;  // of the bucket, for kFill and kBack
};

// Returns the name of a work of a bucket, such as "fill.layer1.weight", and its position in
// Works::all.
std::string name_of(const FollowUp& follow_up, const step::Buckets& buckets);
int32_t work_of(const FollowUp& follow_up, const step::Buckets& buckets);

// Returns for each call what stands behind it, in order. `needed` says which calls are run.
//
// - A gradient is copied into its bucket when it is complete, and after those that lie before it
//   there. The sum of a bucket starts at once, and after that of the bucket before it.
// - If the step has updates, the wait for a bucket stands behind the start of the next one, so that
//   one sum is always under way while the backward goes on, and two buckets are live. The wait for the
//   last bucket stands behind the last call. Without updates there are no waits here.
// - If calls behind the backward use gradients, all waits stand before the first of these calls, and
//   averages are copied back behind each wait.
// - The updates of a shard stand behind the wait for its bucket, behind the last call that reads
//   one of the bucket's parameters, and behind the shard before. The exchange of updated parameters
//   starts at once, and the wait for it stands behind the start of the next exchange.
// - An update stands behind the last call that reads its parameter, in whatever way the call runs, or
//   makes its gradient; behind the wait for its bucket; and behind the last guard, because an update
//   cannot be taken back.
std::vector<std::vector<FollowUp>> follow_ups_of(const rewrite::RewrittenStep& step,
                                                 const std::vector<bool>& needed);

// Returns the externals whose memory the work reads.
std::vector<int32_t> externals_read(const step::Work& work);

}  // namespace reprise::runtime::internal::graph
