// Writes results of graph_bench.h as Markdown for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "graph_bench.h"

namespace reprise::bench {

// Writes a section with a table that has a row for each budget.
std::string markdown(const GraphResult& result);
// Writes the same for steps in parts along the batch.
std::string markdown_of_parts(const GraphResult& result);
// Includes every sample.
nlohmann::ordered_json to_json(const GraphResult& result);

}  // namespace reprise::bench
