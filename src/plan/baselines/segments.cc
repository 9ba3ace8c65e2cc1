#include "plan/baselines/segments.h"

#include "reprise/model/lower.h"

namespace reprise::internal::baselines {

std::vector<Run> segment_runs(size_t stages, const Cuts& cuts) {
  const ChainIndex index{stages};
  std::vector<Run> runs;
  for (size_t i = 0; i < cuts.back(); ++i) runs.push_back({index.forward(i), 0});
  size_t end = stages;
  for (size_t segment = cuts.size(); segment-- > 0;) {
    for (size_t i = cuts[segment]; i < end; ++i) runs.push_back({index.forward(i), 1});
    if (end == stages) runs.push_back({index.loss(), 0});
    for (size_t i = end; i-- > cuts[segment];) runs.push_back({index.backward(i), 0});
    end = cuts[segment];
  }
  return runs;
}

}  // namespace reprise::internal::baselines
