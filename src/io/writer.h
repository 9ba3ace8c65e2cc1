// A Writer writes JSON piece by piece, without a tree in memory; equal calls give equal texts. A
// container has a line for each element, or is inline. All that is in an inline container is
// inline. The canonical form has its keys sorted and no white space, so that equal values give equal
// hashes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/model/units.h"

namespace reprise::io {

enum class Layout { kLines, kInline };
enum class Form { kForPeople, kCanonical };

class Writer {
 public:
  explicit Writer(Form form = Form::kForPeople) : canonical_(form == Form::kCanonical) {}

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

  // Returns the document. The form for people ends with a newline.
  std::string take();

 private:
  // A Member begins with its key, in quotes, in the text. Keys need no escapes.
  struct Member {
    size_t begin;
    size_t key_size;
  };

  struct Container {
    char close;
    bool lines;
    bool empty;
    std::vector<Member> members = {};  // of an object of the canonical form
  };

  Writer& open(char begin, char end, Layout layout);
  Writer& count(int64_t number);
  void separate();  // Writes comma and white space before an element or a key.
  void new_line();
  // Sorts the members by their keys, and puts commas between them.
  void sort_members(const std::vector<Member>& members);

  const bool canonical_;
  std::string text_;
  std::vector<Container> open_;
  bool after_key_ = false;
};

// Appends a JSON string with its quotes. Throws InputError if the text is not UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace reprise::io
