// Files are strict, versioned JSON. Reading throws InputError with file, JSON pointer and line.
// Size, depth and counts are limited before memory is taken. An unknown key is an error; a key that
// begins with "x-" is ignored. Writing is atomic: a temporary file, fsync, rename.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "reprise/model/chain.h"
#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/join.h"
#include "reprise/model/machine.h"
#include "reprise/model/pipeline.h"
#include "reprise/model/plan.h"
#include "reprise/model/power.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"

namespace reprise {

// These functions read a text. `name` stands for the file in messages.
Chain parse_chain(std::string_view text, const std::string& name = "<text>");
Graph parse_graph(std::string_view text, const std::string& name = "<text>");
Join parse_join(std::string_view text, const std::string& name = "<text>");
Plan parse_plan(std::string_view text, const std::string& name = "<text>");
Frontier parse_frontier(std::string_view text, const std::string& name = "<text>");
Profile parse_profile(std::string_view text, const std::string& name = "<text>");
RunLog parse_run_log(std::string_view text, const std::string& name = "<text>");
Machine parse_machine(std::string_view text, const std::string& name = "<text>");
Power parse_power(std::string_view text, const std::string& name = "<text>");
Pipeline parse_pipeline(std::string_view text, const std::string& name = "<text>");
PipelinePlan parse_pipeline_plan(std::string_view text, const std::string& name = "<text>");
// Returns the format of a file's text, such as "reprise.chain". Nothing after it is read.
std::string parse_format(std::string_view text, const std::string& name = "<text>");

// A Problem is a chain, a graph or a join; the key "format" tells them apart. A profile yields the
// problem in it.
struct Problem {
  std::variant<Chain, Graph, Join> model;
  ProblemId id;  // has the sha256 of the canonical JSON of the chain, graph or join itself

  const Chain* chain() const { return std::get_if<Chain>(&model); }
  Graph graph() const;  // Returns the graph, the lowered chain, or the lowered join.
  // Returns the graph on which this plan is judged. The graph of a join has the plan's
  // interleaving.
  Graph graph(const Plan& plan) const;
  // Returns problem_id() of the model if `claimed` has that, and otherwise `id`. A plan that was
  // made in memory has the hash of the file that would be written for its problem, so that both
  // names are right.
  ProblemId id_for(const ProblemId& claimed) const;
};
Problem parse_problem(std::string_view text, const std::string& name = "<text>");

Chain load_chain(const std::filesystem::path& path);
Graph load_graph(const std::filesystem::path& path);
Join load_join(const std::filesystem::path& path);
Problem load_problem(const std::filesystem::path& path);
Plan load_plan(const std::filesystem::path& path);
Frontier load_frontier(const std::filesystem::path& path);
RunLog load_run_log(const std::filesystem::path& path);
Machine load_machine(const std::filesystem::path& path);
Power load_power(const std::filesystem::path& path);
Pipeline load_pipeline(const std::filesystem::path& path);
PipelinePlan load_pipeline_plan(const std::filesystem::path& path);

// Return JSON for people that parses back to an equal value.
std::string to_json(const Chain& chain);
std::string to_json(const Graph& graph);
std::string to_json(const Join& join);
std::string to_json(const Plan& plan);
std::string to_json(const Frontier& frontier);
std::string to_json(const Profile& profile);
std::string to_json(const RunLog& log);
std::string to_json(const Machine& machine);
std::string to_json(const Power& power);
std::string to_json(const Pipeline& pipeline);
std::string to_json(const PipelinePlan& plan);

// Writes the whole file or leaves the old one as it is. Removes the temporary files that killed
// writers left in the folder. Throws InputError if the file cannot be written.
void write_file(const std::filesystem::path& path, std::string_view content);
// Returns the content of a file. Throws InputError if it cannot be read or has more than `limit`
// bytes.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Returns the hash of the canonical JSON of a problem, in lower-case hexadecimal digits. Canonical
// JSON has its keys sorted, no white space, no "x-" keys, and no defaults filled in.
std::string canonical_sha256(std::string_view json_text);
// Returns the hash of these bytes, in lower-case hexadecimal digits.
std::string text_sha256(std::string_view bytes);
// Return the id of a problem that never was a file, with the hash of its to_json() form.
ProblemId problem_id(const Chain& chain);
ProblemId problem_id(const Graph& graph);
ProblemId problem_id(const Join& join);
ProblemId problem_id(const Pipeline& pipeline);
// Returns the hash of the machine's to_json() form, which plans with copies carry.
std::string machine_sha256(const Machine& machine);

}  // namespace reprise
