// A layout says which stages lie together in a part, and on which device each part lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/model/units.h"

namespace reprise::internal::pipeline {

struct Layout {
  std::vector<size_t> cuts;     // the first stage of each part, and the number of stages
  std::vector<int32_t> device;  // by part

  size_t parts() const { return device.size(); }
  bool last(size_t part) const { return part + 1 == parts(); }

  bool operator==(const Layout&) const = default;
};

// StageTimes has, for each stage, the sums of the times of all stages before it, with the loss in
// the backward of the last one. They are times of the chain, not of a device.
struct StageTimes {
  std::vector<Nanos> forward;  // by number of stages
  std::vector<Nanos> backward;
  std::vector<Nanos> weights;  // of the weight parts, which `backward` has, too

  Nanos forward_of(size_t first, size_t end) const { return forward[end] - forward[first]; }
  Nanos backward_of(size_t first, size_t end) const { return backward[end] - backward[first]; }
  Nanos weights_of(size_t first, size_t end) const { return weights[end] - weights[first]; }
  Nanos both(size_t first, size_t end) const {
    return forward_of(first, end) + backward_of(first, end);
  }
};

// Takes the fastest forward and the fastest backward of every stage.
StageTimes least_times(const Pipeline& pipeline);
// Takes the first option of every stage, as plain training does.
StageTimes plain_times(const Pipeline& pipeline);

// Returns parts on the devices in turn: `parts_per_device` times from the first one to the last one
// that is used, or fewer times if there are too few stages. Devices that would have no stage stay
// empty. The cuts are those of `given` if there
// are any; otherwise the slowest device is as fast as possible where each has one part, and the
// slowest part where each has several. O(parts * stages^2).
Layout layout_of(const Pipeline& pipeline, const std::vector<int64_t>& given,
                 int64_t parts_per_device);

// Throws InputError, which names the devices, if neighbours on different devices lack a link.
void require_links(const Pipeline& pipeline, const Layout& layout);

// Returns the cuts of a part layout for which the largest time_on(device, both(part)) is smallest.
std::vector<size_t> balanced_cuts(const Pipeline& pipeline, const StageTimes& times,
                                  const std::vector<int32_t>& device);

}  // namespace reprise::internal::pipeline
