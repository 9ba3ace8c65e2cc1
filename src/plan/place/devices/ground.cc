#include <optional>

#include "plan/place/devices/layout.h"

namespace reprise::internal::devices {

constexpr int64_t kUnlimited = int64_t{1} << 62;

Ground::Ground(const Graph& of, const Machine& on, int64_t budget)
    : graph(of), machine(on), routes(of, on) {
  const size_t memories = machine.memories.size();
  capacities = {budget};
  for (size_t m = 1; m < memories; ++m) {
    const std::optional<Bytes>& capacity = machine.memories[m].capacity;
    capacities.push_back(capacity ? capacity->count() : kUnlimited);
  }
  for (const Op& op : graph.ops) {
    std::vector<int32_t> where;
    for (const Variant& variant : op.variants) where.push_back(find_memory(machine, variant.at));
    devices.push_back(std::move(where));
  }
  is_result.assign(graph.values.size(), 0);
  for (const ValueIndex v : graph.results) is_result[v] = 1;
  for (const Value& value : graph.values) is_input.push_back(value.kind == ValueKind::kInput);
  channels.assign(memories, std::vector<int32_t>(memories, -1));
  for (size_t c = 0; c < machine.channels.size(); ++c) {
    const Channel& channel = machine.channels[c];
    channels[channel.from][channel.to] = static_cast<int32_t>(c);
  }
}

}  // namespace reprise::internal::devices
