// Writes pretty, stable JSON piece by piece, without a tree in memory. A container is laid out in
// lines (one element a line) or inline; everything in an inline container is inline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::io {

enum class Layout { kLines, kInline };

class Writer {
 public:
  Writer& open_object(Layout layout = Layout::kLines) { return open('{', '}', layout); }
  Writer& open_array(Layout layout = Layout::kLines) { return open('[', ']', layout); }
  Writer& close();

  Writer& key(std::string_view name);

  // Throws InputError if the text is not UTF-8.
  Writer& value(std::string_view text);
  Writer& value(const char* text) { return value(std::string_view(text)); }
  Writer& value(const std::string& text) { return value(std::string_view(text)); }
  Writer& value(bool boolean);
  Writer& value(int64_t number);
  // Sizes and times. Throws InputError if negative: such a file could not be read.
  Writer& value(Bytes bytes) { return count(bytes.count()); }
  Writer& value(Nanos time) { return count(time.count()); }

  template <class T>
  Writer& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }

  // The document, with a final newline.
  std::string take();

 private:
  struct Container {
    char close;
    bool lines;
    bool empty;
  };

  Writer& open(char begin, char end, Layout layout);
  Writer& count(int64_t number);
  void separate();  // comma and white space before an element or a key
  void new_line();

  std::string text_;
  std::vector<Container> open_;
  bool after_key_ = false;
};

// A JSON string, quotes included. Throws InputError if the text is not UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace reprise::io
