#include "runtime/step/parameter_names.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace reprise::runtime::internal::step {

std::vector<std::string> parameter_names(const std::vector<at::Tensor>& parameters,
                                         const CaptureOptions& options) {
  std::map<const void*, std::string> known;
  for (const auto& module : options.modules) {
    for (const auto& named : module->named_parameters()) {
      known.try_emplace(named.value().unsafeGetTensorImpl(), named.key());
    }
  }
  std::vector<std::string> names;
  std::set<std::string> used;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto found = known.find(parameters[p].unsafeGetTensorImpl());
    // Several modules may use the same name.
    const bool fresh = found != known.end() && used.insert(found->second).second;
    names.push_back(fresh ? found->second : fmt::format("parameter{}", p));
  }
  return names;
}

}  // namespace reprise::runtime::internal::step
