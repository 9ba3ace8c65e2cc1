#include "reprise/model/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "model/contains.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::model::contains;

namespace {

// A Place is a JSON pointer. Its text is made for an error only: a graph may have a million of them.
struct Place {
  const Place* parent = nullptr;
  std::string_view key;
  int64_t index = -1;  // below the key, or -1

  Place(const char* k) : key(k) {}  // NOLINT: The name of a list is a place.
  Place(const char* k, size_t i) : key(k), index(static_cast<int64_t>(i)) {}
  Place(const Place& p, std::string_view k) : parent(&p), key(k) {}
  Place(const Place& p, std::string_view k, size_t i)
      : parent(&p), key(k), index(static_cast<int64_t>(i)) {}
  Place(const Place& p, size_t i) : Place(p, "", i) {}

  std::string text() const {
    const std::string above = parent == nullptr ? "" : parent->text();
    return index < 0 ? fmt::format("{}{}", above, key) : fmt::format("{}{}/{}", above, key, index);
  }
};

[[noreturn]] void fail(const Place& place, const std::string& message) {
  throw InputError(message, {.pointer = place.text()});
}

// The Validator checks a graph from front to back. Its members hold what earlier ops have written.
class Validator {
 public:
  explicit Validator(const Graph& graph)
      : graph_(graph),
        written_(graph.values.size(), 0),
        is_result_(graph.values.size(), 0),
        in_list_(graph.values.size(), 0) {}

  void run() {
    constexpr size_t kMost = std::numeric_limits<int32_t>::max();
    if (graph_.values.size() > kMost) fail("/values", "more values than an index can count");
    if (graph_.ops.size() > kMost) fail("/ops", "more operations than an index can count");
    add(bytes_, graph_.fixed, "/fixed_bytes");
    check_values();
    check_results();
    check_ops();
    check_choices();
  }

 private:
  template <class Unit>
  static void add(Quantity<Unit>& total, Quantity<Unit> part, const Place& place) {
    if (part.count() < 0) {
      fail(place, fmt::format("{} is negative; sizes and times are integers >= 0", part.count()));
    }
    int64_t sum = 0;
    if (__builtin_add_overflow(total.count(), part.count(), &sum)) {
      fail(place, "the sum of all sizes or of all times does not fit 64 bits; use smaller numbers");
    }
    total = Quantity<Unit>(sum);
  }

  static void check_id(const std::string& id, std::unordered_set<std::string_view>& known,
                       const Place& place, const char* what) {
    if (id.empty()) fail(place, fmt::format("{} needs an id that is not empty", what));
    if (!known.insert(id).second) fail(place, fmt::format("the id \"{}\" is used twice", id));
  }

  void check_values() {
    std::unordered_set<std::string_view> ids(graph_.values.size());
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      check_id(value.id, ids, Place({"/values", v}, "/id"), "a value");
      add(bytes_, value.bytes, Place({"/values", v}, "/bytes"));
    }
  }

  // Checks that indices are in range and that none stands twice.
  void check_list(const std::vector<ValueIndex>& list, const Place& place) {
    ++lists_;
    for (size_t k = 0; k < list.size(); ++k) {
      const Place here(place, k);
      if (list[k] < 0 || static_cast<size_t>(list[k]) >= graph_.values.size()) {
        fail(here, fmt::format("there is no value number {}", list[k]));
      }
      if (std::exchange(in_list_[list[k]], lists_) == lists_) {
        fail(here, fmt::format("\"{}\" is listed twice", id(list[k])));
      }
    }
  }

