// Writes results as Markdown for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "common/run_info.h"
#include "measure.h"

namespace reprise::bench {

std::string markdown(const RunInfo& info, const std::vector<GraphResult>& results);
std::string json(const RunInfo& info, const std::vector<GraphResult>& results);

}  // namespace reprise::bench
