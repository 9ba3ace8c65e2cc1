// Reads a Document strictly. Every wrong type, missing key and unknown key is an InputError with
// file, JSON pointer and line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/document.h"
#include "reprise/model/units.h"

namespace reprise::io {

// An Element is a value inside a document. It is cheap to copy, and the document must outlive it.
class Element {
 public:
  Element(const Document& document, uint32_t index) : document_(&document), index_(index) {}

  const Document& document() const { return *document_; }
  uint32_t index() const { return index_; }

  int64_t integer() const;  // in 0..2^63-1
  Bytes bytes() const { return Bytes(integer()); }
  Nanos nanos() const { return Nanos(integer()); }
  bool boolean() const;
  std::string_view text() const;
  std::string string() const { return std::string(text()); }

  size_t array_size() const;  // Fails unless the element is an array.
  template <class Visit>
  void for_each(Visit visit) const {
    const size_t size = array_size();
    uint32_t child = index_ + 1;
    for (size_t i = 0; i < size; ++i, child = document_->node(child).end) {
      visit(Element(*document_, child));
    }
  }
  std::vector<Element> elements() const;

  // Returns the value that `names` gives for the element's word. Fails if `names` does not have the
  // word.
  template <class Enum, size_t n>
  Enum word(const std::pair<const char*, Enum> (&names)[n]) const {
    std::string expected;
    for (const auto& [name, value] : names) {
      if (is_string() && text() == name) return value;
      expected += (expected.empty() ? "" : ", ") + quoted(name);
    }
    fail("must be one of " + expected);
  }

  [[noreturn]] void fail(const std::string& message) const { document_->fail(index_, message); }

 private:
  bool is_string() const { return document_->type(index_) == NodeType::kString; }
  std::string type_name() const;

  const Document* document_;
  uint32_t index_;
};

// An Object reads the members of an object. Ask for every known key, then call finish().
class Object {
 public:
  explicit Object(Element element);

  Element required(std::string_view key);
  std::optional<Element> optional(std::string_view key);
  // Fails on a key that was not asked for and does not begin with "x-".
  void finish() const;

  const Element& element() const { return element_; }
  const std::vector<std::pair<std::string_view, uint32_t>>& members() const { return members_; }

 private:
  Element element_;
  std::vector<std::pair<std::string_view, uint32_t>> members_;  // keys, indices of values
  std::vector<std::string> known_;  // copies, because a caller's key may be a temporary text
};

bool is_extension_key(std::string_view key);

// Returns the "format" of a document.
std::string_view read_format(const Element& root);
// Marks "format" and "version" as known and returns the version. Fails unless the format is
// `format` and the version is one of 1..newest.
int64_t read_header(Object& object, std::string_view format, int64_t newest = 1);

// Runs `validate`. If it throws an InputError that names no file, the error gets file, pointer and
// line of the document; a JSON pointer in it is relative to `base`.
template <class Validate>
void validate_at(const Element& base, Validate validate) {
  try {
    validate();
  } catch (const InputError& error) {
    if (!error.where().file.empty()) throw;
    Location at = error.where();
    Location found = base.document().locate(base.document().resolve(base.index(), at.pointer));
    const std::string prefix = format_location(at, "");
    std::string message = error.what();
    if (!prefix.empty() && message.starts_with(prefix)) message.erase(0, prefix.size());
    found.pointer = base.document().locate(base.index()).pointer + at.pointer;
    throw InputError(message, found);
  }
}

}  // namespace reprise::io
