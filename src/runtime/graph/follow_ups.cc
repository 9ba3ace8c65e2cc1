#include "runtime/graph/follow_ups.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/graph/words.h"


namespace reprise::runtime::internal::graph {

using step::add_once;
using step::values_written;

std::string name_of(const FollowUp& follow_up, const Buckets& buckets) {
  switch (follow_up.kind) {
    case FollowUp::Kind::kFill:
      return "fill." + buckets.all[follow_up.index].fillings[follow_up.filling].name;
    case FollowUp::Kind::kBack:
      return "average." + buckets.all[follow_up.index].fillings[follow_up.filling].name;
    case FollowUp::Kind::kStart:
      return fmt::format("allreduce.start.{}", follow_up.index);
    case FollowUp::Kind::kShard:
      return fmt::format("update.shard.{}", follow_up.index);
    case FollowUp::Kind::kGather:
      return fmt::format("allgather.start.{}", follow_up.index);
    case FollowUp::Kind::kGathered:
      return fmt::format("allgather.wait.{}", follow_up.index);
    default:
      return fmt::format("allreduce.wait.{}", follow_up.index);
  }
}

int32_t work_of(const FollowUp& follow_up, const Buckets& buckets) {
  const Bucket& bucket = buckets.all[follow_up.index];
  switch (follow_up.kind) {
    case FollowUp::Kind::kFill:
      return bucket.fillings[follow_up.filling].work;
    case FollowUp::Kind::kBack:
      return bucket.fillings[follow_up.filling].back;
    case FollowUp::Kind::kStart:
      return bucket.start;
    case FollowUp::Kind::kShard:
      return bucket.update;
    case FollowUp::Kind::kGather:
      return bucket.gather;
    case FollowUp::Kind::kGathered:
      return bucket.gathered;
    default:
      return bucket.wait;
  }
}

std::vector<int32_t> externals_read(const Work& work) {
  std::vector<int32_t> all;
  for (const Argument& argument : work.arguments) {
    if (argument.shape_only) continue;
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kExternal) add_once(all, ref.index);
    }
  }
  return all;
}

namespace {

class Placing {
 public:
  Placing(const RewrittenStep& step, const std::vector<bool>& needed)
      : step_(step), pieces_(needed.size()), follow_ups_(needed.size()) {
    std::vector<std::vector<int32_t>> works(needed.size());
    for (size_t c = 0; c < needed.size(); ++c) {
      if (needed[c]) works[c].push_back(static_cast<int32_t>(c));
    }
    for (const CallVariant& variant : step.alternatives.variants) {
      works[variant.call].push_back(variant.work);
    }
    for (const CallRealization& realization : step.alternatives.realizations) {
      for (const CallRealization::Piece& piece : realization.pieces) {
        const auto c = static_cast<size_t>(piece.after);
        pieces_[c].insert(pieces_[c].end(), piece.works.begin(), piece.works.end());
      }
    }
    last_reader_.assign(step.recording.externals.size(), 0);
    for (size_t c = 0; c < needed.size(); ++c) {
      works[c].insert(works[c].end(), pieces_[c].begin(), pieces_[c].end());
      for (const int32_t work : works[c]) {
        for (const int32_t e : externals_read(step.works.all[work])) {
          last_reader_[e] = c;
        }
      }
      if (is_host_read(step.recording.calls[c])) last_guard_ = c;
    }
  }

  std::vector<std::vector<FollowUp>> run() {
    place_buckets();
    if (step_.buckets.sharded) {
      place_shards();
    } else {
      place_updates();
    }
    return std::move(follow_ups_);
  }

 private:
  // Returns the call behind which a gradient is complete, in whatever way it is made.
  size_t complete(int32_t value) const {
    const int32_t maker = step_.recording.values[value].maker;
    auto last = static_cast<size_t>(std::max(0, maker));
    for (size_t c = last + 1; c < pieces_.size(); ++c) {
      for (const int32_t work : pieces_[c]) {
        const auto writes = values_written(step_.works.all[work]);
        if (std::find(writes.begin(), writes.end(), value) != writes.end()) last = c;
      }
    }
    return last;
  }

  void place_buckets() {
    const std::vector<Bucket>& buckets = step_.buckets.all;
    const int32_t reader = step_.buckets.reader;
    const bool waits = !step_.updates.each.empty() || reader >= 0;
    const size_t last = reader > 0 ? static_cast<size_t>(reader) - 1 : follow_ups_.size() - 1;
    waited_.assign(buckets.size(), last);
    size_t start = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      size_t filled = 0;
      for (size_t f = 0; f < buckets[b].fillings.size(); ++f) {
        filled = std::max(filled, complete(buckets[b].fillings[f].value));
        follow_ups_[filled].push_back({FollowUp::Kind::kFill, b, f});
      }
      start = std::max(start, filled);
      follow_ups_[start].push_back({FollowUp::Kind::kStart, b});
      if (b == 0 || !waits) continue;
      place_wait(b - 1, start);
    }
    if (waits && !buckets.empty()) place_wait(buckets.size() - 1, last);
  }

  void place_wait(size_t bucket, size_t call) {
    follow_ups_[call].push_back({FollowUp::Kind::kWait, bucket});
    waited_[bucket] = call;
    for (size_t f = 0; f < step_.buckets.all[bucket].fillings.size(); ++f) {
      if (step_.buckets.reader >= 0)
        follow_ups_[call].push_back({FollowUp::Kind::kBack, bucket, f});
    }
  }

  void place_shards() {
    const std::vector<Bucket>& buckets = step_.buckets.all;
    size_t last = last_guard_;
    for (size_t b = 0; b < buckets.size(); ++b) {
      last = std::max(last, waited_[b]);
      for (const Filling& filling : buckets[b].fillings) {
        const Update& update = step_.updates.each[filling.update];
        last = std::max(last, last_reader_[update.external]);
      }
      follow_ups_[last].push_back({FollowUp::Kind::kShard, b});
      follow_ups_[last].push_back({FollowUp::Kind::kGather, b});
      if (b > 0) follow_ups_[last].push_back({FollowUp::Kind::kGathered, b - 1});
    }
    if (!buckets.empty())
      follow_ups_.back().push_back({FollowUp::Kind::kGathered, buckets.size() - 1});
  }

  void place_updates() {
    for (size_t u = 0; u < step_.updates.each.size(); ++u) {
      const Update& update = step_.updates.each[u];
      const int32_t gradient = step_.recording.gradients[update.leaf].gradient.index;
      size_t last = std::max({last_reader_[update.external], complete(gradient), last_guard_});
      if (step_.buckets.has(update.leaf)) {
        last = std::max(last, waited_[step_.buckets.of_leaf[update.leaf]]);
      }
      follow_ups_[last].push_back({FollowUp::Kind::kUpdate, u});
    }
  }

  const RewrittenStep& step_;
  std::vector<std::vector<int32_t>> pieces_;  // by call: works of the pieces behind it
  std::vector<size_t> last_reader_;           // by external: a call
  std::vector<size_t> waited_;                // by bucket: the call behind which its wait stands
  size_t last_guard_ = 0;
  std::vector<std::vector<FollowUp>> follow_ups_;
};

}  // namespace

std::vector<std::vector<FollowUp>> follow_ups_of(const RewrittenStep& step,
                                                 const std::vector<bool>& needed) {
  return Placing(step, needed).run();
}

}  // namespace reprise::runtime::internal::graph
