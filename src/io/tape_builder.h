// A TapeBuilder fills a Document's tape from SAX events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/document.h"

namespace reprise::io {

class TapeBuilder {
 public:
  TapeBuilder(std::string_view text, Document& document, std::string_view up_to)
      : text_(text), up_to_(up_to), document_(document) {}
  void build();

  // The parser calls these functions. `line` is the line of the token that the event is about.
  // string() returns whether the parser shall go on.
  void literal(NodeType type, int64_t payload, int64_t line);
  bool string(std::string_view value, int64_t line);
  void key(std::string_view value, int64_t line);
  void open(NodeType type, int64_t line);
  void close();
  [[noreturn]] void syntax_error(std::string_view message, int64_t line) const;

 private:
  void push(NodeType type, int64_t payload, size_t length, int64_t line);
  void push_string(std::string_view value, int64_t line);
  void count_element();
  void check_duplicate_keys(uint32_t object) const;

  std::string_view text_, up_to_;
  Document& document_;
  std::vector<uint32_t> open_;  // the containers that are not closed yet
};

}  // namespace reprise::io
