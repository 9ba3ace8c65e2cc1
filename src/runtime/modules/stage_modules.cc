#include "runtime/modules/stage_modules.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace reprise::runtime::internal::modules {

void register_stages(torch::nn::Module& parent, const std::vector<Stage>& stages) {
  std::unordered_set<torch::nn::Module*> seen;
  for (const Stage& stage : stages) {
    if (!stage.module || !seen.insert(stage.module.get()).second) continue;
    std::string name = stage.name;
    std::replace(name.begin(), name.end(), '.', '_');
    parent.register_module(name, stage.module);
  }
}

}  // namespace reprise::runtime::internal::modules
