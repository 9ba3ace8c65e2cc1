#include "io/reader.h"

#include <algorithm>

namespace reprise::io {

std::string Element::type_name() const {
  switch (document_->type(index_)) {
    case NodeType::kNull:
      return "null";
    case NodeType::kBoolean:
      return "a boolean";
    case NodeType::kInteger:
      return "an integer";
    case NodeType::kNegative:
      return "a negative number";
    case NodeType::kTooLarge:
      return "a number above 9223372036854775807";
    case NodeType::kFraction:
      return "a number with a point or an exponent";
    case NodeType::kString:
      return "a string";
    case NodeType::kArray:
      return "an array";
    case NodeType::kObject:
      return "an object";
  }
  return "something else";
}

int64_t Element::integer() const {
  if (document_->type(index_) != NodeType::kInteger) {
    fail("must be an integer from 0 to 9223372036854775807, is " + type_name());
  }
  return document_->node(index_).payload;
}

bool Element::boolean() const {
  if (document_->type(index_) != NodeType::kBoolean) {
    fail("must be true or false, is " + type_name());
  }
  return document_->node(index_).payload != 0;
}

std::string_view Element::text() const {
  if (!is_string()) fail("must be a string, is " + type_name());
  return document_->text(index_);
}

size_t Element::array_size() const {
  if (document_->type(index_) != NodeType::kArray) fail("must be an array, is " + type_name());
  return document_->node(index_).length;
}

std::vector<Element> Element::elements() const {
  std::vector<Element> result;
  result.reserve(array_size());
  for_each([&](const Element& element) { result.push_back(element); });
  return result;
}

Object::Object(Element element) : element_(element) {
  const Document& document = element.document();
  if (document.type(element.index()) != NodeType::kObject) element.fail("must be an object");
  const Node& node = document.node(element.index());
  members_.reserve(node.length);
  for (uint32_t key = element.index() + 1; key < node.end; key = document.node(key + 1).end) {
    members_.emplace_back(document.text(key), key + 1);
  }
}

Element Object::required(std::string_view key) {
  const std::optional<Element> found = optional(key);
  if (!found) element_.fail("the key " + quoted(key) + " is missing");
  return *found;
}

std::optional<Element> Object::optional(std::string_view key) {
  known_.emplace_back(key);
  for (const auto& [name, index] : members_) {
    if (name == key) return Element(element_.document(), index);
  }
  return std::nullopt;
}

void Object::finish() const {
  for (const auto& [name, index] : members_) {
    if (is_extension_key(name)) continue;
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string known;
    for (const std::string_view key : known_) known += (known.empty() ? "" : ", ") + quoted(key);
    element_.document().fail(index - 1, "unknown key " + quoted(name) + "; known here are " +
                                            known + ", and keys beginning with \"x-\" are ignored");
  }
}

bool is_extension_key(std::string_view key) { return key.starts_with("x-"); }

std::string_view read_format(const Element& root) { return Object(root).required("format").text(); }

int64_t read_header(Object& object, std::string_view format, int64_t newest) {
  const Element found = object.required("format");
  if (found.text() != format) {
    found.fail("is " + quoted(found.text()) + ", where " + quoted(format) + " is expected");
  }
  const Element version = object.required("version");
  const int64_t number = version.integer();
  if (number > newest) {
    version.fail("version " + std::to_string(number) + " of " + std::string(format) +
                 " is newer than this program, which reads " +
                 (newest > 1 ? "versions 1 to " : "version ") + std::to_string(newest) +
                 "; update reprise");
  }
  if (number < 1) version.fail("there is no version 0; the first is 1");
  return number;
}

}  // namespace reprise::io
