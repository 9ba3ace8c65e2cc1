// Reads and writes the parts that several formats have in common.
#include <algorithm>

#include "io/formats.h"

namespace reprise::io {

namespace {

constexpr std::pair<const char*, Exactness> kExactness[] = {
    {"bitwise", Exactness::kBitwise},
    {"rounding", Exactness::kRounding},
    {"approximate", Exactness::kApproximate},
};

bool is_problem_format(std::string_view format) {
  return format == kChainFormat || format == kGraphFormat || format == kJoinFormat;
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

ProblemId read_problem_id(const Element& element) {
  Object object(element);
  ProblemId id;
  const Element format = object.required("format");
  id.format = format.string();
  if (!is_problem_format(id.format)) {
    format.fail("must be \"reprise.chain\", \"reprise.graph\" or \"reprise.join\", is " +
                io::quoted(id.format));
  }
  id.name = object.required("name").string();
  if (const auto hash = object.optional("sha256")) {
    id.sha256 = hash->string();
    if (!is_sha256(id.sha256)) hash->fail("must be 64 lower-case hexadecimal digits");
  }
  object.finish();
  return id;
}

void write_problem_id(Writer& writer, const ProblemId& id) {
  if (!is_problem_format(id.format)) {
    throw InputError("cannot write a plan or frontier for a problem of format " +
                     io::quoted(id.format) +
                     "; it is \"reprise.chain\", \"reprise.graph\" or \"reprise.join\"");
  }
  if (!id.sha256.empty() && !is_sha256(id.sha256)) {
    throw InputError("cannot write the hash " + io::quoted(id.sha256) +
                     ": it must be 64 lower-case hexadecimal digits");
  }
  writer.open_object().field("format", id.format).field("name", id.name);
  if (!id.sha256.empty()) writer.field("sha256", id.sha256);
  writer.close();
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
