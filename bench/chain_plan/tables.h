// Writes results as Markdown for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "common/run_info.h"
#include "measure.h"

namespace reprise::bench {

struct Results {
  std::vector<ChainResult> chains;
  std::vector<CurveResult> curves;
};

std::string markdown(const RunInfo& info, const Results& results);
std::string json(const RunInfo& info, const Results& results);

}  // namespace reprise::bench
