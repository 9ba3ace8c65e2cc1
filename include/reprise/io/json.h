// Files: strict versioned JSON. Reading throws InputError with file, JSON pointer and line; size, depth
// and counts are limited before memory is taken. Unknown keys are errors, keys beginning with "x-" are
// ignored. Writing is atomic: temporary file, fsync, rename.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "reprise/model/chain.h"
#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"

namespace reprise {

// From text. `name` stands for the file in messages.
Chain parse_chain(std::string_view text, const std::string& name = "<text>");
Graph parse_graph(std::string_view text, const std::string& name = "<text>");
Plan parse_plan(std::string_view text, const std::string& name = "<text>");
Frontier parse_frontier(std::string_view text, const std::string& name = "<text>");
Profile parse_profile(std::string_view text, const std::string& name = "<text>");
RunLog parse_run_log(std::string_view text, const std::string& name = "<text>");

// A chain or a graph, told apart by "format"; a profile yields the problem that it wraps.
struct Problem {
  std::variant<Chain, Graph> model;
  ProblemId id;  // with the sha256 of the canonical JSON of the chain or graph itself

  const Chain* chain() const { return std::get_if<Chain>(&model); }
  Graph graph() const;  // lowered if it is a chain
  // `id`, or what problem_id() says of the model if that is what `claimed` names: a plan that was made
  // in memory names the hash of the file that would be written for its problem.
  ProblemId id_for(const ProblemId& claimed) const;
};
Problem parse_problem(std::string_view text, const std::string& name = "<text>");

Chain load_chain(const std::filesystem::path& path);
Graph load_graph(const std::filesystem::path& path);
Problem load_problem(const std::filesystem::path& path);
Plan load_plan(const std::filesystem::path& path);
Frontier load_frontier(const std::filesystem::path& path);
RunLog load_run_log(const std::filesystem::path& path);

// Pretty-printed JSON that parses back to an equal value.
std::string to_json(const Chain& chain);
std::string to_json(const Graph& graph);
std::string to_json(const Plan& plan);
std::string to_json(const Frontier& frontier);
std::string to_json(const Profile& profile);
std::string to_json(const RunLog& log);

// Writes all or leaves the old file; removes what killed writers left in the folder. Or InputError.
void write_file(const std::filesystem::path& path, std::string_view content);
// At most `limit` bytes. InputError if it cannot be read or is larger.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Hash of the canonical JSON of a problem (keys sorted, no white space, no "x-" keys, defaults not
// filled in), in lower-case hex.
std::string canonical_sha256(std::string_view json_text);
// What a problem that never was a file is called: its to_json() form is hashed.
ProblemId problem_id(const Chain& chain);
ProblemId problem_id(const Graph& graph);

}  // namespace reprise
