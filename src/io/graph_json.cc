// Reads and writes the format reprise.graph. Version 2 adds the owner of an op, the alternative of
// a variant, and the name of a realization. Version 3 adds the bound on the error of a variant, the
// memory where it runs, and the home of a value. A graph is written in the oldest version that can
// hold it, so that older programs read it and its hash stays what it was.
#include <algorithm>
#include <unordered_map>

#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

constexpr std::pair<const char*, ValueKind> kValueKinds[] = {
    {"input", ValueKind::kInput}, {"activation", ValueKind::kActivation},
    {"saved", ValueKind::kSaved}, {"gradient", ValueKind::kGradient},
    {"state", ValueKind::kState},
};
constexpr std::pair<const char*, Phase> kPhases[] = {
    {"forward", Phase::kForward}, {"loss", Phase::kLoss}, {"backward", Phase::kBackward}};
constexpr std::pair<const char*, Role> kRoles[] = {
    {"any", Role::kAny}, {"first", Role::kFirst}, {"replay", Role::kReplay}};

// Ids maps ids to positions. The first of equal ids wins here; validate() refuses the second.
class Ids {
 public:
  explicit Ids(const char* what) : what_(what) {}

  void add(const std::string& id) { positions_.emplace(id, static_cast<int32_t>(next_++)); }

  int32_t find(const Element& element) const {
    const auto found = positions_.find(element.string());
    if (found == positions_.end()) {
      element.fail("there is no " + std::string(what_) + " " + quoted(element.text()));
    }
    return found->second;
  }

  std::vector<int32_t> find_all(const Element& array) const {
    std::vector<int32_t> result;
    array.for_each([&](const Element& id) { result.push_back(find(id)); });
    return result;
  }

 private:
  const char* what_;
  std::unordered_map<std::string, int32_t> positions_;
  size_t next_ = 0;
};

Value read_value(const Element& element, int64_t version) {
  Object object(element);
  Value value;
  value.id = object.required("id").string();
  value.bytes = object.required("bytes").bytes();
  if (const auto kind = object.optional("kind")) value.kind = kind->word(kValueKinds);
  if (version >= 3) {
    if (const auto home = object.optional("home")) value.home = home->string();
  }
  object.finish();
  return value;
}

Variant read_variant(const Element& element, const Ids& values, int64_t version) {
  Object object(element);
  Variant variant;
  if (const auto name = object.optional("name")) variant.name = name->string();
  variant.time = object.required("ns").nanos();
  if (const auto size = object.optional("workspace_bytes")) variant.workspace = size->bytes();
  if (const auto list = object.optional("reads")) variant.reads = values.find_all(*list);
  if (const auto list = object.optional("writes")) variant.writes = values.find_all(*list);
  if (const auto list = object.optional("consumes")) variant.consumes = values.find_all(*list);
  if (const auto list = object.optional("reuses")) {
    list->for_each([&](const Element& pair) {
      const std::vector<int32_t> both = values.find_all(pair);
      if (both.size() != 2) pair.fail("a reuse is a pair [written, read]");
      variant.reuses.emplace_back(both[0], both[1]);
    });
  }
  if (const auto role = object.optional("role")) variant.role = role->word(kRoles);
  if (const auto word = object.optional("exactness")) variant.exactness = read_exactness(*word);
  if (version >= 2) {
    if (const auto rule = object.optional("alternative")) variant.alternative = rule->string();
  }
  if (version >= 3) {
    if (const auto error = object.optional("error_ppm")) variant.error_ppm = error->integer();
    if (const auto memory = object.optional("at")) variant.at = memory->string();
  }
  object.finish();
  return variant;
}

Op read_op(const Element& element, const Ids& values, int64_t version) {
  Object object(element);
  Op op;
  op.id = object.required("id").string();
  if (const auto phase = object.optional("phase")) op.phase = phase->word(kPhases);
  if (const auto flag = object.optional("once")) op.once = flag->boolean();
  if (const auto flag = object.optional("random")) op.random = flag->boolean();
  if (version >= 2) {
    if (const auto path = object.optional("owner")) op.owner = path->string();
  }
  object.required("variants").for_each([&](const Element& variant) {
    op.variants.push_back(read_variant(variant, values, version));
  });
  object.finish();
  return op;
}

// A realization is an object; in version 1 it is the array of its ops.
Realization read_realization(const Element& element, const Ids& ops, int64_t version) {
  if (version < 2) return {.ops = ops.find_all(element)};
  Object object(element);
  Realization realization;
  if (const auto name = object.optional("name")) realization.name = name->string();
  realization.ops = ops.find_all(object.required("ops"));
  object.finish();
  return realization;
}

Choice read_choice(const Element& element, const Ids& ops, int64_t version) {
  Object object(element);
  Choice choice;
  choice.id = object.required("id").string();
  object.required("realizations").for_each([&](const Element& realization) {
    choice.realizations.push_back(read_realization(realization, ops, version));
  });
  object.finish();
  return choice;
}

