// Reads each structure from an element of a document, and writes it. Each format has one source
// file.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "io/reader.h"
#include "io/writer.h"
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

namespace reprise::io {

inline constexpr const char* kChainFormat = "reprise.chain";
inline constexpr const char* kGraphFormat = "reprise.graph";
inline constexpr const char* kJoinFormat = "reprise.join";
inline constexpr const char* kPlanFormat = "reprise.plan";
inline constexpr const char* kMachineFormat = "reprise.machine";
inline constexpr const char* kPowerFormat = "reprise.power";
inline constexpr const char* kPipelineFormat = "reprise.pipeline";
inline constexpr const char* kPipelinePlanFormat = "reprise.pipeline_plan";
inline constexpr const char* kFrontierFormat = "reprise.frontier";
inline constexpr const char* kProfileFormat = "reprise.profile";
inline constexpr const char* kRunLogFormat = "reprise.runlog";
inline constexpr int64_t kFormatVersion = 1;   // of most formats
inline constexpr int64_t kGraphVersion = 3;    // the newest version of reprise.graph
inline constexpr int64_t kMachineVersion = 2;  // the newest version of reprise.machine
inline constexpr int64_t kPlanVersion = 2;     // the newest version of reprise.plan
inline constexpr int64_t kProfileVersion = 2;  // the newest version of reprise.profile

// These functions read a structure and validate it.
Chain read_chain(const Element& root);
Graph read_graph(const Element& root);
Join read_join(const Element& root);
std::variant<Chain, Graph> read_model(const Element& root);  // The key "format" says which it is.
Plan read_plan(const Element& root);
Machine read_machine(const Element& root);
Power read_power(const Element& root);
Pipeline read_pipeline(const Element& root);
PipelinePlan read_pipeline_plan(const Element& root);
Frontier read_frontier(const Element& root);
Profile read_profile(const Element& root);
RunLog read_run_log(const Element& root);

void write_chain(Writer& writer, const Chain& chain);
void write_graph(Writer& writer, const Graph& graph);
void write_join(Writer& writer, const Join& join);
void write_machine(Writer& writer, const Machine& machine);
void write_pipeline(Writer& writer, const Pipeline& pipeline);

// Several formats share these functions.
ChainInput read_input(const Element& element);
std::vector<Stage> read_stages(const Element& array);
ChainLoss read_loss(const Element& element);
void write_input(Writer& writer, const ChainInput& input);
void write_stages(Writer& writer, const std::vector<Stage>& stages);
void write_loss(Writer& writer, const ChainLoss& loss);
void open_document(Writer& writer, const char* format, int64_t version = kFormatVersion);
// A problem of a plan or a frontier is a chain, a graph or a join, unless `only` says what it is.
void write_problem_id(Writer& writer, const ProblemId& id, const char* only = nullptr);
ProblemId read_problem_id(const Element& element, const char* only = nullptr);
Termination read_termination(const Element& element);
Baseline read_baseline(const Element& element);
void write_baseline(Writer& writer, const Baseline& baseline);
SearchCost read_search(const Element& element);
void write_search(Writer& writer, const SearchCost& search);
Exactness read_exactness(const Element& element);
Cost read_cost(const Element& element);
void write_cost(Writer& writer, const Cost& cost);

// Returns the canonical text of a subtree: keys are sorted, without white space and without "x-"
// keys.
std::string canonical_text(const Element& root);
std::string sha256_hex(std::string_view bytes);
// Returns what canonical_sha256() returns for the to_json() form, without making that form.
template <class Model>
std::string canonical_sha256_of(const Model& model, void (*write)(Writer&, const Model&)) {
  Writer writer(Form::kCanonical);
  write(writer, model);
  return sha256_hex(writer.take());
}
bool is_sha256(std::string_view text);  // 64 lower-case hexadecimal digits

}  // namespace reprise::io
