// This header has the facts about pipelines that `reprise check` needs.
#pragma once

#include <string>

namespace reprise::cli {

// Judges a plan of a pipeline and returns the exit code. `text` is the content of the problem's file. A
// budget, if it is not empty, replaces the limits of the plan. Prints the verdict.
int check_pipeline(const std::string& text, const std::string& problem,
                   const std::string& plan_file, const std::string& budget, bool json, bool quiet);

}  // namespace reprise::cli
