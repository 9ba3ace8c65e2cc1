#include "order_check.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "streams.h"

namespace sim {
namespace {

constexpr size_t kMostReports = 1000;  // a program with so many has been told

void join(Clock& into, const Clock& other) {
  for (size_t s = 0; s < into.size() && s < other.size(); ++s)
    into[s] = std::max(into[s], other[s]);
}

}  // namespace

OrderCheck::OrderCheck(int streams, bool enabled)
    : enabled_(enabled),
      clocks_(static_cast<size_t>(streams), Clock(static_cast<size_t>(streams), 0)),
      host_(static_cast<size_t>(streams), 0) {}

bool OrderCheck::in_order(const Use& before, const Clock& clock, int stream) const {
  return before.stream < 0 || before.stream == stream ||
         clock[static_cast<size_t>(before.stream)] >= before.number;
}

// Makes a boundary between two ranges at the address, if a range covers it.
void OrderCheck::split(const char* at) {
  const auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return;
  const auto covering = std::prev(after);
  if (covering->first == at || covering->second.end <= at) return;
  Range rest = covering->second;
  covering->second.end = at;
  ranges_.emplace_hint(after, at, std::move(rest));
}

// Returns the range that begins at the address, where a boundary is. It is new if no range begins
// there, and then ends at the next range or at `end`.
OrderCheck::Range& OrderCheck::range_at(const char* at, const char* end) {
  const auto next = ranges_.lower_bound(at);
  if (next != ranges_.end() && next->first == at) return next->second;
  Range fresh;
  fresh.end = next == ranges_.end() ? end : std::min(end, next->first);
  return ranges_.emplace_hint(next, at, std::move(fresh))->second;
}

void OrderCheck::add(std::string text) {
  if (reports_.size() < kMostReports &&
      std::find(reports_.begin(), reports_.end(), text) == reports_.end()) {
    reports_.push_back(std::move(text));
  }
}

void OrderCheck::compare(const Use& now, const Range& range, bool writes) {
  const Clock& clock = clocks_[static_cast<size_t>(now.stream)];
  const std::string me = now.what + " on " + stream_name(now.stream);
  if (!in_order(range.write, clock, now.stream)) {
    add(me + (writes ? " overwrites" : " reads") + " what " + range.write.what + " on " +
        stream_name(range.write.stream) +
        " writes, and nothing orders them: the second stream has to wait for an event of the "
        "first");
  }
  if (!writes) return;
  for (const auto& [stream, read] : range.reads) {
    if (in_order(read, clock, now.stream)) continue;
    add(me + " overwrites what " + read.what + " on " + stream_name(stream) +
        " reads, and nothing orders them: the second stream has to wait for an event of the first");
  }
}

uint64_t OrderCheck::access(const std::string& what, int stream,
                            const std::vector<Access>& accesses) {
  std::lock_guard<std::mutex> lock(mutex_);
  Clock& clock = clocks_[static_cast<size_t>(stream)];
  join(clock, host_);  // what is launched now comes after all that the host knows to be over
  const Use now{stream, ++clock[static_cast<size_t>(stream)], what};
  if (!enabled_) return now.number;
  for (const Access& access : accesses) {
    if (access.begin >= access.end) continue;
    split(access.begin);
    split(access.end);
    for (const char* at = access.begin; at < access.end;) {
      Range& range = range_at(at, access.end);
      compare(now, range, access.writes);
      if (access.writes) {
        range.write = now;
        range.reads.clear();
      } else {
        range.reads[stream] = now;
      }
      at = range.end;
    }
  }
  return now.number;
}

Clock OrderCheck::recorded(int stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Clock clock = clocks_[static_cast<size_t>(stream)];
  join(clock, host_);
  return clock;
}

void OrderCheck::stream_waits(int stream, const Clock& for_what) {
  std::lock_guard<std::mutex> lock(mutex_);
  join(clocks_[static_cast<size_t>(stream)], for_what);
}

void OrderCheck::host_waits(const Clock& for_what) {
  std::lock_guard<std::mutex> lock(mutex_);
  join(host_, for_what);
}

bool OrderCheck::host_knows(int stream, uint64_t access) {
  std::lock_guard<std::mutex> lock(mutex_);
  return host_[static_cast<size_t>(stream)] >= access;
}

void OrderCheck::freed(const char* begin, const char* end, int stream, const std::set<int>& named) {
  if (!enabled_ || begin >= end) return;
  std::lock_guard<std::mutex> lock(mutex_);
  split(begin);
  split(end);
  Clock clock = clocks_[static_cast<size_t>(stream)];
  join(clock, host_);
  const auto first = ranges_.lower_bound(begin), last = ranges_.lower_bound(end);
  const auto look = [&](const Use& use) {
    if (in_order(use, clock, stream) || named.contains(use.stream)) return;
    add("memory of " + stream_name(stream) + " is freed while " + use.what + " on " +
        stream_name(use.stream) +
        " may use it: call record_stream(), or let the first stream wait for an event of the "
        "second");
  };
  for (auto range = first; range != last; ++range) {
    look(range->second.write);
    for (const auto& [reader, read] : range->second.reads) look(read);
  }
  ranges_.erase(first, last);
}

void OrderCheck::forget(const char* begin, const char* end) {
  if (!enabled_ || begin >= end) return;
  std::lock_guard<std::mutex> lock(mutex_);
  split(begin);
  split(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
}

void OrderCheck::report(std::string text) {
  if (!enabled_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  add(std::move(text));
}

std::vector<std::string> OrderCheck::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(reports_, {});
}

}  // namespace sim
