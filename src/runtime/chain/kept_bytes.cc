#include "runtime/chain/kept_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reprise/model/errors.h"
#include "runtime/device/made_storages.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::counted_bytes_of;
using device::MadeStorages;
using device::storage_bytes;
using device::storages_taken_since;
using device::WeakStorage;

int64_t measure_kept_bytes(const std::function<std::pair<Tensors, Kept>()>& run, c10::Device device,
                           bool input_needed, Tensors& x, reprise::Stage& row,
                           StageOption& option) {
  std::pair<Tensors, Kept> result;
  Reading keep;
  int64_t movable = 0;
  {
    const MadeStorages made(device);
    keep = read_memory(device, [&] { result = run(); });
    movable = counted_bytes_of(made.alive_without(result.first));
  }
  const int64_t output = storage_bytes(result.first), input = storage_bytes(x);
  if (!row.options.empty() && row.output != Bytes(output)) {
    throw InputError(fmt::format("way '{}' of stage '{}' returns {} bytes, and the stage {}",
                                 option.name, row.name, output, row.output.count()));
  }
  row.output = Bytes(output);
  option.saved = Bytes(std::max<int64_t>(0, keep.after - keep.before - output));
  option.forward.workspace = Bytes(keep.peak - keep.after);
  option.consumes = true;
  result.first.clear();
  const int64_t without_output = memory_count(device).live;
  option.reads_output = keep.after - without_output < output;
  const std::vector<WeakStorage> given = storages_taken_since(x, device, 0);
  x.clear();
  const int64_t held = input - (without_output - memory_count(device).live);
  option.reads_input = held > 0;
  option.consumes_input = held > 0 && !input_needed;
  // The backward may read only some tensors of a tuple. From now on these count as saved bytes of
  // the stage, and the other tensors are freed.
  if (option.consumes_input && held < input) {
    option.reads_input = false;
    option.saved += Bytes(held);
    movable += counted_bytes_of(given);
    option.forward.workspace += Bytes(input - held);
  }
  return movable;
}

}  // namespace reprise::runtime::internal::chain
