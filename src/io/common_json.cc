// Reads and writes the parts that several formats have in common.
#include <algorithm>
#include <limits>

#include "io/formats.h"

namespace reprise::io {

namespace {

constexpr std::pair<const char*, Exactness> kExactness[] = {
    {"bitwise", Exactness::kBitwise},
    {"rounding", Exactness::kRounding},
    {"approximate", Exactness::kApproximate},
};

constexpr int64_t kNanosPerMilli = 1'000'000;

constexpr std::pair<const char*, Termination> kTerminations[] = {
    {"optimal", Termination::kOptimal},
    {"feasible", Termination::kFeasible},
    {"infeasible", Termination::kInfeasible},
    {"time_limit", Termination::kTimeLimit},
};

// `only` is the one format that is expected, or null for those of plans and frontiers.
bool is_problem_format(std::string_view format, const char* only) {
  if (only != nullptr) return format == only;
  return format == kChainFormat || format == kGraphFormat || format == kJoinFormat;
}

std::string problem_formats(const char* only) {
  if (only != nullptr) return quoted(only);
  return "\"reprise.chain\", \"reprise.graph\" or \"reprise.join\"";
}

}  // namespace

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

void open_document(Writer& writer, const char* format, int64_t version) {
  writer.open_object().field("format", format).field("version", version);
}

ProblemId read_problem_id(const Element& element, const char* only) {
  Object object(element);
  ProblemId id;
  const Element format = object.required("format");
  id.format = format.string();
  if (!is_problem_format(id.format, only)) {
    format.fail("must be " + problem_formats(only) + ", is " + io::quoted(id.format));
  }
  id.name = object.required("name").string();
  if (const auto hash = object.optional("sha256")) {
    id.sha256 = hash->string();
    if (!is_sha256(id.sha256)) hash->fail("must be 64 lower-case hexadecimal digits");
  }
  object.finish();
  return id;
}

void write_problem_id(Writer& writer, const ProblemId& id, const char* only) {
  if (!is_problem_format(id.format, only)) {
    throw InputError("cannot write a plan or frontier for a problem of format " +
                     io::quoted(id.format) + "; it is " + problem_formats(only));
  }
  if (!id.sha256.empty() && !is_sha256(id.sha256)) {
    throw InputError("cannot write the hash " + io::quoted(id.sha256) +
                     ": it must be 64 lower-case hexadecimal digits");
  }
  writer.open_object().field("format", id.format).field("name", id.name);
  if (!id.sha256.empty()) writer.field("sha256", id.sha256);
  writer.close();
}

Termination read_termination(const Element& element) { return element.word(kTerminations); }

Baseline read_baseline(const Element& element) {
  Object object(element);
  Baseline baseline;
  baseline.peak = object.required("peak_bytes").bytes();
  baseline.time = object.required("time_ns").nanos();
  object.finish();
  return baseline;
}

void write_baseline(Writer& writer, const Baseline& baseline) {
  writer.open_object(Layout::kInline)
      .field("peak_bytes", baseline.peak)
      .field("time_ns", baseline.time)
      .close();
}

SearchCost read_search(const Element& element) {
  Object object(element);
  SearchCost search;
  const Element wall = object.required("wall_ms");
  const int64_t milliseconds = wall.integer();
  if (milliseconds > std::numeric_limits<int64_t>::max() / kNanosPerMilli) {
    wall.fail("does not fit 64 bits in nanoseconds");
  }
  search.wall = Nanos(milliseconds * kNanosPerMilli);
  search.memory = object.required("memory_bytes").bytes();
  object.finish();
  return search;
}

void write_search(Writer& writer, const SearchCost& search) {
  // The file has whole milliseconds, rounded down.
  writer.open_object(Layout::kInline)
      .field("wall_ms", search.wall.count() / kNanosPerMilli)
      .field("memory_bytes", search.memory)
      .close();
}

Exactness read_exactness(const Element& element) { return element.word(kExactness); }

Cost read_cost(const Element& element) {
  Object object(element);
  Cost cost;
  cost.time = object.required("ns").nanos();
  if (const auto size = object.optional("workspace_bytes")) cost.workspace = size->bytes();
  object.finish();
  return cost;
}

void write_cost(Writer& writer, const Cost& cost) {
  writer.open_object(Layout::kInline)
      .field("ns", cost.time)
      .field("workspace_bytes", cost.workspace)
      .close();
}

}  // namespace reprise::io
