#include "runtime/graph/external_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/graph/follow_ups.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using device::counted_bytes;
using step::is_host_number;

Bytes counted_anywhere(int64_t bytes, const RewrittenStep& step) {
  int64_t counted = counted_bytes(bytes, step.recording.device);
  for (const c10::Device device : step.devices) {
    counted = std::max(counted, counted_bytes(bytes, device));
  }
  return Bytes(counted);
}

std::vector<ValueIndex> add_external_values(LoweredStep& lowered, const RewrittenStep& step,
                                            const std::vector<bool>& needed,
                                            const Tensors& inputs) {
  std::map<const void*, ValueIndex> of_storage;
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) continue;
    of_storage.emplace(input.storage().unsafeGetStorageImpl(),
                       static_cast<ValueIndex>(of_storage.size()));
  }
  std::vector<ValueIndex> values(step.recording.externals.size(), -1);
  for (const CallVariant& variant : step.alternatives.variants) {
    if (variant.memory == 0 || !needed[variant.call]) continue;
    for (const int32_t e : externals_read(step.works.all[variant.work])) {
      const External& external = step.recording.externals[e];
      ValueIndex& value = values[e];
      if (value >= 0 || is_host_number(external)) continue;
      const bool is_input = external.input >= 0;
      const c10::Storage& storage =
          is_input ? inputs[external.input].storage() : external.tensor.storage();
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      if (is_input) {
        value = of_storage.at(storage.unsafeGetStorageImpl());
      } else {
        value = static_cast<ValueIndex>(lowered.graph.values.size());
        lowered.graph.values.push_back(
            {fmt::format("outside{}", e), counted_anywhere(bytes, step), ValueKind::kInput});
        lowered.step_value_of.push_back(-1);
        lowered.external_bytes += Bytes(counted_bytes(bytes, step.recording.device));
      }
      lowered.external_values[value] = {e, bytes};
    }
  }
  return values;
}

}  // namespace reprise::runtime::internal::graph
