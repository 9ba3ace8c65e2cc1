// A Writer writes JSON piece by piece, without a tree in memory; equal calls give equal texts. A
// container has a line for each element, or is inline. All that is in an inline container is
// inline.
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
  // Throws InputError if a size or a time is negative, because such a file could not be read.
  Writer& value(Bytes bytes) { return count(bytes.count()); }
  Writer& value(Nanos time) { return count(time.count()); }

  template <class T>
  Writer& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }

  // Returns the document, with a final newline.
  std::string take();

 private:
  struct Container {
    char close;
    bool lines;
    bool empty;
  };

  Writer& open(char begin, char end, Layout layout);
  Writer& count(int64_t number);
  void separate();  // Writes comma and white space before an element or a key.
  void new_line();

  std::string text_;
  std::vector<Container> open_;
  bool after_key_ = false;
};

// Appends a JSON string with its quotes. Throws InputError if the text is not UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace reprise::io