// Says which version of the format can hold the graph.
int64_t version_for(const Graph& graph) {
  const auto has_newest = [](const Variant& variant) {
    return variant.error_ppm != 0 || !variant.at.empty();
  };
  const bool is_newest = std::ranges::any_of(
      graph.ops, [&](const Op& op) { return std::ranges::any_of(op.variants, has_newest); });
  if (is_newest || has_homes(graph)) return 3;
  const auto has_alternative = [](const Variant& variant) { return !variant.alternative.empty(); };
  const auto is_new_op = [&](const Op& op) {
    return !op.owner.empty() || std::ranges::any_of(op.variants, has_alternative);
  };
  const auto has_name = [](const Realization& realization) { return !realization.name.empty(); };
  const auto is_new_choice = [&](const Choice& choice) {
    return std::ranges::any_of(choice.realizations, has_name);
  };
  const bool is_new = std::ranges::any_of(graph.ops, is_new_op) ||
                      std::ranges::any_of(graph.choices, is_new_choice);
  return is_new ? 2 : 1;
}

// Writes the ids of the items at these positions, as an array.
template <class Items>
void write_ids(Writer& writer, const Items& items, const std::vector<int32_t>& positions) {
  writer.open_array(Layout::kInline);
  for (const int32_t position : positions) writer.value(items[position].id);
  writer.close();
}

void write_variant(Writer& writer, const Graph& graph, const Variant& variant) {
  writer.open_object(Layout::kInline)
      .field("name", variant.name)
      .field("ns", variant.time)
      .field("workspace_bytes", variant.workspace);
  write_ids(writer.key("reads"), graph.values, variant.reads);
  write_ids(writer.key("writes"), graph.values, variant.writes);
  if (!variant.reuses.empty()) {
    writer.key("reuses").open_array();
    for (const auto& [written, read] : variant.reuses) {
      write_ids(writer, graph.values, {written, read});
    }
    writer.close();
  }
  if (!variant.consumes.empty()) {
    write_ids(writer.key("consumes"), graph.values, variant.consumes);
  }
  if (variant.role != Role::kAny) writer.field("role", to_string(variant.role));
  if (variant.exactness != Exactness::kBitwise) {
    writer.field("exactness", to_string(variant.exactness));
  }
  if (!variant.alternative.empty()) writer.field("alternative", variant.alternative);
  if (variant.error_ppm != 0) writer.field("error_ppm", variant.error_ppm);
  if (!variant.at.empty()) writer.field("at", variant.at);
  writer.close();
}

void write_op(Writer& writer, const Graph& graph, const Op& op) {
  writer.open_object().field("id", op.id).field("phase", to_string(op.phase));
  if (op.once) writer.field("once", true);
  if (op.random) writer.field("random", true);
  if (!op.owner.empty()) writer.field("owner", op.owner);
  writer.key("variants").open_array();
  for (const Variant& variant : op.variants) write_variant(writer, graph, variant);
  writer.close().close();
}

void write_realization(Writer& writer, const Graph& graph, const Realization& realization,
                       int64_t version) {
  if (version < 2) {
    write_ids(writer, graph.ops, realization.ops);
    return;
  }
  writer.open_object(Layout::kInline);
  if (!realization.name.empty()) writer.field("name", realization.name);
  write_ids(writer.key("ops"), graph.ops, realization.ops);
  writer.close();
}

void write_choices(Writer& writer, const Graph& graph, int64_t version) {
  writer.key("choices").open_array();
  for (const Choice& choice : graph.choices) {
    writer.open_object(Layout::kInline).field("id", choice.id).key("realizations").open_array();
    for (const Realization& realization : choice.realizations) {
      write_realization(writer, graph, realization, version);
    }
    writer.close().close();
  }
  writer.close();
}

}  // namespace

Graph read_graph(const Element& root) {
  Object object(root);
  const int64_t version = read_header(object, kGraphFormat, kGraphVersion);
  Graph graph;
  Ids values("value");
  Ids ops("operation");
  graph.name = object.required("name").string();
  if (const auto size = object.optional("fixed_bytes")) graph.fixed = size->bytes();
  object.required("values").for_each([&](const Element& value) {
    graph.values.push_back(read_value(value, version));
    values.add(graph.values.back().id);
  });
  object.required("ops").for_each([&](const Element& op) {
    graph.ops.push_back(read_op(op, values, version));
    ops.add(graph.ops.back().id);
  });
  if (const auto choices = object.optional("choices")) {
    choices->for_each(
        [&](const Element& choice) { graph.choices.push_back(read_choice(choice, ops, version)); });
  }
  graph.results = values.find_all(object.required("results"));
  object.finish();
  validate_at(root, [&] { validate(graph); });
  return graph;
}

void write_graph(Writer& writer, const Graph& graph) {
  validate(graph);  // After this, every index below is in range.
  const int64_t version = version_for(graph);
  open_document(writer, kGraphFormat, version);
  writer.field("name", graph.name).field("fixed_bytes", graph.fixed);
  writer.key("values").open_array();
  for (const Value& value : graph.values) {
    writer.open_object(Layout::kInline)
        .field("id", value.id)
        .field("bytes", value.bytes)
        .field("kind", to_string(value.kind));
    if (!value.home.empty()) writer.field("home", value.home);
    writer.close();
  }
  writer.close().key("ops").open_array();
  for (const Op& op : graph.ops) write_op(writer, graph, op);
  writer.close();
  write_choices(writer, graph, version);
  write_ids(writer.key("results"), graph.values, graph.results);
  writer.close();
}

}  // namespace io

std::string to_json(const Graph& graph) {
  io::Writer writer;
  io::write_graph(writer, graph);
  return writer.take();
}

}  // namespace reprise