  void check_results() {
    check_list(graph_.results, "/results");
    for (const ValueIndex result : graph_.results) is_result_[result] = 1;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (value.home.empty() || value.kind == ValueKind::kInput || is_result_[v]) continue;
      fail(Place({"/values", v}, "/home"),
           fmt::format("\"{}\" has a home, and is neither an input nor a result", value.id));
    }
  }

  void check_ops() {
    std::unordered_set<std::string_view> ids(graph_.ops.size()), names;
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const Op& op = graph_.ops[o];
      const Place place("/ops", o);
      check_id(op.id, ids, Place(place, "/id"), "an operation");
      names.clear();
      for (size_t k = 0; k < op.variants.size(); ++k) {
        const Place here(place, "/variants", k);
        check_id(op.variants[k].name, names, Place(here, "/name"), "a variant");
        check_variant(op.variants[k], here);
      }
      if (std::all_of(op.variants.begin(), op.variants.end(),
                      [](const Variant& variant) { return variant.role == Role::kReplay; })) {
        fail(Place(place, "/variants"),
             fmt::format("\"{}\" has no variant for its first run", op.id));
      }
      for (const Variant& variant : op.variants) {
        for (const ValueIndex value : variant.writes) written_[value] = 1;
      }
    }
    for (const ValueIndex result : graph_.results) {
      if (!written_[result] && !is_input(result)) {
        fail("/results", fmt::format("no operation writes the result \"{}\"", id(result)));
      }
    }
  }

  void check_variant(const Variant& variant, const Place& place) {
    add(time_, variant.time, Place(place, "/ns"));
    add(bytes_, variant.workspace, Place(place, "/workspace_bytes"));
    if (variant.error_ppm < 0) fail(Place(place, "/error_ppm"), "an error is not negative");
    check_list(variant.reads, Place(place, "/reads"));
    check_list(variant.writes, Place(place, "/writes"));
    check_list(variant.consumes, Place(place, "/consumes"));
    for (const ValueIndex value : variant.reads) {
      if (!is_input(value) && !written_[value]) {
        fail(Place(place, "/reads"),
             fmt::format("\"{}\" is neither an input nor written by an earlier operation",
                         id(value)));
      }
    }
    for (const ValueIndex value : variant.writes) {
      if (is_input(value)) {
        fail(Place(place, "/writes"), fmt::format("\"{}\" is an input: the caller's", id(value)));
      }
      // The content of a value never changes: a re-run must find what the first run found.
      if (contains(variant.reads, value)) {
        fail(Place(place, "/writes"),
             fmt::format("\"{}\" is read too; give the changed value an id of its own", id(value)));
      }
    }
    check_reuses(variant, Place(place, "/reuses"));
    check_consumes(variant, Place(place, "/consumes"));
  }

  void check_reuses(const Variant& variant, const Place& place) const {
    std::unordered_set<ValueIndex> seen;
    for (size_t k = 0; k < variant.reuses.size(); ++k) {
      const auto [written, read] = variant.reuses[k];
      const Place here(place, k);
      if (!contains(variant.writes, written) || !contains(variant.reads, read)) {
        fail(here, "a reuse is a pair of a value that is written and one that is read");
      }
      if (starts_on_device(graph_.values[read])) {
        fail(here, fmt::format("\"{}\" is an input: its memory is the caller's", id(read)));
      }
      if (graph_.values[written].home != graph_.values[read].home) {
        fail(here,
             fmt::format("\"{}\" and \"{}\" live in different memories", id(written), id(read)));
      }
      if (graph_.values[written].bytes != graph_.values[read].bytes) {
        fail(here, fmt::format("\"{}\" and \"{}\" differ in size", id(written), id(read)));
      }
      // Reads and writes have no value in common, so that one set serves both sides.
      if (!seen.insert(written).second || !seen.insert(read).second) {
        fail(here, "a value can be in one reuse only");
      }
    }
  }

  void check_consumes(const Variant& variant, const Place& place) const {
    for (const ValueIndex value : variant.consumes) {
      if (!contains(variant.reads, value)) {
        fail(place, fmt::format("\"{}\" is given back but not read", id(value)));
      }
      if (starts_on_device(graph_.values[value])) {
        fail(place, fmt::format("\"{}\" is an input: never given back", id(value)));
      }
      if (is_result_[value]) {
        fail(place, fmt::format("\"{}\" is a result: never given back", id(value)));
      }
      const bool reused = std::any_of(variant.reuses.begin(), variant.reuses.end(),
                                      [&](const auto& pair) { return pair.second == value; });
      if (reused) fail(place, fmt::format("\"{}\" is also reused: it goes once", id(value)));
    }
  }

  void check_choices() const {
    std::unordered_set<std::string_view> ids;
    std::vector<char> taken(graph_.ops.size(), 0);
    for (size_t c = 0; c < graph_.choices.size(); ++c) {
      const Choice& choice = graph_.choices[c];
      const Place place("/choices", c);
      check_id(choice.id, ids, Place(place, "/id"), "a choice");
      if (choice.realizations.empty()) {
        fail(Place(place, "/realizations"), "a choice needs a realization");
      }
      for (size_t r = 0; r < choice.realizations.size(); ++r) {
        const Place here(place, "/realizations", r);
        const std::vector<OpIndex>& realization = choice.realizations[r].ops;
        if (realization.empty()) fail(here, "a realization needs an operation");
        for (const OpIndex op : realization) {
          if (op < 0 || static_cast<size_t>(op) >= graph_.ops.size()) {
            fail(here, fmt::format("there is no operation number {}", op));
          }
          if (taken[op]) {
            fail(here, fmt::format("\"{}\" is in two realizations", graph_.ops[op].id));
          }
          taken[op] = 1;
        }
      }
    }
  }

  bool is_input(ValueIndex value) const { return graph_.values[value].kind == ValueKind::kInput; }
  const std::string& id(ValueIndex value) const { return graph_.values[value].id; }

  const Graph& graph_;
  std::vector<char> written_;  // by value: whether an op before the current one writes it
  std::vector<char> is_result_;
  std::vector<int64_t> in_list_;  // by value: the last list that has it, counted from 1
  int64_t lists_ = 0;
  Bytes bytes_;
  Nanos time_;
};

}  // namespace

