#include "runtime/online/operator_facts.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "runtime/step/operators.h"

namespace reprise::runtime::internal::online {
namespace {

// Returns whether the operator gives a tensor other memory. It then writes the tensor, although the
// tag of the operator says that it only changes how the tensor looks at its memory.
bool gives_other_memory(const std::string& name) {
  return name.starts_with("aten::resize") || name.starts_with("aten::set_");
}

bool only_looks(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr) return false;
  }
  return true;
}

// The name of an operator lies in its schema, so its address tells operators apart. The comparison of
// the texts refuses the address of a schema that is no more.
struct Key {
  const char* name;
  const char* overload;
  c10::DeviceType device;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    const std::hash<const void*> hash;
    return (hash(key.name) * 31 + hash(key.overload)) * 31 + static_cast<size_t>(key.device);
  }
};
struct Entry {
  std::string name, overload;
  std::unique_ptr<OperatorFacts> facts;  // null: no operator
};

}  // namespace

OperatorFacts::OperatorFacts(const c10::OperatorHandle& handle, c10::Device device)
    : op(handle), name(handle.operator_name().name) {
  const c10::FunctionSchema& schema = op.schema();
  const auto unknown = [](size_t) -> const c10::IValue* { return nullptr; };
  const bool other_memory = gives_other_memory(name);
  const bool looks_in_place = op.hasTag(at::Tag::inplace_view) && !other_memory;
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const auto* alias = schema.arguments()[a].alias_info();
    const bool declared = alias != nullptr && alias->isWrite() && !looks_in_place;
    arguments.push_back({.written = declared || step::is_known_to_write(op, unknown, a),
                         .shape_only = device.is_cpu() && step::reads_shape_only(op, unknown, a)});
  }
  depends_on_constants = step::depends_on_constants(op);
  results = schema.returns().size();
  {
    // Under autocast others are transparent, too; the facts hold without it.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    // Steps on other devices call operators on host memory, too.
    transparent = step::is_transparent(op, device) && step::is_transparent(op, c10::kCPU);
  }
  view = !other_memory && (looks_in_place || only_looks(schema));
  gives_blank_memory = name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
  draws = op.hasTag(at::Tag::nondeterministic_seeded);
  repeatable =
      !other_memory && (name.starts_with("aten::") || op.hasTag(at::Tag::pt2_compliant_tag));
  // Operators from elsewhere may lack the tag although they draw.
  if (!name.starts_with("aten::")) draws = true;
}

const OperatorFacts* facts_of(const at::RecordFunction& event, c10::Device device) {
  thread_local std::unordered_map<Key, Entry, KeyHash> known;
  const Key key{event.name(), event.overload_name(), device.type()};
  if (key.name == nullptr || key.overload == nullptr) return nullptr;
  const auto found = known.find(key);
  if (found != known.end() && found->second.name == key.name &&
      found->second.overload == key.overload) {
    return found->second.facts.get();
  }
  const auto name = event.operator_name();
  const auto op =
      name && !name->name.empty() ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  // Names of other events lie in memory that comes and goes, so they are not remembered.
  if (!op) return nullptr;
  static thread_local std::vector<std::unique_ptr<OperatorFacts>> outdated;
  Entry entry{key.name, key.overload, std::make_unique<OperatorFacts>(*op, device)};
  Entry& place = known[key];
  if (place.facts) outdated.push_back(std::move(place.facts));  // calls may still speak of them
  place = std::move(entry);
  return place.facts.get();
}

}  // namespace reprise::runtime::internal::online
