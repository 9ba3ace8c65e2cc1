#include "plan/place/devices/routes.h"

#include <map>

namespace reprise::internal::devices {

Routes::Routes(const Graph& graph, const Machine& machine) : memories_(machine.memories.size()) {
  std::map<Bytes, int32_t> sizes;
  for (const Value& value : graph.values) {
    const auto [found, is_new] = sizes.emplace(value.bytes, static_cast<int32_t>(ways_.size()));
    size_of_.push_back(found->second);
    if (!is_new) continue;
    std::vector<Way> ways(memories_ * memories_);
    for (size_t m = 0; m < memories_; ++m) ways[m * memories_ + m] = {0, static_cast<int32_t>(m)};
    for (const Channel& channel : machine.channels) {
      Way& way =
          ways[static_cast<size_t>(channel.from) * memories_ + static_cast<size_t>(channel.to)];
      way = {copy_time(channel, value.bytes).count(), channel.to};
    }
    for (size_t by = 0; by < memories_; ++by) {
      for (size_t from = 0; from < memories_; ++from) {
        for (size_t to = 0; to < memories_; ++to) {
          const Way& first = ways[from * memories_ + by];
          const Way& second = ways[by * memories_ + to];
          Way& way = ways[from * memories_ + to];
          if (first.time + second.time < way.time) way = {first.time + second.time, first.next};
        }
      }
    }
    ways_.push_back(std::move(ways));
  }
}

}  // namespace reprise::internal::devices