void validate(const Graph& graph) { Validator(graph).run(); }

bool has_homes(const Graph& graph) {
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [](const Value& value) { return !value.home.empty(); });
}

Graph with_on_device(const Graph& graph, const std::vector<char>& values) {
  Graph here = graph;
  const auto stays = [&](ValueIndex value) { return values[value] != 0; };
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (stays(static_cast<ValueIndex>(v))) here.values[v].home.clear();
  }
  for (Op& op : here.ops) {
    for (Variant& variant : op.variants) {
      std::erase_if(variant.consumes, [&](ValueIndex v) { return stays(v); });
      std::erase_if(variant.reuses, [&](const auto& pair) {
        if (stays(pair.first)) here.values[pair.first].bytes = Bytes(0);
        return stays(pair.first);
      });
    }
  }
  return here;
}

Graph with_all_on_device(const Graph& graph) {
  std::vector<char> homed;
  for (const Value& value : graph.values) homed.push_back(value.home.empty() ? 0 : 1);
  return with_on_device(graph, homed);
}

OpIndex find_op(const Graph& graph, std::string_view id) {
  const auto found =
      std::find_if(graph.ops.begin(), graph.ops.end(), [&](const Op& op) { return op.id == id; });
  return found == graph.ops.end() ? -1 : static_cast<OpIndex>(found - graph.ops.begin());
}

const char* to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return "input";
    case ValueKind::kActivation:
      return "activation";
    case ValueKind::kSaved:
      return "saved";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kState:
      return "state";
  }
  return "?";
}

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kLoss:
      return "loss";
    case Phase::kBackward:
      return "backward";
  }
  return "?";
}

const char* to_string(Role role) {
  switch (role) {
    case Role::kAny:
      return "any";
    case Role::kFirst:
      return "first";
    case Role::kReplay:
      return "replay";
  }
  return "?";
}

}  // namespace reprise
