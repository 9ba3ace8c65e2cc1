// The entry points take a text or a file and return a structure.
#include "io/formats.h"
#include "reprise/io/json.h"
#include "reprise/model/lower.h"

namespace reprise {
namespace {

using io::Document;
using io::Element;

// Returns the element that holds the chain, graph or join: the root, or the "problem" of a profile. It
// reads the whole profile, too, so that its mistakes are found.
Element problem_element(const Element& root) {
  const std::string_view format = io::read_format(root);
  if (format == io::kProfileFormat) {
    io::read_profile(root);
    return io::Object(root).required("problem");
  }
  if (format != io::kChainFormat && format != io::kGraphFormat && format != io::kJoinFormat) {
    io::Object(root).required("format").fail(
        "is " + io::quoted(format) +
        ", where \"reprise.chain\", \"reprise.graph\", \"reprise.join\" or \"reprise.profile\" "
        "is expected");
  }
  return root;
}

template <class Model>
ProblemId id_of(const Model& model, const char* format, void (*write)(io::Writer&, const Model&)) {
  return {.format = format, .name = model.name, .sha256 = io::canonical_sha256_of(model, write)};
}

}  // namespace

Chain parse_chain(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_chain(problem_element({document, 0}));
}

Graph parse_graph(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_graph(problem_element({document, 0}));
}

Join parse_join(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_join(problem_element({document, 0}));
}

Plan parse_plan(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_plan({document, 0});
}

Frontier parse_frontier(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_frontier({document, 0});
}

Profile parse_profile(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_profile({document, 0});
}

RunLog parse_run_log(std::string_view text, const std::string& name) {
  const Document document(text, name);
  return io::read_run_log({document, 0});
}

std::string parse_format(std::string_view text, const std::string& name) {
  const Document document(text, name, /*up_to=*/"format");
  return std::string(io::read_format({document, 0}));
}

Problem parse_problem(std::string_view text, const std::string& name) {
  const Document document(text, name);
  const Element element = problem_element({document, 0});
  Problem problem;
  if (io::read_format(element) == io::kJoinFormat) {
    problem.model = io::read_join(element);
  } else {
    std::visit([&](auto&& model) { problem.model = std::move(model); }, io::read_model(element));
  }
  problem.id.format = io::read_format(element);
  problem.id.name = std::visit([](const auto& model) { return model.name; }, problem.model);
  problem.id.sha256 = io::sha256_hex(io::canonical_text(element));
  return problem;
}

Graph Problem::graph() const {
  if (const Graph* graph_model = std::get_if<Graph>(&model)) return *graph_model;
  if (const Join* join = std::get_if<Join>(&model)) return lower(*join);
  return lower(std::get<Chain>(model));
}

Graph Problem::graph(const Plan& plan) const {
  const Join* join = std::get_if<Join>(&model);
  return join != nullptr ? lower(*join, interleaving_of(*join, plan.actions)) : graph();
}

ProblemId Problem::id_for(const ProblemId& claimed) const {
  if (claimed.sha256.empty() || claimed.sha256 == id.sha256) return id;
  const ProblemId own = std::visit([](const auto& content) { return problem_id(content); }, model);
  return claimed.sha256 == own.sha256 ? own : id;
}

Chain load_chain(const std::filesystem::path& path) {
  return parse_chain(read_file(path), path.string());
}

Graph load_graph(const std::filesystem::path& path) {
  return parse_graph(read_file(path), path.string());
}

Join load_join(const std::filesystem::path& path) {
  return parse_join(read_file(path), path.string());
}

Problem load_problem(const std::filesystem::path& path) {
  return parse_problem(read_file(path), path.string());
}

Plan load_plan(const std::filesystem::path& path) {
  return parse_plan(read_file(path), path.string());
}

Frontier load_frontier(const std::filesystem::path& path) {
  return parse_frontier(read_file(path), path.string());
}

RunLog load_run_log(const std::filesystem::path& path) {
  return parse_run_log(read_file(path), path.string());
}

ProblemId problem_id(const Chain& chain) { return id_of(chain, io::kChainFormat, io::write_chain); }

ProblemId problem_id(const Graph& graph) { return id_of(graph, io::kGraphFormat, io::write_graph); }

ProblemId problem_id(const Join& join) { return id_of(join, io::kJoinFormat, io::write_join); }

ProblemId problem_id(const Pipeline& pipeline) {
  return id_of(pipeline, io::kPipelineFormat, io::write_pipeline);
}

std::string machine_sha256(const Machine& machine) {
  return io::canonical_sha256_of(machine, io::write_machine);
}

}  // namespace reprise
