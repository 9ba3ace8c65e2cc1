#include "io/document.h"

#include <bit>
#include <utility>

#include "io/tape_builder.h"

namespace reprise::io {

namespace {

void append_pointer_token(std::string& pointer, std::string_view key) {
  pointer += '/';
  for (const char c : key) {
    if (c == '~') {
      pointer += "~0";
    } else if (c == '/') {
      pointer += "~1";
    } else {
      pointer += c;
    }
  }
}

std::string unescape_pointer_token(std::string_view token) {
  std::string key;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size()) {
      key += token[++i] == '1' ? '/' : '~';
    } else {
      key += token[i];
    }
  }
  return key;
}

}  // namespace

Document::Document(std::string_view text, std::string name, std::string_view up_to)
    : name_(std::move(name)) {
  TapeBuilder(text, *this, up_to).build();
}

double Document::fraction(uint32_t index) const {
  return std::bit_cast<double>(nodes_[index].payload);
}

Location Document::locate(uint32_t index) const {
  Location location{.file = name_, .pointer = {}, .line = 1};
  if (nodes_.empty()) return location;
  location.line = nodes_[index].line;
  uint32_t at = 0;
  while (at != index) {
    // Go down into the child whose subtree holds the element. A container that is still being read
    // has the largest number as its end, so that this works on a half-built tape, too.
    const bool object = type(at) == NodeType::kObject;
    uint32_t child = at + 1;
    uint32_t key = child;
    size_t position = 0;
    while (true) {
      key = child;
      if (object && child != index) ++child;  // An error in a key points at its member.
      if (child == index || nodes_[child].end > index) break;
      child = nodes_[child].end;
      ++position;
    }
    append_pointer_token(location.pointer,
                         object ? std::string(text(key)) : std::to_string(position));
    at = child;
  }
  return location;
}

uint32_t Document::resolve(uint32_t base, std::string_view pointer) const {
  uint32_t at = base;
  while (pointer.starts_with('/')) {
    pointer.remove_prefix(1);
    const std::string_view token = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(token.size());
    const bool object = type(at) == NodeType::kObject;
    if (!object && type(at) != NodeType::kArray) return at;
    const std::string wanted = unescape_pointer_token(token);
    uint32_t child = at + 1;
    uint32_t found = 0;
    for (uint32_t i = 0; i < nodes_[at].length && found == 0; ++i) {
      const bool match = object ? text(child++) == wanted : std::to_string(i) == wanted;
      if (match) found = child;
      child = nodes_[child].end;
    }
    if (found == 0) return at;
    at = found;
  }
  return at;
}

void Document::fail(uint32_t index, const std::string& message) const {
  throw InputError(message, locate(index));
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string result = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (c == '"' || c == '\\') result += '\\';
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    result += control ? '?' : c;
  }
  // Do not cut inside a UTF-8 sequence.
  if (text.size() > kShown) {
    while (!result.empty() && (static_cast<unsigned char>(result.back()) & 0xC0) == 0x80) {
      result.pop_back();
    }
    if (static_cast<unsigned char>(result.back()) >= 0xC0) result.pop_back();
    result += "...";
  }
  return result + '"';
}

}  // namespace reprise::io
