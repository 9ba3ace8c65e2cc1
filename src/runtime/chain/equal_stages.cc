#include "runtime/chain/equal_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace reprise::runtime::internal::chain {
namespace {

std::string bytes_of(const StageOption& option) {
  const int64_t stopped = option.stopped ? option.stopped->workspace.count() : -1;
  return fmt::format("|{} {} {} {} {} {} {} {} {}", option.name, option.saved.count(),
                     option.reads_input, option.reads_output, option.consumes,
                     option.consumes_input, option.forward.workspace.count(),
                     option.backward.workspace.count(), stopped);
}

// Returns a text that is equal for stages that are built alike. The text is empty if that cannot be
// known.
std::string signature(const PreparedModel& model, const std::vector<ChainInput>& inputs,
                      const Chain& chain, size_t i) {
  const PreparedStage& prepared = model.stages[i];
  if (prepared.stage.module == nullptr) return {};
  ChainInput before = inputs[model.branch_of(i)];
  if (!model.begins(i)) before = {boundary_bytes(chain, i), boundary_gradient_bytes(chain, i)};
  const reprise::Stage& stage = chain.stages[i];
  std::ostringstream module;
  module << *prepared.stage.module;
  std::string text = fmt::format(
      "{}|{} {} {} {} {} {} {}", module.str(), before.bytes.count(), before.gradient.count(),
      stage.output.count(), boundary_gradient_bytes(chain, i + 1).count(),
      stage.weight_gradient.count(), stage.random, stage.forward.workspace.count());
  for (const StageOption& option : stage.options) text += bytes_of(option);
  return text;
}

template <class Time>
void take_median(Chain& chain, const std::vector<size_t>& stages, const Time& time) {
  std::vector<Nanos> times;
  for (const size_t i : stages) times.push_back(time(chain.stages[i]));
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  for (const size_t i : stages) time(chain.stages[i]) = *middle;
}

}  // namespace

void share_times(const PreparedModel& model, const std::vector<ChainInput>& inputs, Chain& chain) {
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const std::string alike = signature(model, inputs, chain, i);
    if (!alike.empty()) groups[alike].push_back(i);
  }
  for (const auto& [alike, stages] : groups) {
    if (stages.size() == 1) continue;
    take_median(chain, stages, [](reprise::Stage& s) -> Nanos& { return s.forward.time; });
    for (size_t o = 0; o < chain.stages[stages.front()].options.size(); ++o) {
      take_median(chain, stages,
                  [o](reprise::Stage& s) -> Nanos& { return s.options[o].forward.time; });
      take_median(chain, stages,
                  [o](reprise::Stage& s) -> Nanos& { return s.options[o].backward.time; });
      if (!chain.stages[stages.front()].options[o].stopped) continue;
      take_median(chain, stages,
                  [o](reprise::Stage& s) -> Nanos& { return s.options[o].stopped->time; });
    }
  }
}

}  // namespace reprise::runtime::internal::chain
