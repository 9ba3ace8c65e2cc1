// This is the check that streams, events and waits order what needs an order.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sim {

// A Clock has, for each stream, the number of the last access that is known to be over.
using Clock = std::vector<uint64_t>;

// Bytes that an operation of a stream reads or writes. Addresses are those that programs hold.
struct Access {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool writes = false;
};

// Vector clocks over ranges of bytes (Mattern 1989; FastTrack, Flanagan and Freund 2009, without its
// shortcut for one reader). Two accesses of a byte, one of them a write, are in order if they are on
// one stream, or if the later stream has waited, itself or through others, for an event that stands
// after the earlier one, or if the host has and then launched the later one. All threads of the
// host count as one. Each pair of operations is reported once.
//
// A report does not depend on what the kernels of this process really did first: an order that
// is missing is found even where the bytes came out right.
class OrderCheck {
 public:
  OrderCheck(int streams, bool enabled);

  // The stream starts an operation that its host launches now. Returns the number of the access.
  uint64_t access(const std::string& what, int stream, const std::vector<Access>& accesses);

  Clock recorded(int stream);  // what an event recorded there now stands for
  void stream_waits(int stream, const Clock& for_what);
  void host_waits(const Clock& for_what);
  bool host_knows(int stream, uint64_t access);

  // A block of memory that belongs to a stream is given back. Each other stream that used the block
  // must have been named (record_stream), or must be in order before the stream's next operation.
  void freed(const char* begin, const char* end, int stream, const std::set<int>& named);

  // The bytes are no memory of the program any more.
  void forget(const char* begin, const char* end);

  void report(std::string text);
  std::vector<std::string> take();

 private:
  struct Use {
    int stream = -1;
    uint64_t number = 0;
    std::string what;
  };
  struct Range {
    const char* end = nullptr;
    Use write;
    std::map<int, Use> reads;  // by stream, the last one of each
  };
  using Ranges = std::map<const char*, Range>;  // by their begin; they do not overlap

  void split(const char* at);
  Range& range_at(const char* at, const char* end);
  void compare(const Use& now, const Range& range, bool writes);
  bool in_order(const Use& before, const Clock& clock, int stream) const;
  void add(std::string text);

  const bool enabled_;
  std::mutex mutex_;
  std::vector<Clock> clocks_;  // of each stream
  Clock host_;
  Ranges ranges_;
  std::vector<std::string> reports_;
};

}  // namespace sim
