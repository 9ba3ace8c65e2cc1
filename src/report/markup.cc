#include "report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "report/table.h"
#include "reprise/report/text.h"

namespace reprise::report {

namespace {

// Returns the number of bytes of the UTF-8 sequence that `text` begins with. Returns 0 if there is
// none, or if it is an overlong form or a surrogate.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                   (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    result += length == 0 ? "\xEF\xBF\xBD" : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : printable(valid_utf8(text))) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string script_string(std::string_view text) {
  std::string result = "\"";
  const std::string clean = valid_utf8(text);
  for (size_t i = 0; i < clean.size(); ++i) {
    const auto c = static_cast<unsigned char>(clean[i]);
    const std::string_view rest = std::string_view(clean).substr(i, 3);
    if (c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || c == 0x7F) {
      result += fmt::format("\\u{:04x}", c);
    } else if (rest == "\xE2\x80\xA8" || rest == "\xE2\x80\xA9") {  // U+2028, U+2029
      result += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      result += clean[i];
    }
  }
  return result + '"';
}

std::string shortened(std::string_view text, size_t characters) {
  const std::string clean = valid_utf8(text);
  if (display_width(clean) <= characters) return clean;
  const size_t head = characters / 2;
  const size_t tail_begin = display_width(clean) - (characters - head - 1);
  std::string result;
  size_t position = 0;
  for (size_t i = 0; i < clean.size(); ++position) {
    const size_t length = sequence_length(std::string_view(clean).substr(i));
    if (position == head) result += "\xE2\x80\xA6";
    if (position < head || position >= tail_begin) result.append(clean, i, length);
    i += length;
  }
  return result;
}

}  // namespace reprise::report
